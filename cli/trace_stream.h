// The bytes of a trace file, decompressed on the way.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "common/status.h"

namespace kvtier::cli {

// A file, plain or compressed by zstd (recognised by content, any number of frames), read forwards;
// memory does not grow with the file. Not thread-safe.
class TraceBytes {
 public:
  // Errors: NOT_FOUND, DATA_LOSS (it cannot be read).
  static absl::StatusOr<std::unique_ptr<TraceBytes>> Open(const std::string& path);
  ~TraceBytes();

  const std::string& path() const { return path_; }
  // What was read and not consumed; valid until the next call of Fill or Consume.
  std::string_view unread() const { return std::string_view(buffer_).substr(consumed_); }
  // Reads on: unread() grows. False at the end of the file. Errors: DATA_LOSS, naming the file (it
  // cannot be read; the compressed stream is damaged or cut off).
  absl::StatusOr<bool> Fill();
  // REQUIRES: bytes <= unread().size().
  void Consume(size_t bytes) { consumed_ += bytes; }

 private:
  class File;

  explicit TraceBytes(std::unique_ptr<File> file);

  const std::string path_;
  const std::unique_ptr<File> file_;
  std::string buffer_;
  size_t consumed_ = 0;
};

}  // namespace kvtier::cli
