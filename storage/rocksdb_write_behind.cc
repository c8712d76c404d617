#include "storage/rocksdb_write_behind.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/check.h"

namespace kvtier {

using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;
using rocksdb::Slice;

namespace {

constexpr uint64_t kPageBytes = 4096;
constexpr uint64_t kHugePageBytes = uint64_t{2} << 20;

}  // namespace

// Of huge pages where the kernel has them: direct I/O looks up every page. Touched here, so that
// no write pays for fresh ones.
WriteBehind::Piece WriteBehind::MakePiece() {
  Piece piece(static_cast<char*>(std::aligned_alloc(kHugePageBytes, kPieceBytes)), &std::free);
  KVTIER_CHECK(piece != nullptr);
  ::madvise(piece.get(), kPieceBytes, MADV_HUGEPAGE);
  std::memset(piece.get(), 0, kPieceBytes);
  return piece;
}

class WriteBehind::File final : public rocksdb::FSWritableFile {
 public:
  File(WriteBehind* owner, std::unique_ptr<rocksdb::FSWritableFile> file)
      : owner_(owner), file_(std::move(file)) {}
  ~File() override {
    owner_->disk_.WaitIdle();
    if (piece_ != nullptr) owner_->GiveBack(piece_);
  }

  using FSWritableFile::Append;
  IOStatus Append(const Slice& data, const IOOptions& /*options*/,
                  IODebugContext* /*debug*/) override {
    KVTIER_CHECK(!complete_);
    for (size_t at = 0; at < data.size();) {
      if (piece_ == nullptr) piece_ = owner_->Take();
      const size_t bytes = std::min<size_t>(kPieceBytes - filled_, data.size() - at);
      std::memcpy(piece_ + filled_, data.data() + at, bytes);
      at += bytes;
      filled_ += bytes;
      if (filled_ == kPieceBytes) WritePiece();
    }
    return error();
  }
  IOStatus Flush(const IOOptions& /*options*/, IODebugContext* /*debug*/) override {
    return error();
  }
  IOStatus Sync(const IOOptions& options, IODebugContext* debug) override {
    IOStatus status = Complete(options, debug);
    if (status.ok()) status = file_->Sync(options, debug);
    return Keep(status);
  }
  IOStatus Fsync(const IOOptions& options, IODebugContext* debug) override {
    IOStatus status = Complete(options, debug);
    if (status.ok()) status = file_->Fsync(options, debug);
    return Keep(status);
  }
  // The file below is closed in any case.
  IOStatus Close(const IOOptions& options, IODebugContext* debug) override {
    const IOStatus status = Complete(options, debug);
    const IOStatus closed = file_->Close(options, debug);
    return status.ok() ? closed : status;
  }
  uint64_t GetFileSize(const IOOptions& /*options*/, IODebugContext* /*debug*/) override {
    return written_ + filled_;
  }

 private:
  IOStatus error() const {
    MutexLock lock(mutex_);
    return error_;
  }
  // The first error is the one that counts.
  IOStatus Keep(const IOStatus& status) {
    MutexLock lock(mutex_);
    if (error_.ok()) error_ = status;
    return error_;
  }

  // Hands over a full piece.
  void WritePiece() {
    owner_->disk_.Run([this, piece = piece_, offset = written_] {
      Write(piece, kPieceBytes, offset);
      owner_->GiveBack(piece);
    });
    written_ += kPieceBytes;
    filled_ = 0;
    piece_ = nullptr;
  }
  void Write(const char* from, uint64_t bytes, uint64_t offset) {
    if (!error().ok()) return;
    Keep(file_->PositionedAppend(Slice(from, bytes), offset, IOOptions(), nullptr));
  }

  // All that was appended is the file's, and no byte more. The rest is written here, in whole
  // pages: the caller waits anyway, and a small file needs no other thread.
  IOStatus Complete(const IOOptions& options, IODebugContext* debug) {
    owner_->disk_.WaitIdle();
    if (std::exchange(complete_, true)) return error();
    if (filled_ > 0) WriteRest();
    const IOStatus status = error();
    return status.ok() ? Keep(file_->Truncate(written_, options, debug)) : status;
  }
  void WriteRest() {
    const uint64_t bytes = (filled_ + kPageBytes - 1) / kPageBytes * kPageBytes;
    std::memset(piece_ + filled_, 0, bytes - filled_);
    Write(piece_, bytes, written_);
    written_ += std::exchange(filled_, 0);
  }

  WriteBehind* const owner_;
  const std::unique_ptr<rocksdb::FSWritableFile> file_;
  char* piece_ = nullptr;  // being filled
  uint64_t filled_ = 0;
  uint64_t written_ = 0;  // or handed over
  bool complete_ = false;
  mutable Mutex mutex_;
  IOStatus error_ KVTIER_GUARDED_BY(mutex_);
};

WriteBehind::WriteBehind() {
  for (int i = 0; i < kPieces; ++i) {
    pieces_.push_back(MakePiece());
    free_.push_back(pieces_.back().get());
  }
}

std::unique_ptr<rocksdb::FSWritableFile> WriteBehind::Over(
    std::unique_ptr<rocksdb::FSWritableFile> file) {
  return std::make_unique<File>(this, std::move(file));
}

char* WriteBehind::Take() {
  MutexLock lock(mutex_);
  while (free_.empty()) returned_.Wait(mutex_);
  char* const piece = free_.back();
  free_.pop_back();
  return piece;
}

void WriteBehind::GiveBack(char* piece) {
  MutexLock lock(mutex_);
  free_.push_back(piece);
  returned_.NotifyOne();
}

}  // namespace kvtier
