#include "storage/rocksdb_staged_file.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "storage/rocksdb_checked_table.h"

namespace kvtier {
namespace {

using rocksdb::IOStatus;

constexpr uint64_t kStartBytes = 4096;

IOStatus ReadPiece(rocksdb::FSRandomAccessFile* file, uint64_t offset, uint64_t bytes,
                   std::string* to) {
  to->resize(bytes);
  rocksdb::Slice read;
  IOStatus status =
      file->Read(offset, bytes, rocksdb::IOOptions(), &read, to->data(), /*dbg=*/nullptr);
  if (!status.ok()) return status;
  if (read.size() != bytes) return IOStatus::IOError("the file ends early");
  if (read.data() != to->data()) to->assign(read.data(), read.size());
  return status;
}

}  // namespace

class StagedFileSystem::LoadedFile final : public rocksdb::FSRandomAccessFileOwnerWrapper {
 public:
  LoadedFile(std::unique_ptr<rocksdb::FSRandomAccessFile> file, const StagedFileSystem& loaded)
      : FSRandomAccessFileOwnerWrapper(std::move(file)), loaded_(loaded) {}
  IOStatus Read(uint64_t offset, size_t bytes, const rocksdb::IOOptions& options,
                rocksdb::Slice* result, char* scratch,
                rocksdb::IODebugContext* debug) const override {
    for (const Piece* piece : {&loaded_.start_, &loaded_.tail_}) {
      if (offset < piece->offset || offset + bytes > piece->offset + piece->bytes.size()) continue;
      std::memcpy(scratch, piece->bytes.data() + (offset - piece->offset), bytes);
      *result = rocksdb::Slice(scratch, bytes);
      return IOStatus::OK();
    }
    return FSRandomAccessFileOwnerWrapper::Read(offset, bytes, options, result, scratch, debug);
  }

 private:
  const StagedFileSystem& loaded_;
};

// Through the page cache, which needs no alignment: these are few bytes.
IOStatus StagedFileSystem::Load(uint64_t tail_offset) {
  const rocksdb::FileOptions buffered;
  uint64_t size = 0;
  IOStatus status = target()->GetFileSize(staged_path_, buffered.io_options, &size, nullptr);
  std::unique_ptr<rocksdb::FSRandomAccessFile> file;
  if (status.ok()) status = target()->NewRandomAccessFile(staged_path_, buffered, &file, nullptr);
  if (!status.ok()) return status;
  tail_.offset = std::min(tail_offset, size);
  status = ReadPiece(file.get(), 0, std::min(kStartBytes, size), &start_.bytes);
  if (!status.ok()) return status;
  return ReadPiece(file.get(), tail_.offset, size - tail_.offset, &tail_.bytes);
}

IOStatus StagedFileSystem::NewWritableFile(const std::string& path,
                                           const rocksdb::FileOptions& options,
                                           std::unique_ptr<rocksdb::FSWritableFile>* file,
                                           rocksdb::IODebugContext* debug) {
  IOStatus status = target()->NewWritableFile(path, options, file, debug);
  if (!status.ok() || path != staged_path_) return status;
  if (write_behind_ == nullptr) write_behind_ = std::make_unique<WriteBehind>();
  *file = write_behind_->Over(std::move(*file));
  return status;
}

IOStatus StagedFileSystem::NewRandomAccessFile(const std::string& path,
                                               const rocksdb::FileOptions& options,
                                               std::unique_ptr<rocksdb::FSRandomAccessFile>* file,
                                               rocksdb::IODebugContext* debug) {
  if (path != staged_path_) {
    return path.ends_with(".sst") ? OpenCheckedTable(target(), path, options, file, debug)
                                  : target()->NewRandomAccessFile(path, options, file, debug);
  }
  rocksdb::FileOptions buffered = options;
  buffered.use_direct_reads = false;
  std::unique_ptr<rocksdb::FSRandomAccessFile> opened;
  IOStatus status = target()->NewRandomAccessFile(path, buffered, &opened, debug);
  if (status.ok()) *file = std::make_unique<LoadedFile>(std::move(opened), *this);
  return status;
}

}  // namespace kvtier
