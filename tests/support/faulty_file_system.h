// A file system over a real one that fails, waits, lies and loses power when a test says so.
#pragma once

#include <rocksdb/file_system.h>

#include <array>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/mutex.h"
#include "tests/support/gate.h"
#include "tests/support/unsynced_files.h"

namespace kvtier {

enum class FileCall {
  kCreate,  // a file to write, new or opened again
  kOpen,    // a file to read
  kAppend,
  kSync,  // of a file
  kTruncate,
  kClose,  // of a file that was written
  kRead,
  kRename,
  kLink,
  kDelete,
  kSyncDirectory,
  kDirectory,  // create, remove, open or list one
  kOther,      // sizes, existence, the lock
};
inline constexpr int kFileCalls = static_cast<int>(FileCall::kOther) + 1;

// Thread-safe. Nothing is really synced, which is slow: the only power cuts are those of a test.
// What is written past it (rocksdb's info log, std::filesystem) is not seen.
class FaultyFileSystem final : public rocksdb::FileSystemWrapper {
 public:
  explicit FaultyFileSystem(const std::shared_ptr<rocksdb::FileSystem>& base)
      : FileSystemWrapper(base), unsynced_(base.get()) {}
  const char* Name() const override { return "FaultyFileSystem"; }

  // Of the calls of these kinds from now on, the `first`-th (1 is the next) and those after it,
  // `count` in all, fail with `status`. No kinds: every call. Replaces what was said before.
  void Fail(uint64_t first, uint64_t count, rocksdb::IOStatus status,
            std::vector<FileCall> kinds = {});
  void FailNothing() { Fail(1, 0, rocksdb::IOStatus::OK()); }
  // Failures since the last Fail.
  uint64_t failures() const;

  // The next `count` reads give half of the bytes they should, and say OK.
  void ShortenReads(uint64_t count);
  // From now on this byte of the file is read with all its bits turned. `name` is without folders.
  void FlipOnRead(const std::string& name, uint64_t offset);
  void FlipNothing();

  // Each call of this kind passes here before it does anything.
  Gate& gate(FileCall kind) { return gates_[static_cast<size_t>(kind)]; }

  // Since construction, failed ones too.
  uint64_t calls(FileCall kind) const;
  uint64_t calls() const;

  // From now on remembers what is not synced, see UnsyncedFiles::Track.
  void TrackUnsynced(std::string scratch) { unsynced_.Track(std::move(scratch)); }
  // Every call fails from now on.
  void CutPower();
  // Or from the `change`-th call on that would change something; 1 is the next, 0 takes it back.
  void CutPowerAt(uint64_t change);
  bool has_power() const;
  // Once nothing has a file open: what was not synced is gone, see UnsyncedFiles::Drop.
  void RestorePower(uint64_t seed);

  rocksdb::IOStatus NewSequentialFile(const std::string& name, const rocksdb::FileOptions& options,
                                      std::unique_ptr<rocksdb::FSSequentialFile>* file,
                                      rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus NewRandomAccessFile(const std::string& name,
                                        const rocksdb::FileOptions& options,
                                        std::unique_ptr<rocksdb::FSRandomAccessFile>* file,
                                        rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus NewWritableFile(const std::string& name, const rocksdb::FileOptions& options,
                                    std::unique_ptr<rocksdb::FSWritableFile>* file,
                                    rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus ReopenWritableFile(const std::string& name, const rocksdb::FileOptions& options,
                                       std::unique_ptr<rocksdb::FSWritableFile>* file,
                                       rocksdb::IODebugContext* debug) override;
  // A power cut that brings the old name back does not bring back what was in the file.
  rocksdb::IOStatus ReuseWritableFile(const std::string& name, const std::string& old_name,
                                      const rocksdb::FileOptions& options,
                                      std::unique_ptr<rocksdb::FSWritableFile>* file,
                                      rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus NewDirectory(const std::string& name, const rocksdb::IOOptions& options,
                                 std::unique_ptr<rocksdb::FSDirectory>* directory,
                                 rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus FileExists(const std::string& name, const rocksdb::IOOptions& options,
                               rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus GetChildren(const std::string& directory, const rocksdb::IOOptions& options,
                                std::vector<std::string>* children,
                                rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus GetChildrenFileAttributes(const std::string& directory,
                                              const rocksdb::IOOptions& options,
                                              std::vector<rocksdb::FileAttributes>* children,
                                              rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus CreateDir(const std::string& name, const rocksdb::IOOptions& options,
                              rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus CreateDirIfMissing(const std::string& name, const rocksdb::IOOptions& options,
                                       rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus DeleteDir(const std::string& name, const rocksdb::IOOptions& options,
                              rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus GetFileSize(const std::string& name, const rocksdb::IOOptions& options,
                                uint64_t* bytes, rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus DeleteFile(const std::string& name, const rocksdb::IOOptions& options,
                               rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus RenameFile(const std::string& from, const std::string& to,
                               const rocksdb::IOOptions& options,
                               rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus LinkFile(const std::string& from, const std::string& to,
                             const rocksdb::IOOptions& options,
                             rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus NumFileLinks(const std::string& name, const rocksdb::IOOptions& options,
                                 uint64_t* links, rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus LockFile(const std::string& name, const rocksdb::IOOptions& options,
                             rocksdb::FileLock** lock, rocksdb::IODebugContext* debug) override;

 private:
  class SequentialFile;
  class RandomAccessFile;
  class WritableFile;
  class Directory;

  // What each call does first.
  rocksdb::IOStatus Enter(FileCall kind);
  // Makes of what was read what the caller shall see.
  void Distort(const std::string& name, uint64_t offset, char* scratch, rocksdb::Slice* result);

  UnsyncedFiles unsynced_;
  std::array<Gate, kFileCalls> gates_;
  mutable Mutex mutex_;
  std::array<uint64_t, kFileCalls> calls_ KVTIER_GUARDED_BY(mutex_) = {};
  uint64_t failing_first_ KVTIER_GUARDED_BY(mutex_) = 1;
  uint64_t failing_count_ KVTIER_GUARDED_BY(mutex_) = 0;
  std::array<bool, kFileCalls> failing_kinds_ KVTIER_GUARDED_BY(mutex_) = {};
  rocksdb::IOStatus failing_with_ KVTIER_GUARDED_BY(mutex_);
  uint64_t candidates_ KVTIER_GUARDED_BY(mutex_) = 0;  // calls that could have failed
  uint64_t failures_ KVTIER_GUARDED_BY(mutex_) = 0;
  uint64_t short_reads_ KVTIER_GUARDED_BY(mutex_) = 0;
  std::map<std::string, std::vector<uint64_t>> flips_ KVTIER_GUARDED_BY(mutex_);

  bool has_power_ KVTIER_GUARDED_BY(mutex_) = true;
  uint64_t changes_to_cut_ KVTIER_GUARDED_BY(mutex_) = 0;  // 0: no cut is planned
};

}  // namespace kvtier
