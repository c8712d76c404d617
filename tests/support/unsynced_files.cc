#include "tests/support/unsynced_files.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace kvtier {

using rocksdb::IOOptions;
using rocksdb::IOStatus;

namespace {

// RocksDB joins some paths with two slashes.
std::string Plain(const std::string& path) {
  return std::filesystem::path(path).lexically_normal().string();
}

std::string DirectoryOf(const std::string& path) {
  return std::filesystem::path(path).parent_path().string();
}

uint64_t UpTo(uint64_t most, std::mt19937_64& random) {
  return std::uniform_int_distribution<uint64_t>(0, most)(random);
}

}  // namespace

void UnsyncedFiles::Track(std::string scratch) {
  MutexLock lock(mutex_);
  scratch_ = std::move(scratch);
}

IOStatus UnsyncedFiles::Change(const std::string& to, const std::string& from,
                               const std::function<IOStatus()>& change) {
  const Unsynced kept = KeepBefore(Plain(to), from.empty() ? from : Plain(from));
  const IOStatus status = change();
  MutexLock lock(mutex_);
  if (scratch_.empty()) return status;
  if (!status.ok()) {
    if (!kept.before.empty()) Delete(kept.before);
    return status;
  }
  files_.erase(kept.to);
  if (!kept.from.empty() && !IsFile(kept.to)) {
    FolderMovedLocked(kept.from);
    return status;
  }
  if (!kept.from.empty()) MoveLocked(kept.from, kept.to);
  changes_.push_back(kept);
  return status;
}

UnsyncedFiles::Unsynced UnsyncedFiles::KeepBefore(const std::string& to, const std::string& from) {
  Unsynced change{DirectoryOf(to), to, from, "", nullptr};
  MutexLock lock(mutex_);
  if (scratch_.empty() || !IsFile(to)) return change;
  change.before = absl::StrCat(scratch_, "/", next_kept_++);
  const auto file = files_.find(to);
  if (file != files_.end()) change.file = file->second;
  KVTIER_CHECK(medium_->LinkFile(to, change.before, IOOptions(), nullptr).ok());
  return change;
}

void UnsyncedFiles::DirectorySynced(const std::string& directory) {
  const std::string plain = Plain(directory + "/.");
  MutexLock lock(mutex_);
  std::vector<Unsynced> left;
  for (Unsynced& change : changes_) {
    if (change.directory + "/" != plain) {
      left.push_back(std::move(change));
    } else if (!change.before.empty()) {
      Delete(change.before);
    }
  }
  changes_ = std::move(left);
}

UnsyncedFiles::FilePtr UnsyncedFiles::Created(const std::string& name) {
  MutexLock lock(mutex_);
  if (scratch_.empty()) return nullptr;
  return files_[Plain(name)] = std::make_shared<File>();
}

UnsyncedFiles::FilePtr UnsyncedFiles::Opened(const std::string& name) {
  MutexLock lock(mutex_);
  if (scratch_.empty()) return nullptr;
  FilePtr& file = files_[Plain(name)];
  if (file == nullptr) {
    uint64_t bytes = 0;
    KVTIER_CHECK(medium_->GetFileSize(name, IOOptions(), &bytes, nullptr).ok());
    file = std::make_shared<File>(File{bytes, bytes});
  }
  return file;
}

void UnsyncedFiles::Linked(const std::string& from, const std::string& to) {
  MutexLock lock(mutex_);
  const auto file = files_.find(Plain(from));
  if (file != files_.end()) files_[Plain(to)] = file->second;
}

uint64_t UnsyncedFiles::NamesOf(const std::string& name) const {
  MutexLock lock(mutex_);
  const auto file = files_.find(Plain(name));
  if (file == files_.end()) return 1;
  return std::count_if(files_.begin(), files_.end(),
                       [&file](const auto& other) { return other.second == file->second; });
}

void UnsyncedFiles::SetBytes(const FilePtr& file, uint64_t bytes) {
  if (file == nullptr) return;
  MutexLock lock(mutex_);
  file->bytes = bytes;
  file->synced_bytes = std::min(file->synced_bytes, bytes);
}

void UnsyncedFiles::Grow(const FilePtr& file, uint64_t to_bytes) {
  if (file == nullptr) return;
  MutexLock lock(mutex_);
  file->bytes = std::max(file->bytes, to_bytes);
}

uint64_t UnsyncedFiles::BytesOf(const FilePtr& file) const {
  if (file == nullptr) return 0;
  MutexLock lock(mutex_);
  return file->bytes;
}

void UnsyncedFiles::Synced(const FilePtr& file) {
  if (file == nullptr) return;
  MutexLock lock(mutex_);
  file->synced_bytes = file->bytes;
}

void UnsyncedFiles::Drop(uint64_t seed) {
  std::mt19937_64 random(seed);
  MutexLock lock(mutex_);
  DropChangesLocked(random);
  TearTailsLocked(random);
  changes_.clear();
  files_.clear();
}

// Of each folder the newest changes are undone, newest first.
void UnsyncedFiles::DropChangesLocked(std::mt19937_64& random) {
  std::map<std::string, uint64_t> surviving;
  for (const Unsynced& change : changes_) ++surviving[change.directory];
  for (auto& [directory, count] : surviving) count = UpTo(count, random);
  std::vector<const Unsynced*> lost;
  for (const Unsynced& change : changes_) {
    uint64_t& left = surviving[change.directory];
    if (left == 0) {
      lost.push_back(&change);
    } else {
      --left;
      if (!change.before.empty()) Delete(change.before);
    }
  }
  for (auto change = lost.rbegin(); change != lost.rend(); ++change) UndoLocked(**change);
}

void UnsyncedFiles::UndoLocked(const Unsynced& change) {
  if (!change.from.empty()) {
    KVTIER_CHECK(medium_->RenameFile(change.to, change.from, IOOptions(), nullptr).ok());
    MoveLocked(change.to, change.from);
  } else {
    if (IsFile(change.to)) Delete(change.to);
    files_.erase(change.to);
  }
  if (change.before.empty()) return;
  KVTIER_CHECK(medium_->RenameFile(change.before, change.to, IOOptions(), nullptr).ok());
  if (change.file != nullptr) files_[change.to] = change.file;
}

void UnsyncedFiles::TearTailsLocked(std::mt19937_64& random) {
  std::set<FilePtr> torn;
  for (const auto& [name, file] : files_) {
    if (file->synced_bytes < file->bytes && torn.insert(file).second && IsFile(name)) {
      TearTail(name, *file, random);
    }
  }
}

void UnsyncedFiles::TearTail(const std::string& name, const File& file, std::mt19937_64& random) {
  const uint64_t tail = file.bytes - file.synced_bytes;
  const uint64_t kept = UpTo(1, random) == 0 ? 0 : UpTo(tail, random);
  std::filesystem::resize_file(name, file.synced_bytes + kept);
  if (kept == 0 || UpTo(1, random) == 0) return;
  std::unique_ptr<rocksdb::FSRandomRWFile> written;
  KVTIER_CHECK(medium_->NewRandomRWFile(name, rocksdb::FileOptions(), &written, nullptr).ok());
  const std::string zeros(1 + UpTo(kept - 1, random), '\0');
  const uint64_t at = file.synced_bytes + UpTo(kept - zeros.size(), random);
  KVTIER_CHECK(written->Write(at, zeros, IOOptions(), nullptr).ok());
  KVTIER_CHECK(written->Close(IOOptions(), nullptr).ok());
}

void UnsyncedFiles::MoveLocked(const std::string& from, const std::string& to) {
  const auto file = files_.find(from);
  if (file == files_.end()) return;
  files_[to] = file->second;
  files_.erase(from);
}

void UnsyncedFiles::FolderMovedLocked(const std::string& name) {
  const auto inside = [&name](const std::string& path) { return path.starts_with(name + "/"); };
  std::erase_if(files_, [&inside](const auto& file) { return inside(file.first); });
  std::erase_if(changes_, [this, &inside](const Unsynced& change) {
    if (!inside(change.to)) return false;
    if (!change.before.empty()) Delete(change.before);
    return true;
  });
}

bool UnsyncedFiles::IsFile(const std::string& name) {
  bool directory = false;
  return medium_->FileExists(name, IOOptions(), nullptr).ok() &&
         medium_->IsDirectory(name, IOOptions(), &directory, nullptr).ok() && !directory;
}

void UnsyncedFiles::Delete(const std::string& name) {
  KVTIER_CHECK(medium_->DeleteFile(name, IOOptions(), nullptr).ok());
}

}  // namespace kvtier
