// Files of sorted entries in a RocksDB directory: a thin wrapper that knows nothing of records.
//
// Each AddFile makes one SST file, which is complete and on the medium when it returns, or not
// there at all. Files never overlap, so RocksDB has nothing to compact, and nothing goes through
// its log or memtable. All calls block on I/O.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"

namespace rocksdb {
class DB;
class Env;
class FileSystem;
struct Options;
}  // namespace rocksdb

namespace kvtier {

class StagedFileSystem;
class ThreadPool;

struct RocksdbStoreOptions {
  std::string directory;
  bool direct_io = false;                            // the filesystem must be able to
  std::shared_ptr<rocksdb::FileSystem> file_system;  // null: the operating system's
};

struct StoreFile {
  std::string smallest_key;
  std::string largest_key;
  uint64_t bytes = 0;  // on disk, in whole blocks of 4 KiB
};

// Bytes on disk of a file of this length.
inline constexpr uint64_t DiskBytes(uint64_t bytes) { return (bytes + 4095) / 4096 * 4096; }

// Thread-safe: any number of readers, and one caller of the others at a time.
class RocksdbStore {
 public:
  // Creates the directory's database when there is none. DATA_LOSS: it is damaged beyond use, and
  // starting anew is the only way; FAILED_PRECONDITION: another process has it; RESOURCE_EXHAUSTED:
  // the disk is full, or this user's quota of it; UNAVAILABLE: anything else, with the path.
  // Unreadable SST files are no error.
  static absl::StatusOr<std::unique_ptr<RocksdbStore>> Open(const RocksdbStoreOptions& options);
  // Writes nothing into the directory, and does not care who else has it open. The store is
  // stopped() from the start. NOT_FOUND: there is no database; else as Open.
  static absl::StatusOr<std::unique_ptr<RocksdbStore>> OpenReadOnly(
      const RocksdbStoreOptions& options);
  ~RocksdbStore();

  std::vector<StoreFile> Files() const;  // in the order of their keys

  struct KeyRange {
    std::string first;
    std::string end;  // not part of it
  };
  // Two values that are read together: what it takes to know that the other is the right one, and
  // that one, which is not copied more than RocksDB does.
  struct Pair {
    std::string key;  // above the one before, and none begins with another
    std::string_view head;
    std::string_view body;  // both valid until the next pair is asked for
  };
  struct NewFile {
    std::string begin_key;  // below all pairs; has an empty value, and is the file's smallest
    std::string end_key;    // above all pairs, likewise; empty when there are none
    size_t pairs = 0;
    std::function<Pair(size_t)> pair;
    uint64_t largest_pair_bytes = 0;
    std::string list;  // kept in the file's properties: ReadList gets it without reading pairs
    // As by DeleteFiles, while the file is being written and before it is added.
    std::vector<KeyRange> replaced = {};
  };
  // A failed call may have added the file all the same; nothing else of it is left on disk. What
  // the file replaces may be gone.
  absl::StatusOr<StoreFile> AddFile(const NewFile& file);
  // NOT_FOUND when the file has none; DATA_LOSS when the file cannot be read; UNIMPLEMENTED when it
  // is of another format (storage/sst_tail.h).
  absl::StatusOr<std::string> ReadList(const StoreFile& file) const;
  // What `use` returned for the pair's head and body, which are valid during the call. NOT_FOUND;
  // DATA_LOSS when the file holds other bytes than were written; UNAVAILABLE when it gives none.
  using UsePair = std::function<absl::Status(std::string_view head, std::string_view body)>;
  absl::Status GetPair(std::string_view key, const UsePair& use) const;

  // Removes the files that lie within one of the ranges, in one step. Their space is back when the
  // readers that were there before have left.
  absl::Status DeleteFiles(std::span<const KeyRange> ranges);

  // Writes and removes a small file: whether the medium takes bytes at all.
  absl::Status ProbeWrite();
  // After an error that RocksDB holds on to, or when opened to read only. Reading goes on; only
  // closing and opening can help.
  bool stopped() const;

 private:
  explicit RocksdbStore(const RocksdbStoreOptions& options);
  absl::Status OpenDatabase();
  absl::Status TryToOpen();
  absl::Status TryToOpenReadOnly();
  absl::StatusOr<StoreFile> WriteStaged(const std::string& path, const NewFile& file);
  absl::StatusOr<std::string> FindList(const StoreFile& file) const;
  absl::Status SeekPair(std::string_view key, const UsePair& use) const;
  absl::Status Ingest(const std::string& path);
  std::string StagingFolder() const;
  bool RemoveStaged();
  std::string StagedPath() const;

  const RocksdbStoreOptions settings_;
  const std::shared_ptr<StagedFileSystem> file_system_;
  const std::unique_ptr<rocksdb::Env> env_;
  const std::shared_ptr<std::atomic<bool>> stopped_;
  std::unique_ptr<rocksdb::Options> options_;
  bool read_only_ = false;
  std::unique_ptr<rocksdb::DB> db_;
  std::unique_ptr<ThreadPool> remover_;
};

}  // namespace kvtier
