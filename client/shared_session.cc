#include "client/shared_session.h"

#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "client/connect.h"
#include "kvtier/client.h"
#include "kvtier/v1/kvtier.pb.h"

namespace kvtier::client_internal {
namespace {

constexpr size_t kMaxPacket = size_t{64} << 10;

// What came in one packet.
struct Received {
  v1::SharedMemoryMessage message;
  UniqueFd fd;
};

absl::Status HungUp() {
  return absl::UnavailableError("the daemon closed the shared-memory socket");
}

absl::Status Lost() { return absl::AbortedError("the shared-memory session was lost"); }

absl::Status SystemError(const char* call) {
  return absl::UnavailableError(absl::StrCat("shared memory: ", call, ": ", strerror(errno)));
}

absl::Status WaitReadable(int fd, std::optional<Duration> limit) {
  pollfd wanted = {.fd = fd, .events = POLLIN, .revents = 0};
  int milliseconds = -1;
  if (limit.has_value()) {
    milliseconds = static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(*limit).count());
  }
  const int ready = poll(&wanted, 1, milliseconds);
  if (ready > 0 || (ready < 0 && errno == EINTR)) return absl::OkStatus();
  if (ready == 0) return absl::UnavailableError("shared memory: the daemon does not answer");
  return SystemError("poll");
}

// The descriptor that came with a packet, if any. The daemon sends one at most, so there is no room
// for more.
UniqueFd TakeFd(msghdr* header) {
  for (cmsghdr* part = CMSG_FIRSTHDR(header); part != nullptr; part = CMSG_NXTHDR(header, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(part), sizeof(fd));
    return UniqueFd(fd);
  }
  return UniqueFd();
}

// The next packet; nothing when there is none yet.
absl::StatusOr<std::optional<Received>> Receive(int socket) {
  std::vector<char> packet(kMaxPacket);
  iovec bytes = {.iov_base = packet.data(), .iov_len = packet.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control = {};
  msghdr header = {};
  header.msg_iov = &bytes;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  const ssize_t size = recvmsg(socket, &header, MSG_CMSG_CLOEXEC);
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return std::nullopt;
  if (size < 0) return SystemError("recvmsg");
  Received received{{}, TakeFd(&header)};
  if (size == 0) return HungUp();
  if ((header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0 ||
      !received.message.ParseFromArray(packet.data(), static_cast<int>(size))) {
    return absl::UnavailableError("the daemon sent a packet that is no SharedMemoryMessage");
  }
  return received;
}

// A packet that does not fit into the socket's buffer meets a daemon that has stopped reading.
absl::Status Send(int socket, const v1::SharedMemoryRequest& request) {
  const std::string packet = request.SerializeAsString();
  if (send(socket, packet.data(), packet.size(), MSG_NOSIGNAL) < 0) return SystemError("send");
  return absl::OkStatus();
}

absl::Status SendReleased(int socket, const std::vector<uint64_t>& regions) {
  if (regions.empty()) return absl::OkStatus();
  v1::SharedMemoryRequest request;
  for (const uint64_t region : regions) request.mutable_released()->add_regions(region);
  return Send(socket, request);
}

absl::StatusOr<Received> AwaitWelcome(int socket, Duration limit) {
  const TimePoint end = std::chrono::steady_clock::now() + limit;
  while (true) {
    const Duration left = end - std::chrono::steady_clock::now();
    KVTIER_RETURN_IF_ERROR(WaitReadable(socket, std::max(left, Duration::zero())));
    KVTIER_ASSIGN_OR_RETURN(std::optional<Received> received, Receive(socket));
    if (!received.has_value()) continue;
    if (!received->message.has_welcome()) {
      return absl::UnavailableError("the daemon's first shared-memory packet is no welcome");
    }
    return std::move(*received);
  }
}

}  // namespace

// ---------------------------------------------------------------------- SharedMapping

absl::StatusOr<std::unique_ptr<SharedMapping>> SharedMapping::Make(int fd, uint64_t bytes,
                                                                   bool writable,
                                                                   RegionListener* listener) {
  struct stat file = {};
  if (fd < 0 || bytes == 0 || fstat(fd, &file) != 0 ||
      static_cast<uint64_t>(file.st_size) < bytes) {
    return absl::UnavailableError(
        absl::StrCat("the daemon's descriptor does not have ", bytes, " bytes"));
  }
  const int protection = PROT_READ | (writable ? PROT_WRITE : 0);
  void* const base = mmap(nullptr, bytes, protection, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) return SystemError("mmap");
  return std::unique_ptr<SharedMapping>(
      new SharedMapping(std::span(static_cast<std::byte*>(base), bytes), writable, listener));
}

SharedMapping::SharedMapping(std::span<std::byte> bytes, bool writable, RegionListener* listener)
    : bytes_(bytes), writable_(writable), listener_(listener) {
  if (listener_ != nullptr) listener_->Mapped(Told());
}

SharedMapping::~SharedMapping() {
  if (listener_ != nullptr) listener_->Unmapping(Told());
  munmap(bytes_.data(), bytes_.size());
}

MappedRegion SharedMapping::Told() const { return {.bytes = bytes_, .writable = writable_}; }

// ---------------------------------------------------------------------- SharedSession

absl::StatusOr<std::unique_ptr<SharedSession>> SharedSession::Open(const std::string& path,
                                                                   Duration limit,
                                                                   RegionListener* listener) {
  KVTIER_ASSIGN_OR_RETURN(const int fd, ConnectPacketSocket(path, limit));
  auto socket = std::make_shared<UniqueFd>(fd);
  KVTIER_ASSIGN_OR_RETURN(const Received welcome, AwaitWelcome(fd, limit));
  const v1::SharedWelcome& told = welcome.message.welcome();
  KVTIER_ASSIGN_OR_RETURN(
      std::unique_ptr<SharedMapping> store_region,
      SharedMapping::Make(welcome.fd.get(), told.store_region_bytes(), true, listener));
  std::unique_ptr<SharedSession> session(
      new SharedSession(std::move(socket), told.session_id(), std::move(store_region), listener));
  session->reader_.Run([reader = session.get()] { reader->ReadSocket(); });
  return session;
}

SharedSession::SharedSession(std::shared_ptr<UniqueFd> socket, std::string id,
                             std::unique_ptr<SharedMapping> store_region, RegionListener* listener)
    : socket_(std::move(socket)),
      id_(std::move(id)),
      store_region_(std::move(store_region)),
      listener_(listener) {}

SharedSession::~SharedSession() { End(); }

void SharedSession::End() {
  std::map<uint64_t, Region> dropped;  // unmapped without the lock
  MutexLock lock(mutex_);
  EndLocked();
  dropped.swap(regions_);
}

void SharedSession::EndLocked() {
  ended_ = true;
  shutdown(socket_->get(), SHUT_RDWR);
  changed_.NotifyAll();
}

bool SharedSession::ended() const {
  MutexLock lock(mutex_);
  return ended_;
}

void SharedSession::ReadSocket() {
  absl::Status status;
  while (status.ok()) {
    status = WaitReadable(socket_->get(), std::nullopt);
    if (!status.ok()) break;
    absl::StatusOr<std::optional<Received>> received = Receive(socket_->get());
    status = received.status();
    if (status.ok() && received->has_value()) {
      status = TakeMessage((*received)->message, std::move((*received)->fd));
    }
  }
  End();
}

absl::Status SharedSession::TakeMessage(const v1::SharedMemoryMessage& message, UniqueFd fd) {
  if (message.has_region()) return TakeRegion(message.region(), fd);
  if (message.has_retired()) DropRetired(message.retired());
  return absl::OkStatus();
}

absl::Status SharedSession::TakeRegion(const v1::SharedRegion& told, const UniqueFd& fd) {
  std::shared_ptr<const SharedMapping> mapping;
  if (told.bytes() > 0) {
    KVTIER_ASSIGN_OR_RETURN(std::unique_ptr<SharedMapping> made,
                            SharedMapping::Make(fd.get(), told.bytes(), false, listener_));
    // It goes when it was retired and nobody reads it any more, or after the session: then nobody
    // hears what is sent.
    mapping = std::shared_ptr<const SharedMapping>(
        made.release(), [socket = socket_, region = told.region()](const SharedMapping* gone) {
          delete gone;
          SendReleased(socket->get(), {region}).IgnoreError();
        });
  }
  MutexLock lock(mutex_);
  const auto region = regions_.find(told.region());
  if (region == regions_.end() || !region->second.opening) return absl::OkStatus();
  if (mapping == nullptr) {
    regions_.erase(region);
  } else {
    region->second = Region{false, std::move(mapping)};
  }
  changed_.NotifyAll();
  return absl::OkStatus();
}

void SharedSession::DropRetired(const v1::SharedRetired& retired) {
  std::vector<Region> dropped;  // unmapped without the lock
  std::vector<uint64_t> not_here;
  {
    MutexLock lock(mutex_);
    for (const uint64_t id : retired.regions()) {
      const auto region = regions_.find(id);
      if (region == regions_.end() || region->second.opening) {
        not_here.push_back(id);
        continue;
      }
      dropped.push_back(std::move(region->second));
      regions_.erase(region);
    }
  }
  SendReleased(socket_->get(), not_here).IgnoreError();
}

absl::StatusOr<std::shared_ptr<const SharedMapping>> SharedSession::Map(uint64_t region) {
  const TimePoint end = std::chrono::steady_clock::now() + kAnswerLimit;
  MutexLock lock(mutex_);
  if (!ended_ && regions_.try_emplace(region).second) {
    v1::SharedMemoryRequest request;
    request.set_open_region(region);
    if (!Send(socket_->get(), request).ok()) EndLocked();
  }
  while (true) {
    if (ended_) return Lost();
    const auto found = regions_.find(region);
    if (found == regions_.end()) {
      return absl::NotFoundError(absl::StrCat("shared-memory region ", region, " is gone"));
    }
    if (!found->second.opening) return found->second.mapping;
    const Duration left = end - std::chrono::steady_clock::now();
    if (left > Duration::zero()) {
      changed_.WaitFor(mutex_, left);
    } else {
      EndLocked();
    }
  }
}

absl::StatusOr<std::unique_ptr<SharedSession::StoreRegion>> SharedSession::TakeStoreRegion(
    Duration limit) {
  const TimePoint end = std::chrono::steady_clock::now() + limit;
  MutexLock lock(mutex_);
  while (storing_ && !ended_) {
    const Duration left = end - std::chrono::steady_clock::now();
    if (left <= Duration::zero()) {
      return absl::DeadlineExceededError("other calls did not let go of the store region");
    }
    changed_.WaitFor(mutex_, left);
  }
  if (ended_) return Lost();
  storing_ = true;
  return std::make_unique<StoreRegion>(this);
}

void SharedSession::GiveBackStoreRegion() {
  MutexLock lock(mutex_);
  storing_ = false;
  changed_.NotifyAll();
}

}  // namespace kvtier::client_internal
