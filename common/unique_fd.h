// A file descriptor with an owner.
#pragma once

#include <unistd.h>

#include <utility>

namespace kvtier {

// Closes what it holds. Move-only; -1: holds none.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this == &other) return *this;
    Close();
    fd_ = std::exchange(other.fd_, -1);
    return *this;
  }
  ~UniqueFd() { Close(); }

  explicit operator bool() const { return fd_ >= 0; }
  int get() const { return fd_; }

 private:
  void Close() {
    if (fd_ >= 0) close(fd_);
  }

  int fd_ = -1;
};

}  // namespace kvtier
