// Writes a file while its bytes are still being made.
//
// RocksDB writes what it has made and waits for the disk, then makes more while the disk waits.
// Here what it made is copied into a piece, and a thread writes full pieces while RocksDB makes
// the next. Pieces are few, are reused, and begin at a page, as direct I/O wants it.
#pragma once

#include <rocksdb/file_system.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "common/executor.h"
#include "common/mutex.h"

namespace kvtier {

// One file at a time, which must be gone before its WriteBehind. The file is its caller's thread's
// alone, as RocksDB's are.
class WriteBehind {
 public:
  static constexpr uint64_t kPieceBytes = uint64_t{4} << 20;
  static constexpr int kPieces = 3;  // one is filled, one is written, one is ready for either

  WriteBehind();
  // A file that is written in order, by Append only, through `file`: open for direct I/O or not,
  // and empty or with old bytes, of which none is left in the end. An error of the medium is
  // returned by the calls after it; Sync and Close return OK only when all bytes have been taken.
  // After an error nothing more is written. Nothing may be appended after Sync.
  std::unique_ptr<rocksdb::FSWritableFile> Over(std::unique_ptr<rocksdb::FSWritableFile> file);

 private:
  class File;
  using Piece = std::unique_ptr<char, decltype(&std::free)>;

  static Piece MakePiece();
  char* Take();  // waits for one
  void GiveBack(char* piece);

  std::vector<Piece> pieces_;
  Mutex mutex_;
  CondVar returned_;
  std::vector<char*> free_ KVTIER_GUARDED_BY(mutex_);
  ThreadPool disk_{1};  // the last member: the first to end
};

}  // namespace kvtier
