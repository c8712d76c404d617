#include "client/connect.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/numbers.h"

namespace kvtier::client_internal {
namespace {

constexpr char kUnix[] = "unix:";
constexpr size_t kUnixLength = sizeof(kUnix) - 1;

bool IsUnix(const std::string& address) { return address.rfind(kUnix, 0) == 0; }

struct HostPort {
  std::string host;
  std::string port;
};

// Empty parts when it is none.
HostPort SplitHostPort(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) return {};
  HostPort out{address.substr(0, colon), address.substr(colon + 1)};
  if (out.host.size() > 2 && out.host.front() == '[' && out.host.back() == ']') {
    out.host = out.host.substr(1, out.host.size() - 2);  // an IPv6 address
  }
  return out;
}

int WaitForConnection(int fd, Duration limit) {
  pollfd wanted = {.fd = fd, .events = POLLOUT, .revents = 0};
  const auto milliseconds = std::chrono::ceil<std::chrono::milliseconds>(limit).count();
  const int ready = poll(&wanted, 1, static_cast<int>(milliseconds));
  if (ready <= 0) return ready == 0 ? ETIMEDOUT : errno;
  int error = 0;
  socklen_t size = sizeof(error);
  if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) return errno;
  return error;
}

// 0 and the socket, or errno.
int Connect(const sockaddr* address, socklen_t size, int type, Duration limit, int* out) {
  const int fd = socket(address->sa_family, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return errno;
  int error = connect(fd, address, size) == 0 ? 0 : errno;
  if (error == EINPROGRESS) error = WaitForConnection(fd, limit);
  if (error != 0) {
    close(fd);
    return error;
  }
  *out = fd;
  return 0;
}

absl::Status Unreachable(const std::string& address, const std::string& reason) {
  return absl::UnavailableError(absl::StrCat("no connection to ", address, ": ", reason));
}

absl::StatusOr<int> ConnectUnix(const std::string& path, int type, Duration limit) {
  sockaddr_un address = {};
  if (path.size() >= sizeof(address.sun_path)) {
    return Unreachable(absl::StrCat(kUnix, path), strerror(ENAMETOOLONG));
  }
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, path.size());
  int fd = -1;
  const int error =
      Connect(reinterpret_cast<sockaddr*>(&address), sizeof(address), type, limit, &fd);
  if (error != 0) return Unreachable(absl::StrCat(kUnix, path), strerror(error));
  return fd;
}

absl::StatusOr<int> ConnectTcp(const std::string& address, Duration limit) {
  const HostPort target = SplitHostPort(address);
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int unknown = getaddrinfo(target.host.c_str(), target.port.c_str(), &hints, &found);
  if (unknown != 0) return Unreachable(address, gai_strerror(unknown));
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, freeaddrinfo);
  int fd = -1;
  int error = ENOENT;
  for (const addrinfo* one = found; one != nullptr && error != 0; one = one->ai_next) {
    error = Connect(one->ai_addr, one->ai_addrlen, SOCK_STREAM, limit, &fd);
  }
  if (error != 0) return Unreachable(address, strerror(error));
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  return fd;
}

}  // namespace

absl::Status CheckAddress(const std::string& address) {
  if (IsUnix(address)) {
    const size_t length = address.size() - kUnixLength;
    if (length > 0 && length < sizeof(sockaddr_un::sun_path)) return absl::OkStatus();
  } else {
    const HostPort target = SplitHostPort(address);
    uint32_t port = 0;
    if (!target.host.empty() && absl::SimpleAtoi(target.port, &port) && port > 0 && port < 65536) {
      return absl::OkStatus();
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("address is \"", address, "\", it must be \"unix:/path\" with a path below ",
                   sizeof(sockaddr_un::sun_path), " bytes, or \"host:port\""));
}

absl::StatusOr<int> ConnectSocket(const std::string& address, Duration limit) {
  if (!IsUnix(address)) return ConnectTcp(address, limit);
  return ConnectUnix(address.substr(kUnixLength), SOCK_STREAM, limit);
}

absl::StatusOr<int> ConnectPacketSocket(const std::string& path, Duration limit) {
  return ConnectUnix(path, SOCK_SEQPACKET, limit);
}

}  // namespace kvtier::client_internal
