// What a power cut would take away: of files the bytes, and of folders the entries, that nobody has
// synced.
#pragma once

#include <rocksdb/file_system.h>

#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "common/mutex.h"

namespace kvtier {

// Thread-safe. Folders themselves are safe as soon as they are made, and one that is renamed is
// taken for synced with all in it.
class UnsyncedFiles {
 public:
  // A file under whatever name it has. Null where nothing is tracked.
  struct File {
    uint64_t bytes = 0;
    uint64_t synced_bytes = 0;
  };
  using FilePtr = std::shared_ptr<File>;

  explicit UnsyncedFiles(rocksdb::FileSystem* medium) : medium_(medium) {}

  // From now on. `scratch` is a folder on the medium that nobody else uses: files that were
  // replaced or deleted wait there until that is synced.
  void Track(std::string scratch);

  // Does a change after which `to` names another file, or none, and for a rename `from` none.
  rocksdb::IOStatus Change(const std::string& to, const std::string& from,
                           const std::function<rocksdb::IOStatus()>& change);
  void DirectorySynced(const std::string& directory);

  FilePtr Created(const std::string& name);
  FilePtr Opened(const std::string& name);
  void Linked(const std::string& from, const std::string& to);
  // Names that the file has, without those it is kept under here.
  uint64_t NamesOf(const std::string& name) const;
  void SetBytes(const FilePtr& file, uint64_t bytes);
  void Grow(const FilePtr& file, uint64_t to_bytes);
  uint64_t BytesOf(const FilePtr& file) const;
  void Synced(const FilePtr& file);

  // Takes it away, save for what the seed lets survive: of each folder's changes the first few, of
  // each tail a part, perhaps with zeros in it. No file may be open.
  void Drop(uint64_t seed);

 private:
  // That `to` names something else than it did.
  struct Unsynced {
    std::string directory;  // of `to`
    std::string to;
    std::string from;    // of a rename
    std::string before;  // what `to` named, in the scratch folder
    FilePtr file;        // that one's bytes
  };

  // Keeps what `to` names.
  Unsynced KeepBefore(const std::string& to, const std::string& from);
  void MoveLocked(const std::string& from, const std::string& to) KVTIER_REQUIRES(mutex_);
  void UndoLocked(const Unsynced& change) KVTIER_REQUIRES(mutex_);
  void DropChangesLocked(std::mt19937_64& random) KVTIER_REQUIRES(mutex_);
  void TearTailsLocked(std::mt19937_64& random) KVTIER_REQUIRES(mutex_);
  void TearTail(const std::string& name, const File& file, std::mt19937_64& random);
  void FolderMovedLocked(const std::string& name) KVTIER_REQUIRES(mutex_);
  bool IsFile(const std::string& name);
  void Delete(const std::string& name);

  rocksdb::FileSystem* const medium_;
  mutable Mutex mutex_;
  std::string scratch_ KVTIER_GUARDED_BY(mutex_);  // empty: nothing is tracked
  uint64_t next_kept_ KVTIER_GUARDED_BY(mutex_) = 0;
  std::map<std::string, FilePtr> files_ KVTIER_GUARDED_BY(mutex_);
  std::vector<Unsynced> changes_ KVTIER_GUARDED_BY(mutex_);  // oldest first
};

}  // namespace kvtier
