// The disk under a measurement: its own rates, direct I/O, what was written and what is allocated,
// cold caches.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/executor.h"
#include "common/status.h"

namespace kvtier::bench {

inline constexpr uint64_t kMiB = uint64_t{1} << 20;
inline constexpr uint64_t kPage = 4096;

class Stopwatch {
 public:
  double Seconds() const { return std::chrono::duration<double>(clock_.Now() - start_).count(); }

 private:
  SteadyClock clock_;
  TimePoint start_ = clock_.Now();
};

// `what` and what errno says.
absl::Status SystemError(const std::string& what);

// Owns a descriptor. Writes and reads are whole, or an error.
class File {
 public:
  static absl::StatusOr<File> Open(const std::string& path, int flags);
  File() = default;
  File(File&& from) noexcept : fd_(std::exchange(from.fd_, -1)) {}
  File& operator=(File&& from) noexcept {
    std::swap(fd_, from.fd_);
    return *this;
  }
  ~File();
  int fd() const { return fd_; }

  absl::Status Write(const void* from, uint64_t bytes, uint64_t offset);
  absl::Status Read(void* to, uint64_t bytes, uint64_t offset) const;
  absl::Status Allocate(uint64_t bytes);
  absl::Status Sync();       // the data
  absl::Status SyncFully();  // and all that the file system knows of it; also for directories

 private:
  int fd_ = -1;
};

// Page-aligned memory, touched once, so that no measurement pays for fresh pages.
class Buffer {
 public:
  explicit Buffer(uint64_t bytes);
  char* data() { return data_.get(); }
  uint64_t size() const { return bytes_; }

 private:
  uint64_t bytes_;
  std::unique_ptr<char, decltype(&std::free)> data_;
};

// Bytes that this process caused to be sent to the disk: direct writes as they are issued, others
// when their page turns dirty. The file system's own journal is not in it.
uint64_t BytesWritten();

// What `du` says: allocated bytes, each inode once.
uint64_t DiskBytes(const std::string& dir);

// Nothing of the file system waits to be written after this.
absl::Status SyncAll(const std::string& dir);

// Empties the page cache of what lies under `dir`; with root's rights also of names and inodes.
absl::Status DropCaches(const std::string& dir);

// Seconds that `work` takes for all of 0 to count - 1, done by `threads` threads of the pool, which
// has nothing else to do. Each call is told which of them it is on. The first error, if any.
absl::StatusOr<double> SideBySide(ThreadPool* pool, int threads, uint64_t count,
                                  const std::function<absl::Status(int, uint64_t)>& work);

// What the disk under a directory does at best with blocks of one size: direct I/O on one file.
class RawDisk {
 public:
  // Creates a file of `blocks` blocks in `dir`, and removes it in the end. REQUIRES: whole pages.
  static absl::StatusOr<std::unique_ptr<RawDisk>> Make(const std::string& dir, uint64_t block_bytes,
                                                       uint64_t blocks, int depth);
  ~RawDisk();

  uint64_t bytes() const { return block_bytes_ * blocks_; }
  // Seconds to write all blocks one after the other, synced at the end: over the file, or to a new
  // one, for which the file system has to find room.
  absl::StatusOr<double> Write();
  absl::StatusOr<double> WriteNew();
  // Seconds to read all blocks once, in an order that is not theirs, `depth` at a time; or one.
  absl::StatusOr<double> Read();
  absl::StatusOr<double> ReadOne(uint64_t block);

 private:
  RawDisk(std::string path, uint64_t block_bytes, uint64_t blocks, int depth);

  absl::Status Create();

  const std::string path_;
  const uint64_t block_bytes_;
  const uint64_t blocks_;
  File file_;
  std::vector<Buffer> buffers_;  // one for each reader
  ThreadPool readers_;
};

}  // namespace kvtier::bench
