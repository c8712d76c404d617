// A blocking stream socket: what a client written with care for one protocol would use.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/status.h"

namespace kvtier::bench {

// Owns a descriptor. Addresses are "unix:PATH" or "HOST:PORT", HOST in numbers.
class PlainSocket {
 public:
  static absl::StatusOr<PlainSocket> Connect(const std::string& address);
  static absl::StatusOr<PlainSocket> Listen(const std::string& address);
  PlainSocket(PlainSocket&& from) noexcept : fd_(std::exchange(from.fd_, -1)) {}
  PlainSocket& operator=(PlainSocket&& from) noexcept {
    std::swap(fd_, from.fd_);
    return *this;
  }
  ~PlainSocket();

  absl::StatusOr<PlainSocket> Accept();
  // All of it, in as few system calls as it takes.
  absl::Status Send(std::vector<iovec> pieces);
  // Fills all pieces. UNAVAILABLE when the other end closes or, to who connected, says nothing for
  // 20 s; what came until then is in the pieces.
  absl::Status Receive(std::vector<iovec> pieces);

 private:
  explicit PlainSocket(int fd) : fd_(fd) {}

  int fd_;
};

iovec Piece(std::string_view text);             // to send
iovec Piece(std::span<const std::byte> bytes);  // to send
iovec Room(std::string* text);                  // to receive: as many bytes as it has
iovec Room(std::span<std::byte> bytes);         // to receive

}  // namespace kvtier::bench
