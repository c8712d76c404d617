#include "tests/support/raw_shared_client.h"

#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "common/check.h"

namespace kvtier {
namespace {

constexpr int kPatienceMs = 20'000;

}  // namespace

Mapping::Mapping(int fd, uint64_t bytes, bool writable) {
  const int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
  void* base = mmap(nullptr, bytes, protection, MAP_SHARED, fd, 0);
  KVTIER_CHECK(base != MAP_FAILED);
  bytes_ = {static_cast<std::byte*>(base), bytes};
}

Mapping::Mapping(Mapping&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

Mapping::~Mapping() {
  if (!bytes_.empty()) munmap(bytes_.data(), bytes_.size());
}

RawSharedClient::RawSharedClient(const std::string& socket_path)
    : socket_(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  KVTIER_CHECK(socket_path.size() < sizeof(address.sun_path));
  socket_path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  KVTIER_CHECK(connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
}

RawSharedClient RawSharedClient::Joined(const std::string& socket_path) {
  RawSharedClient client(socket_path);
  client.ReadWelcome();
  return client;
}

RawSharedClient RawSharedClient::JoinedAs(const std::string& socket_path, uid_t uid) {
  // Not seteuid: glibc's changes all threads.
  constexpr uid_t kAsItIs = UINT32_MAX;
  KVTIER_CHECK(syscall(SYS_setresuid, kAsItIs, uid, kAsItIs) == 0);
  RawSharedClient client(socket_path);
  KVTIER_CHECK(syscall(SYS_setresuid, kAsItIs, uid_t{0}, kAsItIs) == 0);
  client.ReadWelcome();
  return client;
}

void RawSharedClient::ReadWelcome() {
  std::optional<Packet> welcome = Receive();
  KVTIER_CHECK(welcome.has_value() && welcome->message.has_welcome() && welcome->fd);
  session_id_ = welcome->message.welcome().session_id();
  store_fd_ = std::move(welcome->fd);
  store_ = Mapping(store_fd_.get(), welcome->message.welcome().store_region_bytes(),
                   /*writable=*/true);
}

std::optional<RawSharedClient::Packet> RawSharedClient::Receive() {
  pollfd readable{socket_.get(), POLLIN, 0};
  KVTIER_CHECK(poll(&readable, 1, kPatienceMs) == 1);
  std::vector<char> bytes(64 << 10);
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  iovec data{bytes.data(), bytes.size()};
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  const ssize_t received = recvmsg(socket_.get(), &header, MSG_CMSG_CLOEXEC);
  if (received <= 0) return std::nullopt;
  Packet packet;
  KVTIER_CHECK(packet.message.ParseFromArray(bytes.data(), static_cast<int>(received)));
  if (const cmsghdr* rights = CMSG_FIRSTHDR(&header); rights != nullptr) {
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(rights), sizeof(fd));
    packet.fd = UniqueFd(fd);
  }
  return packet;
}

void RawSharedClient::ExpectClosed() {
  while (Receive().has_value()) {
  }
}

bool RawSharedClient::SendBytes(std::string_view packet, int fd) {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  iovec data{const_cast<char*>(packet.data()), packet.size()};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (fd >= 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof(fd));
  }
  return sendmsg(socket_.get(), &message, MSG_NOSIGNAL) >= 0;
}

bool RawSharedClient::AskFor(uint64_t region) {
  v1::SharedMemoryRequest request;
  request.set_open_region(region);
  return Send(request);
}

bool RawSharedClient::SayReleased(uint64_t region) {
  v1::SharedMemoryRequest request;
  request.mutable_released()->add_regions(region);
  return Send(request);
}

std::span<const std::byte> RawSharedClient::Map(uint64_t region) {
  if (const auto known = regions_.find(region); known != regions_.end()) {
    return known->second.mapping.bytes();
  }
  KVTIER_CHECK(AskFor(region));
  for (;;) {
    std::optional<Packet> packet = Receive();
    KVTIER_CHECK(packet.has_value());
    if (packet->message.has_retired()) {
      Note(packet->message.retired());
      continue;
    }
    KVTIER_CHECK(packet->message.has_region() && packet->message.region().region() == region);
    if (packet->message.region().bytes() == 0) return {};
    Region& mapped = regions_[region];
    mapped.fd = std::move(packet->fd);
    mapped.mapping = Mapping(mapped.fd.get(), packet->message.region().bytes(), false);
    return mapped.mapping.bytes();
  }
}

void RawSharedClient::WaitRetired(uint64_t region) {
  while (!retired_.contains(region)) {
    const std::optional<Packet> packet = Receive();
    KVTIER_CHECK(packet.has_value() && packet->message.has_retired());
    Note(packet->message.retired());
  }
}

void RawSharedClient::Note(const v1::SharedRetired& retired) {
  for (const uint64_t region : retired.regions()) retired_[region] = true;
}

}  // namespace kvtier
