#include "storage/rocksdb_checked_table.h"

#include <cstdint>
#include <memory>
#include <utility>

#include "storage/sst_tail.h"

namespace kvtier {
namespace {

using rocksdb::IOStatus;

// Direct reads begin, end, and land in memory at multiples of the alignment.
absl::StatusOr<std::string> ReadAligned(const rocksdb::FSRandomAccessFile& file,
                                        const rocksdb::IOOptions& options, uint64_t offset,
                                        uint64_t bytes) {
  const uint64_t alignment = file.use_direct_io() ? file.GetRequiredBufferAlignment() : 1;
  const uint64_t begin = offset / alignment * alignment;
  const uint64_t end = (offset + bytes + alignment - 1) / alignment * alignment;
  std::string buffer(end - begin + alignment, '\0');
  void* aligned = buffer.data();
  size_t room = buffer.size();
  std::align(alignment, end - begin, aligned, room);
  rocksdb::Slice read;
  const IOStatus status =
      file.Read(begin, end - begin, options, &read, static_cast<char*>(aligned), nullptr);
  if (!status.ok()) return absl::UnavailableError(status.ToString());
  if (read.size() < offset - begin + bytes) return absl::DataLossError("the file ends early");
  return std::string(read.data() + (offset - begin), bytes);
}

IOStatus StatusOf(const absl::Status& checked, const std::string& path) {
  const std::string text(checked.message());
  if (checked.ok()) return IOStatus::OK();
  if (absl::IsDataLoss(checked)) return IOStatus::Corruption(text, path);
  if (absl::IsUnimplemented(checked)) return IOStatus::NotSupported(text, path);
  return IOStatus::IOError(text, path);
}

}  // namespace

IOStatus OpenCheckedTable(rocksdb::FileSystem* file_system, const std::string& path,
                          const rocksdb::FileOptions& options,
                          std::unique_ptr<rocksdb::FSRandomAccessFile>* file,
                          rocksdb::IODebugContext* debug) {
  uint64_t file_bytes = 0;
  std::unique_ptr<rocksdb::FSRandomAccessFile> opened;
  IOStatus status = file_system->NewRandomAccessFile(path, options, &opened, debug);
  if (status.ok()) {
    status = file_system->GetFileSize(path, options.io_options, &file_bytes, debug);
  }
  if (!status.ok()) return status;
  const auto read = [&](uint64_t offset, uint64_t bytes) {
    return ReadAligned(*opened, options.io_options, offset, bytes);
  };
  status = StatusOf(CheckSstTail(file_bytes, read), path);
  if (status.ok()) *file = std::move(opened);
  return status;
}

}  // namespace kvtier
