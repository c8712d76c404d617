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

// Where the spare cannot be deleted the next start does it, with all that is staged.
StagedFileSystem::~StagedFileSystem() {
  MutexLock lock(mutex_);
  if (has_spare_) target()->DeleteFile(spare_path_, rocksdb::IOOptions(), nullptr);
}

void StagedFileSystem::KeepTables() {
  MutexLock lock(mutex_);
  keeps_tables_ = true;
}

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
  if (path != staged_path_) return target()->NewWritableFile(path, options, file, debug);
  IOStatus status = NewStagedFile(options, file, debug);
  if (!status.ok()) return status;
  if (write_behind_ == nullptr) write_behind_ = std::make_unique<WriteBehind>();
  *file = write_behind_->Over(std::move(*file));
  return status;
}

IOStatus StagedFileSystem::NewStagedFile(const rocksdb::FileOptions& options,
                                         std::unique_ptr<rocksdb::FSWritableFile>* file,
                                         rocksdb::IODebugContext* debug) {
  MutexLock lock(mutex_);
  if (std::exchange(has_spare_, false) &&
      target()->ReuseWritableFile(staged_path_, spare_path_, options, file, debug).ok()) {
    return IOStatus::OK();
  }
  return target()->NewWritableFile(staged_path_, options, file, debug);
}

// RocksDB deletes a table when nobody reads it any more, and when the list of tables without it is
// synced: after a power cut an old name of it is deleted, whatever the file holds.
IOStatus StagedFileSystem::DeleteFile(const std::string& path, const rocksdb::IOOptions& options,
                                      rocksdb::IODebugContext* debug) {
  if (path != staged_path_ && path.ends_with(".sst") && KeepAsSpare(path)) return IOStatus::OK();
  return target()->DeleteFile(path, options, debug);
}

// Not a file that somebody has linked to keep it.
bool StagedFileSystem::KeepAsSpare(const std::string& path) {
  MutexLock lock(mutex_);
  if (!keeps_tables_ || has_spare_) return false;
  const rocksdb::IOOptions options;
  uint64_t links = 0;
  if (!target()->NumFileLinks(path, options, &links, nullptr).ok() || links != 1) return false;
  has_spare_ = target()->RenameFile(path, spare_path_, options, nullptr).ok();
  return has_spare_;
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
