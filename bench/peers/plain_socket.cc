#include "bench/peers/plain_socket.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace kvtier::bench {
namespace {

constexpr int kDeadlineSeconds = 20;
constexpr int kBacklog = 16;
constexpr size_t kMostPieces = 1024;  // IOV_MAX of Linux

absl::Status SystemError(const std::string& what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", strerror(errno)));
}

struct Address {
  sockaddr_storage storage = {};
  socklen_t size = 0;
  bool tcp() const { return storage.ss_family == AF_INET; }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

absl::StatusOr<Address> ParseUnix(const std::string& path) {
  Address out;
  sockaddr_un& where = reinterpret_cast<sockaddr_un&>(out.storage);
  if (path.size() >= sizeof(where.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat("address: the path '", path, "' has ",
                                                   path.size(), " bytes, the limit is ",
                                                   sizeof(where.sun_path) - 1));
  }
  where.sun_family = AF_UNIX;
  std::memcpy(where.sun_path, path.c_str(), path.size() + 1);
  out.size = sizeof(where);
  return out;
}

absl::StatusOr<Address> Parse(const std::string& address) {
  if (address.rfind("unix:", 0) == 0) return ParseUnix(address.substr(5));
  Address out;
  sockaddr_in& where = reinterpret_cast<sockaddr_in&>(out.storage);
  const size_t colon = address.rfind(':');
  int port = 0;
  if (colon == std::string::npos || !absl::SimpleAtoi(address.substr(colon + 1), &port) ||
      port < 0 || port > 65535 ||
      inet_pton(AF_INET, address.substr(0, colon).c_str(), &where.sin_addr) != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("address: '", address, "' is neither unix:PATH nor an IPv4 HOST:PORT"));
  }
  where.sin_family = AF_INET;
  where.sin_port = htons(static_cast<uint16_t>(port));
  out.size = sizeof(where);
  return out;
}

// Drops the first `bytes` of what is to be sent.
void Advance(std::span<iovec>* pieces, size_t bytes) {
  while (!pieces->empty() && bytes >= pieces->front().iov_len) {
    bytes -= pieces->front().iov_len;
    *pieces = pieces->subspan(1);
  }
  if (bytes == 0) return;
  pieces->front().iov_base = static_cast<char*>(pieces->front().iov_base) + bytes;
  pieces->front().iov_len -= bytes;
}

void SetNoDelay(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

void SetDeadline(int fd) {
  const timeval limit = {.tv_sec = kDeadlineSeconds, .tv_usec = 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
}

// sendmsg or recvmsg until all pieces are done.
absl::Status Transfer(ssize_t (*call)(int, msghdr*, int), const char* what, int fd, int flags,
                      std::vector<iovec> pieces) {
  std::span<iovec> left(pieces);
  while (!left.empty()) {
    msghdr message = {};
    message.msg_iov = left.data();
    message.msg_iovlen = std::min(left.size(), kMostPieces);
    const ssize_t done = call(fd, &message, flags);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) return SystemError(what);
    if (done == 0) return absl::UnavailableError(absl::StrCat(what, ": the other end has closed"));
    Advance(&left, static_cast<size_t>(done));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PlainSocket> PlainSocket::Connect(const std::string& address) {
  KVTIER_ASSIGN_OR_RETURN(const Address where, Parse(address));
  PlainSocket out(socket(where.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (out.fd_ < 0 || connect(out.fd_, where.get(), where.size) != 0) return SystemError(address);
  if (where.tcp()) SetNoDelay(out.fd_);
  SetDeadline(out.fd_);
  return out;
}

absl::StatusOr<PlainSocket> PlainSocket::Listen(const std::string& address) {
  KVTIER_ASSIGN_OR_RETURN(const Address where, Parse(address));
  PlainSocket out(socket(where.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (out.fd_ < 0 || bind(out.fd_, where.get(), where.size) != 0 ||
      listen(out.fd_, kBacklog) != 0) {
    return SystemError(address);
  }
  return out;
}

PlainSocket::~PlainSocket() {
  if (fd_ >= 0) close(fd_);
}

absl::StatusOr<PlainSocket> PlainSocket::Accept() {
  sockaddr_storage from = {};
  socklen_t size = sizeof(from);
  PlainSocket out(accept4(fd_, reinterpret_cast<sockaddr*>(&from), &size, SOCK_CLOEXEC));
  if (out.fd_ < 0) return SystemError("accept");
  if (from.ss_family == AF_INET) SetNoDelay(out.fd_);
  return out;
}

absl::Status PlainSocket::Send(std::vector<iovec> pieces) {
  const auto send = [](int fd, msghdr* message, int flags) { return sendmsg(fd, message, flags); };
  return Transfer(send, "send", fd_, MSG_NOSIGNAL, std::move(pieces));
}

absl::Status PlainSocket::Receive(std::vector<iovec> pieces) {
  return Transfer(recvmsg, "receive", fd_, MSG_WAITALL, std::move(pieces));
}

iovec Piece(std::string_view text) {
  return {.iov_base = const_cast<char*>(text.data()), .iov_len = text.size()};
}

iovec Piece(std::span<const std::byte> bytes) {
  return {.iov_base = const_cast<std::byte*>(bytes.data()), .iov_len = bytes.size()};
}

iovec Room(std::string* text) { return {.iov_base = text->data(), .iov_len = text->size()}; }

iovec Room(std::span<std::byte> bytes) {
  return {.iov_base = bytes.data(), .iov_len = bytes.size()};
}

}  // namespace kvtier::bench
