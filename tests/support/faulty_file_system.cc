#include "tests/support/faulty_file_system.h"

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <utility>

namespace kvtier {

using rocksdb::FileOptions;
using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;
using rocksdb::Slice;

namespace {

bool IsChange(FileCall kind) {
  switch (kind) {
    case FileCall::kCreate:
    case FileCall::kAppend:
    case FileCall::kSync:
    case FileCall::kTruncate:
    case FileCall::kRename:
    case FileCall::kLink:
    case FileCall::kDelete:
    case FileCall::kSyncDirectory:
      return true;
    default:
      return false;
  }
}

std::string BaseName(const std::string& path) {
  return std::filesystem::path(path).filename().string();
}

}  // namespace

class FaultyFileSystem::SequentialFile final : public rocksdb::FSSequentialFileOwnerWrapper {
 public:
  SequentialFile(FaultyFileSystem* fs, const std::string& name,
                 std::unique_ptr<rocksdb::FSSequentialFile> file)
      : FSSequentialFileOwnerWrapper(std::move(file)), fs_(fs), name_(BaseName(name)) {}

  IOStatus Read(size_t bytes, const IOOptions& options, Slice* result, char* scratch,
                IODebugContext* debug) override {
    IOStatus status = fs_->Enter(FileCall::kRead);
    if (!status.ok()) return status;
    status = FSSequentialFileOwnerWrapper::Read(bytes, options, result, scratch, debug);
    if (!status.ok()) return status;
    fs_->Distort(name_, offset_, scratch, result);
    offset_ += result->size();
    return status;
  }
  IOStatus PositionedRead(uint64_t offset, size_t bytes, const IOOptions& options, Slice* result,
                          char* scratch, IODebugContext* debug) override {
    IOStatus status = fs_->Enter(FileCall::kRead);
    if (!status.ok()) return status;
    status = FSSequentialFileOwnerWrapper::PositionedRead(offset, bytes, options, result, scratch,
                                                          debug);
    if (status.ok()) fs_->Distort(name_, offset, scratch, result);
    return status;
  }
  IOStatus Skip(uint64_t bytes) override {
    offset_ += bytes;
    return FSSequentialFileOwnerWrapper::Skip(bytes);
  }

 private:
  FaultyFileSystem* const fs_;
  const std::string name_;
  uint64_t offset_ = 0;
};

class FaultyFileSystem::RandomAccessFile final : public rocksdb::FSRandomAccessFileOwnerWrapper {
 public:
  RandomAccessFile(FaultyFileSystem* fs, const std::string& name,
                   std::unique_ptr<rocksdb::FSRandomAccessFile> file)
      : FSRandomAccessFileOwnerWrapper(std::move(file)), fs_(fs), name_(BaseName(name)) {}

  IOStatus Read(uint64_t offset, size_t bytes, const IOOptions& options, Slice* result,
                char* scratch, IODebugContext* debug) const override {
    IOStatus status = fs_->Enter(FileCall::kRead);
    if (!status.ok()) return status;
    status = FSRandomAccessFileOwnerWrapper::Read(offset, bytes, options, result, scratch, debug);
    if (status.ok()) fs_->Distort(name_, offset, scratch, result);
    return status;
  }
  IOStatus MultiRead(rocksdb::FSReadRequest* requests, size_t count, const IOOptions& options,
                     IODebugContext* debug) override {
    for (size_t i = 0; i < count; ++i) {
      rocksdb::FSReadRequest& request = requests[i];
      request.status =
          Read(request.offset, request.len, options, &request.result, request.scratch, debug);
    }
    return IOStatus::OK();
  }

 private:
  FaultyFileSystem* const fs_;
  const std::string name_;
};

class FaultyFileSystem::WritableFile final : public rocksdb::FSWritableFileOwnerWrapper {
 public:
  WritableFile(FaultyFileSystem* fs, std::unique_ptr<rocksdb::FSWritableFile> file,
               UnsyncedFiles::FilePtr state)
      : FSWritableFileOwnerWrapper(std::move(file)), fs_(fs), state_(std::move(state)) {}

  IOStatus Append(const Slice& data, const IOOptions& options, IODebugContext* debug) override {
    IOStatus status = fs_->Enter(FileCall::kAppend);
    if (status.ok()) status = FSWritableFileOwnerWrapper::Append(data, options, debug);
    if (status.ok()) Grown(fs_->unsynced_.BytesOf(state_) + data.size());
    return status;
  }
  IOStatus Append(const Slice& data, const IOOptions& options,
                  const rocksdb::DataVerificationInfo& /*info*/, IODebugContext* debug) override {
    return Append(data, options, debug);
  }
  IOStatus PositionedAppend(const Slice& data, uint64_t offset, const IOOptions& options,
                            IODebugContext* debug) override {
    IOStatus status = fs_->Enter(FileCall::kAppend);
    if (status.ok()) {
      status = FSWritableFileOwnerWrapper::PositionedAppend(data, offset, options, debug);
    }
    if (status.ok()) Grown(offset + data.size());
    return status;
  }
  IOStatus PositionedAppend(const Slice& data, uint64_t offset, const IOOptions& options,
                            const rocksdb::DataVerificationInfo& /*info*/,
                            IODebugContext* debug) override {
    return PositionedAppend(data, offset, options, debug);
  }
  IOStatus Truncate(uint64_t bytes, const IOOptions& options, IODebugContext* debug) override {
    IOStatus status = fs_->Enter(FileCall::kTruncate);
    if (status.ok()) status = FSWritableFileOwnerWrapper::Truncate(bytes, options, debug);
    if (status.ok()) fs_->unsynced_.SetBytes(state_, bytes);
    return status;
  }
  IOStatus Sync(const IOOptions& /*options*/, IODebugContext* /*debug*/) override {
    const IOStatus status = fs_->Enter(FileCall::kSync);
    if (status.ok()) fs_->unsynced_.Synced(state_);
    return status;
  }
  IOStatus Fsync(const IOOptions& options, IODebugContext* debug) override {
    return Sync(options, debug);
  }
  // Closes the file in any case: only the caller is told otherwise.
  IOStatus Close(const IOOptions& options, IODebugContext* debug) override {
    const IOStatus status = fs_->Enter(FileCall::kClose);
    const IOStatus closed = FSWritableFileOwnerWrapper::Close(options, debug);
    return status.ok() ? closed : status;
  }

 private:
  void Grown(uint64_t bytes) { fs_->unsynced_.Grow(state_, bytes); }

  FaultyFileSystem* const fs_;
  const UnsyncedFiles::FilePtr state_;
};

class FaultyFileSystem::Directory final : public rocksdb::FSDirectoryWrapper {
 public:
  Directory(FaultyFileSystem* fs, const std::string& name,
            std::unique_ptr<rocksdb::FSDirectory> directory)
      : FSDirectoryWrapper(std::move(directory)), fs_(fs), name_(name) {}

  IOStatus Fsync(const IOOptions& /*options*/, IODebugContext* /*debug*/) override {
    const IOStatus status = fs_->Enter(FileCall::kSyncDirectory);
    if (status.ok()) fs_->unsynced_.DirectorySynced(name_);
    return status;
  }
  IOStatus FsyncWithDirOptions(const IOOptions& options, IODebugContext* debug,
                               const rocksdb::DirFsyncOptions& /*what*/) override {
    return Fsync(options, debug);
  }

 private:
  FaultyFileSystem* const fs_;
  const std::string name_;
};

void FaultyFileSystem::Fail(uint64_t first, uint64_t count, IOStatus status,
                            std::vector<FileCall> kinds) {
  MutexLock lock(mutex_);
  failing_first_ = first;
  failing_count_ = count;
  failing_with_ = std::move(status);
  failing_kinds_.fill(kinds.empty());
  for (const FileCall kind : kinds) failing_kinds_[static_cast<size_t>(kind)] = true;
  candidates_ = 0;
  failures_ = 0;
}

uint64_t FaultyFileSystem::failures() const {
  MutexLock lock(mutex_);
  return failures_;
}

void FaultyFileSystem::ShortenReads(uint64_t count) {
  MutexLock lock(mutex_);
  short_reads_ = count;
}

void FaultyFileSystem::FlipOnRead(const std::string& name, uint64_t offset) {
  MutexLock lock(mutex_);
  flips_[name].push_back(offset);
}

void FaultyFileSystem::FlipNothing() {
  MutexLock lock(mutex_);
  flips_.clear();
}

uint64_t FaultyFileSystem::calls(FileCall kind) const {
  MutexLock lock(mutex_);
  return calls_[static_cast<size_t>(kind)];
}

uint64_t FaultyFileSystem::calls() const {
  MutexLock lock(mutex_);
  return std::accumulate(calls_.begin(), calls_.end(), uint64_t{0});
}

void FaultyFileSystem::CutPower() {
  MutexLock lock(mutex_);
  has_power_ = false;
}

void FaultyFileSystem::CutPowerAt(uint64_t change) {
  MutexLock lock(mutex_);
  changes_to_cut_ = change;
}

bool FaultyFileSystem::has_power() const {
  MutexLock lock(mutex_);
  return has_power_;
}

void FaultyFileSystem::RestorePower(uint64_t seed) {
  unsynced_.Drop(seed);
  MutexLock lock(mutex_);
  has_power_ = true;
  changes_to_cut_ = 0;
}

IOStatus FaultyFileSystem::Enter(FileCall kind) {
  gate(kind).Pass();
  MutexLock lock(mutex_);
  ++calls_[static_cast<size_t>(kind)];
  if (IsChange(kind) && changes_to_cut_ > 0 && --changes_to_cut_ == 0) has_power_ = false;
  if (!has_power_) return IOStatus::IOError("faulty file system: no power");
  if (!failing_kinds_[static_cast<size_t>(kind)]) return IOStatus::OK();
  ++candidates_;
  if (candidates_ < failing_first_ || candidates_ - failing_first_ >= failing_count_) {
    return IOStatus::OK();
  }
  ++failures_;
  return failing_with_;
}

void FaultyFileSystem::Distort(const std::string& name, uint64_t offset, char* scratch,
                               Slice* result) {
  MutexLock lock(mutex_);
  if (short_reads_ > 0) {
    --short_reads_;
    *result = Slice(result->data(), result->size() / 2);
  }
  const auto flips = flips_.find(name);
  if (flips == flips_.end()) return;
  for (const uint64_t at : flips->second) {
    if (at < offset || at - offset >= result->size()) continue;
    if (result->data() != scratch) {
      std::copy_n(result->data(), result->size(), scratch);
      *result = Slice(scratch, result->size());
    }
    scratch[at - offset] = static_cast<char>(~scratch[at - offset]);
  }
}

IOStatus FaultyFileSystem::NewSequentialFile(const std::string& name, const FileOptions& options,
                                             std::unique_ptr<rocksdb::FSSequentialFile>* file,
                                             IODebugContext* debug) {
  IOStatus status = Enter(FileCall::kOpen);
  if (status.ok()) status = target()->NewSequentialFile(name, options, file, debug);
  if (status.ok()) *file = std::make_unique<SequentialFile>(this, name, std::move(*file));
  return status;
}

IOStatus FaultyFileSystem::NewRandomAccessFile(const std::string& name, const FileOptions& options,
                                               std::unique_ptr<rocksdb::FSRandomAccessFile>* file,
                                               IODebugContext* debug) {
  IOStatus status = Enter(FileCall::kOpen);
  if (status.ok()) status = target()->NewRandomAccessFile(name, options, file, debug);
  if (status.ok()) *file = std::make_unique<RandomAccessFile>(this, name, std::move(*file));
  return status;
}

// A file that was there goes first, so that a power cut can bring it back.
IOStatus FaultyFileSystem::NewWritableFile(const std::string& name, const FileOptions& options,
                                           std::unique_ptr<rocksdb::FSWritableFile>* file,
                                           IODebugContext* debug) {
  IOStatus status = Enter(FileCall::kCreate);
  if (!status.ok()) return status;
  if (target()->FileExists(name, IOOptions(), debug).ok()) {
    status =
        unsynced_.Change(name, "", [&] { return target()->DeleteFile(name, IOOptions(), debug); });
    if (!status.ok()) return status;
  }
  status = unsynced_.Change(name, "",
                            [&] { return target()->NewWritableFile(name, options, file, debug); });
  if (!status.ok()) return status;
  *file = std::make_unique<WritableFile>(this, std::move(*file), unsynced_.Created(name));
  return status;
}

IOStatus FaultyFileSystem::ReopenWritableFile(const std::string& name, const FileOptions& options,
                                              std::unique_ptr<rocksdb::FSWritableFile>* file,
                                              IODebugContext* debug) {
  if (!target()->FileExists(name, IOOptions(), debug).ok()) {
    return NewWritableFile(name, options, file, debug);
  }
  IOStatus status = Enter(FileCall::kCreate);
  if (status.ok()) status = target()->ReopenWritableFile(name, options, file, debug);
  if (!status.ok()) return status;
  *file = std::make_unique<WritableFile>(this, std::move(*file), unsynced_.Opened(name));
  return status;
}

IOStatus FaultyFileSystem::ReuseWritableFile(const std::string& name, const std::string& old_name,
                                             const FileOptions& options,
                                             std::unique_ptr<rocksdb::FSWritableFile>* file,
                                             IODebugContext* debug) {
  IOStatus status = Enter(FileCall::kCreate);
  if (!status.ok()) return status;
  status = unsynced_.Change(name, old_name, [&] {
    return target()->ReuseWritableFile(name, old_name, options, file, debug);
  });
  if (!status.ok()) return status;
  *file = std::make_unique<WritableFile>(this, std::move(*file), unsynced_.Created(name));
  return status;
}

IOStatus FaultyFileSystem::NewDirectory(const std::string& name, const IOOptions& options,
                                        std::unique_ptr<rocksdb::FSDirectory>* directory,
                                        IODebugContext* debug) {
  IOStatus status = Enter(FileCall::kDirectory);
  if (status.ok()) status = target()->NewDirectory(name, options, directory, debug);
  if (status.ok()) *directory = std::make_unique<Directory>(this, name, std::move(*directory));
  return status;
}

IOStatus FaultyFileSystem::FileExists(const std::string& name, const IOOptions& options,
                                      IODebugContext* debug) {
  const IOStatus status = Enter(FileCall::kOther);
  return status.ok() ? target()->FileExists(name, options, debug) : status;
}

IOStatus FaultyFileSystem::GetFileSize(const std::string& name, const IOOptions& options,
                                       uint64_t* bytes, IODebugContext* debug) {
  const IOStatus status = Enter(FileCall::kOther);
  return status.ok() ? target()->GetFileSize(name, options, bytes, debug) : status;
}

IOStatus FaultyFileSystem::NumFileLinks(const std::string& name, const IOOptions& /*options*/,
                                        uint64_t* links, IODebugContext* /*debug*/) {
  *links = unsynced_.NamesOf(name);
  return Enter(FileCall::kOther);
}

IOStatus FaultyFileSystem::LockFile(const std::string& name, const IOOptions& options,
                                    rocksdb::FileLock** lock, IODebugContext* debug) {
  const IOStatus status = Enter(FileCall::kOther);
  return status.ok() ? target()->LockFile(name, options, lock, debug) : status;
}

IOStatus FaultyFileSystem::GetChildren(const std::string& directory, const IOOptions& options,
                                       std::vector<std::string>* children, IODebugContext* debug) {
  const IOStatus status = Enter(FileCall::kDirectory);
  return status.ok() ? target()->GetChildren(directory, options, children, debug) : status;
}

IOStatus FaultyFileSystem::GetChildrenFileAttributes(const std::string& directory,
                                                     const IOOptions& options,
                                                     std::vector<rocksdb::FileAttributes>* children,
                                                     IODebugContext* debug) {
  const IOStatus status = Enter(FileCall::kDirectory);
  return status.ok() ? target()->GetChildrenFileAttributes(directory, options, children, debug)
                     : status;
}

IOStatus FaultyFileSystem::CreateDir(const std::string& name, const IOOptions& options,
                                     IODebugContext* debug) {
  const IOStatus status = Enter(FileCall::kDirectory);
  return status.ok() ? target()->CreateDir(name, options, debug) : status;
}

IOStatus FaultyFileSystem::CreateDirIfMissing(const std::string& name, const IOOptions& options,
                                              IODebugContext* debug) {
  const IOStatus status = Enter(FileCall::kDirectory);
  return status.ok() ? target()->CreateDirIfMissing(name, options, debug) : status;
}

IOStatus FaultyFileSystem::DeleteDir(const std::string& name, const IOOptions& options,
                                     IODebugContext* debug) {
  const IOStatus status = Enter(FileCall::kDirectory);
  return status.ok() ? target()->DeleteDir(name, options, debug) : status;
}

IOStatus FaultyFileSystem::DeleteFile(const std::string& name, const IOOptions& options,
                                      IODebugContext* debug) {
  const IOStatus status = Enter(FileCall::kDelete);
  if (!status.ok()) return status;
  return unsynced_.Change(name, "", [&] { return target()->DeleteFile(name, options, debug); });
}

IOStatus FaultyFileSystem::RenameFile(const std::string& from, const std::string& to,
                                      const IOOptions& options, IODebugContext* debug) {
  const IOStatus status = Enter(FileCall::kRename);
  if (!status.ok()) return status;
  return unsynced_.Change(to, from, [&] { return target()->RenameFile(from, to, options, debug); });
}

IOStatus FaultyFileSystem::LinkFile(const std::string& from, const std::string& to,
                                    const IOOptions& options, IODebugContext* debug) {
  IOStatus status = Enter(FileCall::kLink);
  if (!status.ok()) return status;
  status = unsynced_.Change(to, "", [&] { return target()->LinkFile(from, to, options, debug); });
  if (status.ok()) unsynced_.Linked(from, to);
  return status;
}

}  // namespace kvtier
