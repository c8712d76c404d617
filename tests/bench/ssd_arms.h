// Ways to keep blocks on an SSD, behind one interface.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bench/disk.h"
#include "common/status.h"

namespace kvtier::bench {

inline constexpr uint64_t kBatch = 32;  // blocks

// A block says its number at both ends. A hole in a file reads as zeros, so no mark is zero.
void MarkBlock(char* data, uint64_t bytes, uint64_t number);
// DATA_LOSS when it is not that block.
absl::Status VerifyBlock(const char* data, uint64_t bytes, uint64_t number);

// One batch of blocks that do not compress.
class Payload {
 public:
  explicit Payload(uint64_t block_bytes);
  // Makes it the batch that begins with this block.
  void Mark(uint64_t first);
  uint64_t block_bytes() const { return block_bytes_; }
  char* block(uint64_t i) { return buffer_.data() + i * block_bytes_; }

 private:
  const uint64_t block_bytes_;
  Buffer buffer_;
};

// A way to keep blocks. Blocks are numbered in the order they come.
class Arm {
 public:
  virtual ~Arm() = default;
  virtual std::string name() const = 0;
  // Makes what is missing. Returns when any block there can be looked up.
  virtual absl::Status Open(const std::string& dir, uint64_t block_bytes, uint64_t blocks) = 0;
  virtual void Close() = 0;
  // The batch that begins with block `first` is on the medium when it returns.
  virtual absl::Status Write(Payload& payload, uint64_t first) = 0;
  // Thread-safe.
  virtual absl::Status Read(uint64_t block, Buffer& to) = 0;
  virtual absl::Status Delete(uint64_t first) = 0;
  // Waits for the work that goes on behind Write and Delete.
  virtual absl::Status Settle() = 0;
};

// One SST file for each batch, written outside and ingested: what the SSD tier does.
class FileLog : public Arm {
 public:
  // Adds one file of the payload's first `records` blocks.
  virtual absl::Status WriteFile(Payload& payload, uint64_t first, uint64_t records) = 0;
  // The two steps of it: a file that is not part of the log yet, and the step that makes it so.
  virtual absl::Status MakeFile(const std::string& path, Payload& payload, uint64_t first,
                                uint64_t records) = 0;
  virtual absl::Status Ingest(const std::vector<std::string>& paths) = 0;
};
// How a file that is not part of the log yet is written. Reads are always direct.
enum class FileWrites {
  kDirect,
  kCached,  // through the page cache, which is told to let go of it again as it goes
};
std::unique_ptr<FileLog> MakeFileLog(FileWrites writes, int max_open_files = -1);

// The segment file comes last.
std::vector<std::unique_ptr<Arm>> MakeArms();

}  // namespace kvtier::bench
