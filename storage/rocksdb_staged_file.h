// How the one file that is being made is written and read.
//
// Its bytes are written while RocksDB makes the next ones (storage/rocksdb_write_behind.h), and
// ingesting it reads nothing that can fail: RocksDB 7.8 reads the first and the last entry of a
// file that it ingests, and takes a read error for an empty file in one place and checks an
// assertion in the other. So what it will read is read before, where an error is an error, and
// given to it from memory.
//
// A table that the database gives up is kept as the room of the next staged file, one at a time. To
// write over it takes no new blocks from the file system and gives none back, which on a disk that
// is told of free blocks (mount option discard) takes half as long as writing them.
//
// RocksDB gets a table of the database only when its tail verifies, whenever it opens it: at the
// start, or later.
#pragma once

#include <rocksdb/file_system.h>

#include <cstdint>
#include <memory>
#include <string>

#include "common/mutex.h"
#include "storage/rocksdb_write_behind.h"

namespace kvtier {

// A file system in which the one staged file is written behind, and read from memory. One file is
// staged at a time; other calls from any thread go through.
class StagedFileSystem final : public rocksdb::FileSystemWrapper {
 public:
  StagedFileSystem(const std::shared_ptr<rocksdb::FileSystem>& base, std::string staged_path)
      : FileSystemWrapper(base),
        staged_path_(std::move(staged_path)),
        spare_path_(staged_path_ + ".spare") {}
  ~StagedFileSystem() override;
  static const char* kClassName() { return "kvtier.StagedFileSystem"; }
  const char* Name() const override { return kClassName(); }

  // Reads the start of the staged file, and all from `tail_offset` on.
  rocksdb::IOStatus Load(uint64_t tail_offset);
  // From now on a table that is given up is kept.
  void KeepTables();

  rocksdb::IOStatus NewWritableFile(const std::string& path, const rocksdb::FileOptions& options,
                                    std::unique_ptr<rocksdb::FSWritableFile>* file,
                                    rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus NewRandomAccessFile(const std::string& path,
                                        const rocksdb::FileOptions& options,
                                        std::unique_ptr<rocksdb::FSRandomAccessFile>* file,
                                        rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus DeleteFile(const std::string& path, const rocksdb::IOOptions& options,
                               rocksdb::IODebugContext* debug) override;

 private:
  struct Piece {
    uint64_t offset = 0;
    std::string bytes;
  };
  class LoadedFile;

  rocksdb::IOStatus NewStagedFile(const rocksdb::FileOptions& options,
                                  std::unique_ptr<rocksdb::FSWritableFile>* file,
                                  rocksdb::IODebugContext* debug);
  bool KeepAsSpare(const std::string& path);

  const std::string staged_path_;
  const std::string spare_path_;
  Mutex mutex_;  // held while a file takes the spare's name or gives it up
  bool keeps_tables_ KVTIER_GUARDED_BY(mutex_) = false;
  bool has_spare_ KVTIER_GUARDED_BY(mutex_) = false;
  std::unique_ptr<WriteBehind> write_behind_;  // from the first file on
  Piece start_;
  Piece tail_;
};

}  // namespace kvtier
