// Ways to keep blocks on an SSD, measured side by side: what docs/ROCKSDB.md quotes.
//
// Each arm stores the same bytes in batches of 32 blocks, every batch on the medium before the
// next, reads them back at random past the page cache, and deletes the oldest quarter. A raw file
// read and written with O_DIRECT is the ceiling. Arms take turns within a round, and a ratio is
// taken within its round, so that a disk that others use too spoils neither side alone.
#include <fcntl.h>
#include <malloc.h>
#include <rocksdb/convenience.h>
#include <rocksdb/db.h>
#include <rocksdb/listener.h>
#include <rocksdb/sst_file_writer.h>
#include <rocksdb/table.h>
#include <rocksdb/table_properties.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/check.h"
#include "common/clock.h"
#include "common/executor.h"
#include "common/mutex.h"
#include "common/status.h"

namespace kvtier {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kPage = 4096;
constexpr uint64_t kBatch = 32;  // blocks
constexpr uint64_t kSizes[] = {64 << 10, 2 << 20};
constexpr uint64_t kReadBytes = 1024 * kMiB;  // most of one read measurement

// ---------------------------------------------------------------------- the system

class Stopwatch {
 public:
  double Seconds() const { return std::chrono::duration<double>(clock_.Now() - start_).count(); }

 private:
  SteadyClock clock_;
  TimePoint start_ = clock_.Now();
};

absl::Status SystemError(const std::string& what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", strerror(errno)));
}

absl::Status FromRocks(const rocksdb::Status& status) {
  return status.ok() ? absl::OkStatus() : absl::InternalError(status.ToString());
}

// Owns a descriptor.
class File {
 public:
  static absl::StatusOr<File> Open(const std::string& path, int flags) {
    File file;
    file.fd_ = ::open(path.c_str(), flags | O_CLOEXEC, 0644);
    if (file.fd_ < 0) return SystemError(path);
    return file;
  }
  File() = default;
  File(File&& from) noexcept : fd_(std::exchange(from.fd_, -1)) {}
  File& operator=(File&& from) noexcept {
    std::swap(fd_, from.fd_);
    return *this;
  }
  ~File() {
    if (fd_ >= 0) ::close(fd_);
  }
  int fd() const { return fd_; }

  absl::Status Write(const void* from, uint64_t bytes, uint64_t offset) {
    const ssize_t done = ::pwrite(fd_, from, bytes, static_cast<off_t>(offset));
    return done == static_cast<ssize_t>(bytes) ? absl::OkStatus() : SystemError("pwrite");
  }
  absl::Status Read(void* to, uint64_t bytes, uint64_t offset) const {
    const ssize_t done = ::pread(fd_, to, bytes, static_cast<off_t>(offset));
    return done == static_cast<ssize_t>(bytes) ? absl::OkStatus() : SystemError("pread");
  }
  absl::Status Allocate(uint64_t bytes) {
    return ::fallocate(fd_, 0, 0, static_cast<off_t>(bytes)) == 0 ? absl::OkStatus()
                                                                  : SystemError("fallocate");
  }
  absl::Status Sync() {
    return ::fdatasync(fd_) == 0 ? absl::OkStatus() : SystemError("fdatasync");
  }

 private:
  int fd_ = -1;
};

// Page-aligned memory, touched once, so that no measurement pays for fresh pages.
class Buffer {
 public:
  explicit Buffer(uint64_t bytes)
      : bytes_(bytes), data_(static_cast<char*>(std::aligned_alloc(kPage, bytes)), &std::free) {
    KVTIER_CHECK(data_ != nullptr);
    std::memset(data_.get(), 1, bytes);
  }
  char* data() { return data_.get(); }
  uint64_t size() const { return bytes_; }

 private:
  uint64_t bytes_;
  std::unique_ptr<char, decltype(&std::free)> data_;
};

// A number after `name` in a file of /proc/self.
uint64_t ProcValue(const char* file, const std::string& name) {
  std::ifstream in(file);
  for (std::string word; in >> word;) {
    uint64_t value = 0;
    if (word == name && in >> value) return value;
  }
  KVTIER_CHECK(false);
}

// Bytes that this process caused to be sent to the disk: direct writes as they are issued, others
// when their page turns dirty. The file system's own journal is not in it.
uint64_t BytesWritten() {
  return ProcValue("/proc/self/io", "write_bytes:") -
         ProcValue("/proc/self/io", "cancelled_write_bytes:");
}

// What `du` says: allocated bytes, each inode once.
uint64_t DiskBytes(const std::string& dir) {
  uint64_t bytes = 0;
  std::set<ino_t> seen;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(dir)) {
    struct stat info = {};
    if (entry.is_regular_file() && ::lstat(entry.path().c_str(), &info) == 0 &&
        seen.insert(info.st_ino).second) {
      bytes += static_cast<uint64_t>(info.st_blocks) * 512;
    }
  }
  return bytes;
}

// Nothing of the file system waits to be written after this.
absl::Status SyncAll(const std::string& dir) {
  KVTIER_ASSIGN_OR_RETURN(File file, File::Open(dir, O_RDONLY | O_DIRECTORY));
  return ::syncfs(file.fd()) == 0 ? absl::OkStatus() : SystemError("syncfs");
}

// Empties the page cache of what lies under `dir`; with root's rights also of names and inodes.
absl::Status DropCaches(const std::string& dir) {
  KVTIER_RETURN_IF_ERROR(SyncAll(dir));
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(dir)) {
    if (!entry.is_regular_file()) continue;
    KVTIER_ASSIGN_OR_RETURN(File file, File::Open(entry.path(), O_RDONLY));
    ::posix_fadvise(file.fd(), 0, 0, POSIX_FADV_DONTNEED);
  }
  std::ofstream("/proc/sys/vm/drop_caches") << "3\n";
  return absl::OkStatus();
}

double Median(std::vector<double> values) {
  KVTIER_CHECK(!values.empty());
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Calls `work(i, buffer)` for i < count from `depth` threads, each with a warm buffer of its own.
// Returns the seconds it took.
using Work = std::function<absl::Status(uint64_t, Buffer&)>;
absl::StatusOr<double> AtDepth(int depth, uint64_t count, uint64_t buffer_bytes, const Work& work) {
  std::vector<Buffer> buffers;
  for (int i = 0; i < depth; i++) buffers.emplace_back(buffer_bytes);
  std::vector<absl::Status> results(static_cast<size_t>(depth));
  std::atomic<uint64_t> next{0};
  ThreadPool pool(depth);
  const Stopwatch watch;
  for (size_t t = 0; t < results.size(); t++) {
    pool.Run([&, t] {
      for (uint64_t i = next++; i < count && results[t].ok(); i = next++) {
        results[t] = work(i, buffers[t]);
      }
    });
  }
  pool.WaitIdle();
  const double seconds = watch.Seconds();
  for (const absl::Status& result : results) KVTIER_RETURN_IF_ERROR(result);
  return seconds;
}

// ---------------------------------------------------------------------- payload

// A block says its number at both ends. A hole in a file reads as zeros, so no mark is zero.
void MarkBlock(char* data, uint64_t bytes, uint64_t number) {
  const uint64_t mark = number + 1;
  std::memcpy(data, &mark, sizeof(mark));
  std::memcpy(data + bytes - sizeof(mark), &mark, sizeof(mark));
}

absl::Status VerifyBlock(const char* data, uint64_t bytes, uint64_t number) {
  uint64_t head = 0;
  uint64_t tail = 0;
  std::memcpy(&head, data, sizeof(head));
  std::memcpy(&tail, data + bytes - sizeof(tail), sizeof(tail));
  if (head == number + 1 && tail == number + 1) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("asked for block ", number, ", got the marks ", head, " and ", tail));
}

// One batch of blocks that do not compress.
class Payload {
 public:
  explicit Payload(uint64_t block_bytes)
      : block_bytes_(block_bytes), buffer_(kBatch * block_bytes) {
    std::mt19937_64 random(1);
    for (uint64_t at = 0; at < buffer_.size(); at += sizeof(uint64_t)) {
      const uint64_t value = random();
      std::memcpy(buffer_.data() + at, &value, sizeof(value));
    }
  }
  // Makes it the batch that begins with this block.
  void Mark(uint64_t first) {
    for (uint64_t i = 0; i < kBatch; i++) MarkBlock(block(i), block_bytes_, first + i);
  }
  uint64_t block_bytes() const { return block_bytes_; }
  char* block(uint64_t i) { return buffer_.data() + i * block_bytes_; }
  rocksdb::Slice slice(uint64_t i) { return {block(i), block_bytes_}; }

 private:
  const uint64_t block_bytes_;
  Buffer buffer_;
};

std::string BigEndian(uint64_t value) {
  std::string out(sizeof(value), '\0');
  for (size_t i = 0; i < out.size(); i++) out[i] = static_cast<char>(value >> (56 - 8 * i));
  return out;
}

// Like the hash of a block: 16 bytes with no order in them.
std::string HashedKey(uint64_t block) {
  std::mt19937_64 random(block);
  const uint64_t high = random();
  return BigEndian(high) + BigEndian(random());
}

// ---------------------------------------------------------------------- arms

// A way to keep blocks. Blocks are numbered in the order they come.
class Arm {
 public:
  virtual ~Arm() = default;
  virtual std::string name() const = 0;
  // Makes what is missing. Returns when any block there can be looked up.
  virtual absl::Status Open(const std::string& dir, uint64_t block_bytes, uint64_t blocks) = 0;
  virtual void Close() = 0;
  // The batch that begins with block `first` is on the medium when it returns.
  virtual absl::Status Write(Payload& payload, uint64_t first) = 0;
  // Thread-safe.
  virtual absl::Status Read(uint64_t block, Buffer& to) = 0;
  virtual absl::Status Delete(uint64_t first) = 0;
  // Waits for the work that goes on behind Write and Delete.
  virtual absl::Status Settle() = 0;
};

// Wakes who waits for RocksDB's background work.
class WorkDone final : public rocksdb::EventListener {
 public:
  void OnFlushCompleted(rocksdb::DB*, const rocksdb::FlushJobInfo&) override { done_.NotifyAll(); }
  void OnCompactionCompleted(rocksdb::DB*, const rocksdb::CompactionJobInfo&) override {
    done_.NotifyAll();
  }
  // Also returns after a while: the call comes just before the work stops counting as running.
  void Wait() {
    MutexLock lock(mutex_);
    done_.WaitFor(mutex_, std::chrono::milliseconds(5));
  }

 private:
  Mutex mutex_;
  CondVar done_;
};

// What all RocksDB arms share: direct I/O, nothing compressed, no cache, opened in parallel.
class RocksArm : public Arm {
 public:
  absl::Status Open(const std::string& dir, uint64_t block_bytes, uint64_t) override {
    dir_ = dir;
    block_bytes_ = block_bytes;
    options_ = MakeOptions();
    rocksdb::DB* db = nullptr;
    KVTIER_RETURN_IF_ERROR(FromRocks(rocksdb::DB::Open(options_, dir + "/db", &db)));
    db_.reset(db);
    return AfterOpen();
  }
  void Close() override { db_.reset(); }

  absl::Status Read(uint64_t block, Buffer& to) override {
    rocksdb::ReadOptions options;
    options.fill_cache = false;
    options.verify_checksums = VerifiesChecksums();
    rocksdb::PinnableSlice value;
    const rocksdb::Status got = db_->Get(options, db_->DefaultColumnFamily(), Key(block), &value);
    if (got.IsNotFound()) return absl::NotFoundError(absl::StrCat("block ", block));
    KVTIER_RETURN_IF_ERROR(FromRocks(got));
    if (value.size() != block_bytes_) return absl::DataLossError("wrong length");
    std::memcpy(to.data(), value.data(), value.size());
    return absl::OkStatus();
  }

  absl::Status Settle() override {
    KVTIER_RETURN_IF_ERROR(FromRocks(db_->Flush(rocksdb::FlushOptions())));
    while (Busy()) work_done_->Wait();
    return absl::OkStatus();
  }

 protected:
  virtual rocksdb::Options MakeOptions() = 0;
  virtual std::string Key(uint64_t block) const = 0;
  virtual bool VerifiesChecksums() const { return true; }
  virtual absl::Status AfterOpen() { return absl::OkStatus(); }

  rocksdb::Options CommonOptions() {
    rocksdb::BlockBasedTableOptions table;
    table.no_block_cache = true;
    rocksdb::Options options;
    options.create_if_missing = true;
    options.use_direct_reads = true;
    options.use_direct_io_for_flush_and_compaction = true;
    options.compression = rocksdb::kNoCompression;
    options.max_open_files = -1;
    options.max_file_opening_threads = 16;
    options.skip_stats_update_on_db_open = true;
    options.skip_checking_sst_file_sizes_on_db_open = true;
    options.max_background_jobs = 4;
    options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
    options.listeners.push_back(work_done_);
    return options;
  }

  std::string dir_;
  uint64_t block_bytes_ = 0;
  rocksdb::Options options_;
  std::unique_ptr<rocksdb::DB> db_;

 private:
  bool Busy() const {
    uint64_t busy = 0;
    for (const std::string& property :
         {rocksdb::DB::Properties::kMemTableFlushPending,
          rocksdb::DB::Properties::kNumRunningFlushes, rocksdb::DB::Properties::kCompactionPending,
          rocksdb::DB::Properties::kNumRunningCompactions}) {
      uint64_t value = 0;
      KVTIER_CHECK(db_->GetIntProperty(property, &value));
      busy += value;
    }
    return busy > 0;
  }

  std::shared_ptr<WorkDone> work_done_ = std::make_shared<WorkDone>();
};

// Values in SST files, or in blob files beside them, behind a memtable. A batch is durable by a
// synced write-ahead log, or without one by a flush of its own.
class PutArm final : public RocksArm {
 public:
  enum class Values { kSst, kBlob };
  enum class Durable { kLog, kFlush };
  PutArm(std::string name, Values values, Durable durable)
      : name_(std::move(name)), values_(values), durable_(durable) {}
  std::string name() const override { return name_; }

  absl::Status Write(Payload& payload, uint64_t first) override {
    rocksdb::WriteBatch batch;
    for (uint64_t i = 0; i < kBatch; i++) {
      KVTIER_RETURN_IF_ERROR(FromRocks(batch.Put(Key(first + i), payload.slice(i))));
    }
    return Commit(batch);
  }
  absl::Status Delete(uint64_t first) override {
    rocksdb::WriteBatch batch;
    for (uint64_t i = 0; i < kBatch; i++) {
      KVTIER_RETURN_IF_ERROR(FromRocks(batch.Delete(Key(first + i))));
    }
    return Commit(batch);
  }

 protected:
  rocksdb::Options MakeOptions() override {
    rocksdb::Options options = CommonOptions();
    if (values_ == Values::kSst) return options;  // memtables and compaction as RocksDB has them
    options.enable_blob_files = true;
    options.enable_blob_garbage_collection = true;
    options.blob_garbage_collection_age_cutoff = 1.0;       // may collect any file,
    options.blob_garbage_collection_force_threshold = 0.5;  // and must when half of it is garbage
    options.write_buffer_size = 128 * kMiB;
    options.max_write_buffer_number = 4;
    return options;
  }
  std::string Key(uint64_t block) const override { return HashedKey(block); }

 private:
  absl::Status Commit(rocksdb::WriteBatch& batch) {
    rocksdb::WriteOptions options;
    options.sync = durable_ == Durable::kLog;
    options.disableWAL = durable_ == Durable::kFlush;
    KVTIER_RETURN_IF_ERROR(FromRocks(db_->Write(options, &batch)));
    if (durable_ == Durable::kLog) return absl::OkStatus();
    return FromRocks(db_->Flush(rocksdb::FlushOptions()));
  }

  const std::string name_;
  const Values values_;
  const Durable durable_;
};

// Writes the list of a file's blocks into the file, as large as a tier needs it.
class BlockList final : public rocksdb::TablePropertiesCollector {
 public:
  static constexpr const char* kProperty = "kvtier.blocks";
  rocksdb::Status AddUserKey(const rocksdb::Slice& key, const rocksdb::Slice&, rocksdb::EntryType,
                             rocksdb::SequenceNumber, uint64_t) override {
    list_.append(key.data(), key.size());
    list_.append(kIdentityBytes, 'i');
    return rocksdb::Status::OK();
  }
  rocksdb::Status Finish(rocksdb::UserCollectedProperties* properties) override {
    properties->emplace(kProperty, list_);
    return rocksdb::Status::OK();
  }
  rocksdb::UserCollectedProperties GetReadableProperties() const override { return {}; }
  const char* Name() const override { return "kvtier.BlockList"; }

 private:
  static constexpr size_t kIdentityBytes = 160;  // hashes, checksum and 16 tokens of a block
  std::string list_;
};

class BlockListFactory final : public rocksdb::TablePropertiesCollectorFactory {
 public:
  rocksdb::TablePropertiesCollector* CreateTablePropertiesCollector(Context) override {
    return new BlockList;
  }
  const char* Name() const override { return "kvtier.BlockListFactory"; }
};

// One SST file for each batch, written outside and ingested. Keys begin with the batch's number, so
// each file lies alone at the bottom level and nothing is ever compacted.
class IngestArm final : public RocksArm {
 public:
  explicit IngestArm(int max_open_files = -1) : max_open_files_(max_open_files) {}
  std::string name() const override { return "ingested files"; }

  absl::Status Write(Payload& payload, uint64_t first) override {
    return WriteFile(payload, first, kBatch);
  }
  absl::Status Delete(uint64_t first) override {
    const std::string begin = Key(first);
    const std::string end = Key(first + kBatch - 1);
    const rocksdb::Slice from = begin;
    const rocksdb::Slice to = end;
    return FromRocks(
        rocksdb::DeleteFilesInRange(db_.get(), db_->DefaultColumnFamily(), &from, &to, true));
  }

  // One file of the payload's first `records` blocks.
  absl::Status WriteFile(Payload& payload, uint64_t first, uint64_t records) {
    const std::string path = dir_ + "/next.sst";
    KVTIER_RETURN_IF_ERROR(MakeFile(path, payload, first, records));
    return Ingest({path});
  }
  absl::Status MakeFile(const std::string& path, Payload& payload, uint64_t first,
                        uint64_t records) {
    rocksdb::EnvOptions env_options(options_);
    env_options.use_direct_writes = true;  // not taken over from the options
    rocksdb::SstFileWriter writer(env_options, options_, nullptr, /*invalidate_page_cache=*/false);
    KVTIER_RETURN_IF_ERROR(FromRocks(writer.Open(path)));
    for (uint64_t i = 0; i < records; i++) {
      KVTIER_RETURN_IF_ERROR(FromRocks(writer.Put(Key(first + i), payload.slice(i))));
    }
    return FromRocks(writer.Finish());
  }
  absl::Status Ingest(const std::vector<std::string>& paths) {
    rocksdb::IngestExternalFileOptions options;
    options.move_files = true;
    options.failed_move_fall_back_to_copy = false;
    options.snapshot_consistency = false;
    options.allow_global_seqno = false;
    options.write_global_seqno = false;
    options.allow_blocking_flush = false;
    options.fail_if_not_bottommost_level = true;
    return FromRocks(db_->IngestExternalFile(paths, options));
  }
  // Every file's list of blocks, as a tier reads it at the start.
  absl::Status ReadLists() {
    rocksdb::TablePropertiesCollection all;
    KVTIER_RETURN_IF_ERROR(FromRocks(db_->GetPropertiesOfAllTables(&all)));
    for (const auto& [path, properties] : all) {
      if (properties->user_collected_properties.count(BlockList::kProperty) == 0) {
        return absl::DataLossError(absl::StrCat(path, " has no list"));
      }
    }
    return absl::OkStatus();
  }

 protected:
  rocksdb::Options MakeOptions() override {
    rocksdb::Options options = CommonOptions();
    rocksdb::BlockBasedTableOptions table;
    table.no_block_cache = true;
    table.filter_policy = nullptr;
    table.checksum = rocksdb::kXXH3;
    options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
    options.num_levels = 2;
    options.disable_auto_compactions = true;
    options.max_open_files = max_open_files_;
    options.table_properties_collector_factories.push_back(std::make_shared<BlockListFactory>());
    return options;
  }
  std::string Key(uint64_t block) const override {
    return BigEndian(block / kBatch) + BigEndian(block % kBatch);
  }
  // The tier's records carry a checksum of their own.
  bool VerifiesChecksums() const override { return false; }
  absl::Status AfterOpen() override { return ReadLists(); }

 private:
  const int max_open_files_;
};

// A file for each block. The batch's files are written first and synced after, so that one commit
// of the file system's journal serves most of them.
class FileArm final : public Arm {
 public:
  std::string name() const override { return "file per block"; }
  absl::Status Open(const std::string& dir, uint64_t block_bytes, uint64_t) override {
    dir_ = dir;
    block_bytes_ = block_bytes;
    KVTIER_ASSIGN_OR_RETURN(folder_, File::Open(dir, O_RDONLY | O_DIRECTORY));
    found_ =
        static_cast<uint64_t>(std::distance(fs::directory_iterator(dir), fs::directory_iterator()));
    return absl::OkStatus();
  }
  void Close() override { folder_ = File(); }
  absl::Status Write(Payload& payload, uint64_t first) override {
    std::vector<File> files;
    for (uint64_t i = 0; i < kBatch; i++) {
      KVTIER_ASSIGN_OR_RETURN(File file,
                              File::Open(Path(first + i), O_RDWR | O_CREAT | O_EXCL | O_DIRECT));
      KVTIER_RETURN_IF_ERROR(file.Write(payload.block(i), block_bytes_, 0));
      files.push_back(std::move(file));
    }
    for (File& file : files) {
      if (::fsync(file.fd()) != 0) return SystemError("fsync");
    }
    return ::fsync(folder_.fd()) == 0 ? absl::OkStatus() : SystemError("fsync");
  }
  absl::Status Read(uint64_t block, Buffer& to) override {
    KVTIER_ASSIGN_OR_RETURN(File file, File::Open(Path(block), O_RDONLY | O_DIRECT));
    return file.Read(to.data(), block_bytes_, 0);
  }
  absl::Status Delete(uint64_t first) override {
    for (uint64_t i = 0; i < kBatch; i++) {
      if (::unlink(Path(first + i).c_str()) != 0) return SystemError("unlink");
    }
    return ::fsync(folder_.fd()) == 0 ? absl::OkStatus() : SystemError("fsync");
  }
  absl::Status Settle() override { return absl::OkStatus(); }

 private:
  std::string Path(uint64_t block) const { return absl::StrFormat("%s/%016x", dir_, block); }
  std::string dir_;
  uint64_t block_bytes_ = 0;
  uint64_t found_ = 0;
  File folder_;
};

// One preallocated file with a page of names before each batch: the least that a log of one's own
// needs.
class SegmentArm final : public Arm {
 public:
  std::string name() const override { return "segment file"; }
  absl::Status Open(const std::string& dir, uint64_t block_bytes, uint64_t blocks) override {
    block_bytes_ = block_bytes;
    const bool is_new = !fs::exists(dir + "/segment");
    KVTIER_ASSIGN_OR_RETURN(file_, File::Open(dir + "/segment", O_RDWR | O_CREAT | O_DIRECT));
    if (is_new) return file_.Allocate(blocks / kBatch * BatchBytes());
    for (uint64_t batch = 0; batch < blocks / kBatch; batch++) {
      KVTIER_RETURN_IF_ERROR(file_.Read(names_.data(), kPage, batch * BatchBytes()));
      KVTIER_RETURN_IF_ERROR(VerifyBlock(names_.data(), kPage, batch));
    }
    return absl::OkStatus();
  }
  void Close() override { file_ = File(); }
  absl::Status Write(Payload& payload, uint64_t first) override {
    const uint64_t batch = first / kBatch;
    MarkBlock(names_.data(), kPage, batch);
    const iovec parts[] = {{names_.data(), kPage}, {payload.block(0), kBatch * block_bytes_}};
    const ssize_t done = ::pwritev(file_.fd(), parts, 2, static_cast<off_t>(batch * BatchBytes()));
    if (done != static_cast<ssize_t>(BatchBytes())) return SystemError("pwritev");
    return file_.Sync();
  }
  absl::Status Read(uint64_t block, Buffer& to) override {
    const uint64_t offset = block / kBatch * BatchBytes() + kPage + block % kBatch * block_bytes_;
    return file_.Read(to.data(), block_bytes_, offset);
  }
  absl::Status Delete(uint64_t first) override {
    const off_t offset = static_cast<off_t>(first / kBatch * BatchBytes());
    if (::fallocate(file_.fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset,
                    static_cast<off_t>(BatchBytes())) != 0) {
      return SystemError("fallocate");
    }
    return file_.Sync();
  }
  absl::Status Settle() override { return absl::OkStatus(); }

 private:
  uint64_t BatchBytes() const { return kPage + kBatch * block_bytes_; }
  uint64_t block_bytes_ = 0;
  Buffer names_{kPage};
  File file_;
};

// ---------------------------------------------------------------------- one arm, one size, one
// round

struct Figures {
  double write = 0;    // bytes/s until the last batch was durable
  double settled = 0;  // bytes/s until the work behind it was done too
  double read_1 = 0;   // bytes/s at queue depth 1
  double read_8 = 0;
  double write_amp = 0;     // bytes sent to the disk / payload
  double space_amp = 0;     // bytes allocated / live payload, a quarter deleted
  double open = 0;          // s, cold
  double delete_batch = 0;  // s
};

struct Load {
  std::string dir;
  uint64_t block_bytes = 0;
  uint64_t blocks = 0;
  uint64_t bytes() const { return block_bytes * blocks; }
};

absl::Status WriteAll(Arm& arm, const Load& load, Payload& payload, Figures& out) {
  const uint64_t before = BytesWritten();
  const Stopwatch watch;
  for (uint64_t first = 0; first < load.blocks; first += kBatch) {
    payload.Mark(first);
    KVTIER_RETURN_IF_ERROR(arm.Write(payload, first));
  }
  out.write = static_cast<double>(load.bytes()) / watch.Seconds();
  KVTIER_RETURN_IF_ERROR(arm.Settle());
  out.settled = static_cast<double>(load.bytes()) / watch.Seconds();
  KVTIER_RETURN_IF_ERROR(SyncAll(load.dir));
  out.write_amp = static_cast<double>(BytesWritten() - before) / static_cast<double>(load.bytes());
  return absl::OkStatus();
}

// Bytes/s of different blocks in a random order.
using ReadBlock = std::function<absl::Status(uint64_t, Buffer&)>;
absl::StatusOr<double> ReadRate(const Load& load, int depth, const ReadBlock& read) {
  KVTIER_RETURN_IF_ERROR(DropCaches(load.dir));
  std::vector<uint64_t> order(load.blocks);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937_64(static_cast<uint64_t>(depth)));
  order.resize(std::min(load.blocks, kReadBytes / load.block_bytes));
  KVTIER_ASSIGN_OR_RETURN(const double seconds,
                          AtDepth(depth, order.size(), load.block_bytes,
                                  [&](uint64_t i, Buffer& to) { return read(order[i], to); }));
  return static_cast<double>(order.size() * load.block_bytes) / seconds;
}

absl::Status DeleteQuarter(Arm& arm, const Load& load, Figures& out) {
  const uint64_t quarter = load.blocks / 4 / kBatch * kBatch;
  for (uint64_t first = 0; first < quarter; first += kBatch) {
    const Stopwatch watch;
    KVTIER_RETURN_IF_ERROR(arm.Delete(first));
    if (first == 0) out.delete_batch = watch.Seconds();
  }
  KVTIER_RETURN_IF_ERROR(arm.Settle());
  KVTIER_RETURN_IF_ERROR(SyncAll(load.dir));
  const uint64_t live = (load.blocks - quarter) * load.block_bytes;
  out.space_amp = static_cast<double>(DiskBytes(load.dir)) / static_cast<double>(live);

  Buffer buffer(load.block_bytes);
  if (quarter > 0 && arm.Read(0, buffer).ok() &&
      VerifyBlock(buffer.data(), load.block_bytes, 0).ok()) {
    return absl::InternalError(arm.name() + ": a deleted block is still there");
  }
  KVTIER_RETURN_IF_ERROR(arm.Read(quarter, buffer));
  return VerifyBlock(buffer.data(), load.block_bytes, quarter);
}

absl::StatusOr<Figures> MeasureArm(Arm& arm, const Load& load, Payload& payload) {
  fs::create_directories(load.dir);
  Figures out;
  KVTIER_RETURN_IF_ERROR(arm.Open(load.dir, load.block_bytes, load.blocks));
  KVTIER_RETURN_IF_ERROR(WriteAll(arm, load, payload, out));
  arm.Close();
  KVTIER_RETURN_IF_ERROR(DropCaches(load.dir));
  const Stopwatch watch;
  KVTIER_RETURN_IF_ERROR(arm.Open(load.dir, load.block_bytes, load.blocks));
  out.open = watch.Seconds();
  const auto read = [&](uint64_t block, Buffer& to) {
    KVTIER_RETURN_IF_ERROR(arm.Read(block, to));
    return VerifyBlock(to.data(), load.block_bytes, block);
  };
  KVTIER_ASSIGN_OR_RETURN(out.read_1, ReadRate(load, 1, read));
  KVTIER_ASSIGN_OR_RETURN(out.read_8, ReadRate(load, 8, read));
  KVTIER_RETURN_IF_ERROR(DeleteQuarter(arm, load, out));
  arm.Close();
  fs::remove_all(load.dir);
  return out;
}

// ---------------------------------------------------------------------- ceiling

struct Ceiling {
  double write_1 = 0;  // bytes/s
  double write_8 = 0;
  double read_1 = 0;
  double read_8 = 0;
  double write() const { return std::max(write_1, write_8); }
};

// One file that was written before, so that the file system has nothing left to do but pass on.
class RawFile {
 public:
  absl::Status Make(const std::string& dir) {
    dir_ = dir;
    fs::create_directories(dir);
    KVTIER_ASSIGN_OR_RETURN(file_, File::Open(dir + "/raw", O_RDWR | O_CREAT | O_DIRECT));
    KVTIER_RETURN_IF_ERROR(file_.Allocate(kRawBytes));
    return Write(2 * kMiB, 8).status();
  }
  absl::StatusOr<Ceiling> Measure(uint64_t block_bytes) {
    KVTIER_RETURN_IF_ERROR(SyncAll(dir_));  // what the arm before left behind
    const Load load = {dir_, block_bytes, kRawBytes / block_bytes};
    const auto read = [&](uint64_t block, Buffer& to) {
      return file_.Read(to.data(), block_bytes, block * block_bytes);
    };
    Ceiling out;
    KVTIER_ASSIGN_OR_RETURN(out.write_1, Write(block_bytes, 1));
    KVTIER_ASSIGN_OR_RETURN(out.write_8, Write(block_bytes, 8));
    KVTIER_ASSIGN_OR_RETURN(out.read_1, ReadRate(load, 1, read));
    KVTIER_ASSIGN_OR_RETURN(out.read_8, ReadRate(load, 8, read));
    return out;
  }

 private:
  static constexpr uint64_t kRawBytes = 512 * kMiB;
  absl::StatusOr<double> Write(uint64_t block_bytes, int depth) {
    const auto write = [&](uint64_t i, Buffer& from) {
      return file_.Write(from.data(), block_bytes, i * block_bytes);
    };
    KVTIER_ASSIGN_OR_RETURN(double seconds,
                            AtDepth(depth, kRawBytes / block_bytes, block_bytes, write));
    const Stopwatch watch;
    KVTIER_RETURN_IF_ERROR(file_.Sync());
    return static_cast<double>(kRawBytes) / (seconds + watch.Seconds());
  }
  std::string dir_;
  File file_;
};

// What the disk gave around an arm: just before it and just after.
Ceiling Between(const Ceiling& before, const Ceiling& after) {
  return {.write_1 = (before.write_1 + after.write_1) / 2,
          .write_8 = (before.write_8 + after.write_8) / 2,
          .read_1 = (before.read_1 + after.read_1) / 2,
          .read_8 = (before.read_8 + after.read_8) / 2};
}

// ---------------------------------------------------------------------- files of 1 and of 32
// records

struct FileCost {
  uint64_t block_bytes = 0;
  uint64_t records = 0;
  double ingest = 0;    // s, median
  double raw = 0;       // s, pwrite and fdatasync of the same bytes
  double overhead = 0;  // bytes on the disk beyond the payload
};

absl::StatusOr<double> MedianSeconds(uint64_t count,
                                     const std::function<absl::Status(uint64_t)>& work) {
  std::vector<double> seconds;
  for (uint64_t i = 0; i < count; i++) {
    const Stopwatch watch;
    KVTIER_RETURN_IF_ERROR(work(i));
    seconds.push_back(watch.Seconds());
  }
  return Median(seconds);
}

absl::StatusOr<FileCost> MeasureFileCost(const std::string& dir, Payload& payload,
                                         uint64_t records) {
  fs::create_directories(dir);
  const uint64_t bytes = records * payload.block_bytes();
  const uint64_t count = std::clamp<uint64_t>(1024 * kMiB / bytes, 16, 128);
  FileCost out = {.block_bytes = payload.block_bytes(), .records = records};

  IngestArm arm;
  KVTIER_RETURN_IF_ERROR(arm.Open(dir, payload.block_bytes(), 0));
  const uint64_t before = DiskBytes(dir);
  KVTIER_ASSIGN_OR_RETURN(out.ingest, MedianSeconds(count, [&](uint64_t i) {
                            return arm.WriteFile(payload, i * kBatch, records);
                          }));
  out.overhead = static_cast<double>(DiskBytes(dir) - before) / static_cast<double>(count) -
                 static_cast<double>(bytes);
  arm.Close();

  KVTIER_ASSIGN_OR_RETURN(File file, File::Open(dir + "/raw", O_RDWR | O_CREAT | O_DIRECT));
  KVTIER_RETURN_IF_ERROR(file.Allocate(count * bytes));
  KVTIER_ASSIGN_OR_RETURN(out.raw, MedianSeconds(count, [&](uint64_t i) {
                            KVTIER_RETURN_IF_ERROR(file.Write(payload.block(0), bytes, i * bytes));
                            return file.Sync();
                          }));
  fs::remove_all(dir);
  return out;
}

// ---------------------------------------------------------------------- very many files

struct OpenCost {
  int max_open_files = 0;
  double open = 0;         // s, cold, with every file's list of blocks
  double memory = 0;       // bytes of the process
  double descriptors = 0;  // open files of the process
  double manifest = 0;     // bytes
  double get = 0;          // s, median of single reads, warm disk
};

constexpr uint64_t kTinyBytes = 4096;  // a value's size changes neither an open nor its memory

absl::Status MakeManyFiles(const std::string& dir, uint64_t files) {
  constexpr uint64_t kAtOnce = 64;
  IngestArm arm;
  Payload payload(kTinyBytes);
  KVTIER_RETURN_IF_ERROR(arm.Open(dir, kTinyBytes, 0));
  for (uint64_t done = 0; done < files; done += kAtOnce) {
    std::vector<std::string> paths;
    for (uint64_t i = done; i < std::min(files, done + kAtOnce); i++) {
      paths.push_back(absl::StrFormat("%s/next-%d.sst", dir, i));
      payload.Mark(i * kBatch);
      KVTIER_RETURN_IF_ERROR(arm.MakeFile(paths.back(), payload, i * kBatch, kBatch));
    }
    KVTIER_RETURN_IF_ERROR(arm.Ingest(paths));
  }
  arm.Close();
  return absl::OkStatus();
}

double ManifestBytes(const std::string& dir) {
  double bytes = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(dir + "/db")) {
    if (entry.path().filename().string().starts_with("MANIFEST")) {
      bytes += static_cast<double>(entry.file_size());
    }
  }
  return bytes;
}

double OpenDescriptors() {
  return static_cast<double>(
      std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator()));
}

absl::StatusOr<OpenCost> MeasureOpen(const std::string& dir, uint64_t files, int max_open_files) {
  OpenCost out = {.max_open_files = max_open_files};
  out.manifest = ManifestBytes(dir);
  KVTIER_RETURN_IF_ERROR(DropCaches(dir));
  ::malloc_trim(0);
  const uint64_t memory = ProcValue("/proc/self/status", "RssAnon:");
  IngestArm arm(max_open_files);
  const Stopwatch watch;
  KVTIER_RETURN_IF_ERROR(arm.Open(dir, kTinyBytes, 0));
  out.open = watch.Seconds();
  ::malloc_trim(0);
  out.memory = 1024 * (static_cast<double>(ProcValue("/proc/self/status", "RssAnon:")) -
                       static_cast<double>(memory));
  out.descriptors = OpenDescriptors();
  Buffer buffer(kTinyBytes);
  std::mt19937_64 random(7);
  KVTIER_ASSIGN_OR_RETURN(out.get, MedianSeconds(1024, [&](uint64_t) {
                            const uint64_t block = random() % (files * kBatch);
                            KVTIER_RETURN_IF_ERROR(arm.Read(block, buffer));
                            return VerifyBlock(buffer.data(), kTinyBytes, block);
                          }));
  arm.Close();
  return out;
}

// ---------------------------------------------------------------------- the run

struct Row {
  uint64_t block_bytes = 0;
  std::string arm;
  std::vector<Figures> rounds;
  std::vector<Ceiling> ceilings;  // around each of them
  std::vector<Figures> floors;    // the segment file's of the same rounds, for open and delete
};

struct Report {
  uint64_t bytes = 0;
  int rounds = 0;
  std::vector<Row> rows;
  std::vector<FileCost> file_costs;
  uint64_t files = 0;
  std::vector<OpenCost> open_costs;
};

std::vector<std::unique_ptr<Arm>> MakeArms() {
  using Values = PutArm::Values;
  using Durable = PutArm::Durable;
  std::vector<std::unique_ptr<Arm>> arms;
  arms.push_back(std::make_unique<PutArm>("BlobDB, log", Values::kBlob, Durable::kLog));
  arms.push_back(std::make_unique<PutArm>("BlobDB, flush", Values::kBlob, Durable::kFlush));
  arms.push_back(std::make_unique<PutArm>("LSM tree", Values::kSst, Durable::kLog));
  arms.push_back(std::make_unique<IngestArm>());
  arms.push_back(std::make_unique<FileArm>());
  arms.push_back(std::make_unique<SegmentArm>());
  return arms;
}

// All arms once; adds to the rows of this size, which come in the arms' order.
absl::Status RunRound(const Load& load, RawFile& raw, std::span<Row> rows) {
  Payload payload(load.block_bytes);
  const std::vector<std::unique_ptr<Arm>> arms = MakeArms();
  KVTIER_ASSIGN_OR_RETURN(Ceiling before, raw.Measure(load.block_bytes));
  std::vector<Figures> all;
  for (const std::unique_ptr<Arm>& arm : arms) {
    const Stopwatch watch;
    absl::StatusOr<Figures> figures = MeasureArm(*arm, load, payload);
    if (!figures.ok()) return Annotate(figures.status(), arm->name());
    absl::FPrintF(stderr, "%d KiB, %s: %.1f s\n", load.block_bytes >> 10, arm->name(),
                  watch.Seconds());
    all.push_back(*figures);
    KVTIER_ASSIGN_OR_RETURN(const Ceiling after, raw.Measure(load.block_bytes));
    rows[all.size() - 1].ceilings.push_back(Between(before, after));
    before = after;
  }
  for (size_t i = 0; i < arms.size(); i++) {
    rows[i].block_bytes = load.block_bytes;
    rows[i].arm = arms[i]->name();
    rows[i].rounds.push_back(all[i]);
    rows[i].floors.push_back(all.back());
  }
  return absl::OkStatus();
}

absl::Status RunAlternatives(const std::string& dir, Report& report) {
  RawFile raw;
  KVTIER_RETURN_IF_ERROR(raw.Make(dir + "/ceiling"));
  const size_t arms = MakeArms().size();
  report.rows.resize(arms * std::size(kSizes));
  for (int round = 0; round < report.rounds; round++) {
    for (size_t s = 0; s < std::size(kSizes); s++) {
      absl::FPrintF(stderr, "round %d of %d\n", round + 1, report.rounds);
      const Load load = {dir + "/arm", kSizes[s], report.bytes / kSizes[s]};
      KVTIER_RETURN_IF_ERROR(RunRound(load, raw, std::span(report.rows).subspan(s * arms, arms)));
    }
  }
  return absl::OkStatus();
}

absl::Status RunFileCosts(const std::string& dir, Report& report) {
  for (const uint64_t size : kSizes) {
    Payload payload(size);
    for (const uint64_t records : {uint64_t{1}, kBatch}) {
      absl::StatusOr<FileCost> cost = MeasureFileCost(dir + "/cost", payload, records);
      if (!cost.ok()) return Annotate(cost.status(), "files of few records");
      report.file_costs.push_back(*cost);
    }
  }
  return absl::OkStatus();
}

absl::Status RunManyFiles(const std::string& dir, Report& report) {
  absl::FPrintF(stderr, "%d files\n", report.files);
  const std::string many = dir + "/many";
  fs::create_directories(many);
  KVTIER_RETURN_IF_ERROR(MakeManyFiles(many, report.files));
  for (const int max_open_files : {-1, 1024}) {
    absl::StatusOr<OpenCost> cost = MeasureOpen(many, report.files, max_open_files);
    if (!cost.ok()) return Annotate(cost.status(), "many files");
    report.open_costs.push_back(*cost);
  }
  fs::remove_all(many);
  return absl::OkStatus();
}

// ---------------------------------------------------------------------- what is printed

struct Cell {
  const char* name;
  double value = 0;
  double ratio = 0;
};

// The median over the rounds of a figure, and of its ratio to the limit of the same round.
Cell MakeCell(const Row& row, const char* name, const std::function<double(const Figures&)>& figure,
              const std::function<double(size_t)>& limit) {
  std::vector<double> values;
  std::vector<double> ratios;
  for (size_t i = 0; i < row.rounds.size(); i++) {
    values.push_back(figure(row.rounds[i]));
    ratios.push_back(values.back() / limit(i));
  }
  return {name, Median(values), Median(ratios)};
}

std::vector<Cell> Cells(const Row& row) {
  const auto write = [&](size_t i) { return row.ceilings[i].write() / 1e9; };
  const auto one = [](size_t) { return 1.0; };
  return {
      MakeCell(
          row, "write_gb_s", [](const Figures& f) { return f.write / 1e9; }, write),
      MakeCell(
          row, "write_settled_gb_s", [](const Figures& f) { return f.settled / 1e9; }, write),
      MakeCell(
          row, "read_1_gb_s", [](const Figures& f) { return f.read_1 / 1e9; },
          [&](size_t i) { return row.ceilings[i].read_1 / 1e9; }),
      MakeCell(
          row, "read_8_gb_s", [](const Figures& f) { return f.read_8 / 1e9; },
          [&](size_t i) { return row.ceilings[i].read_8 / 1e9; }),
      MakeCell(
          row, "write_amplification", [](const Figures& f) { return f.write_amp; }, one),
      MakeCell(
          row, "space_amplification", [](const Figures& f) { return f.space_amp; }, one),
      MakeCell(
          row, "open_ms", [](const Figures& f) { return f.open * 1e3; },
          [&](size_t i) { return row.floors[i].open * 1e3; }),
      MakeCell(
          row, "delete_32_ms", [](const Figures& f) { return f.delete_batch * 1e3; },
          [&](size_t i) { return row.floors[i].delete_batch * 1e3; }),
  };
}

double CeilingMedian(const Row& row, double Ceiling::*figure) {
  std::vector<double> values;
  for (const Ceiling& ceiling : row.ceilings) values.push_back(ceiling.*figure / 1e9);
  return Median(values);
}

void PrintTable(const Report& report) {
  const size_t arms = report.rows.size() / std::size(kSizes);
  for (size_t r = 0; r < report.rows.size(); r++) {
    const Row& row = report.rows[r];
    if (r % arms == 0) {
      absl::PrintF(
          "\n%d KiB values, GB/s of the raw file: write %.2f (1), %.2f (8), read %.2f (1), "
          "%.2f (8)\n",
          row.block_bytes >> 10, CeilingMedian(row, &Ceiling::write_1),
          CeilingMedian(row, &Ceiling::write_8), CeilingMedian(row, &Ceiling::read_1),
          CeilingMedian(row, &Ceiling::read_8));
      absl::PrintF("%-16s", "");
      for (const Cell& cell : Cells(row)) absl::PrintF(" | %-19s", cell.name);
      absl::PrintF("\n");
    }
    absl::PrintF("%-16s", row.arm);
    for (const Cell& cell : Cells(row)) absl::PrintF(" | %9.2f (%7.2f)", cell.value, cell.ratio);
    absl::PrintF("\n");
  }
  absl::PrintF(
      "\nIn brackets: share of the raw file's rate; open and delete: times the segment "
      "file's.\n\n");
  for (const FileCost& cost : report.file_costs) {
    absl::PrintF(
        "file of %2d x %4d KiB: %6.2f ms, raw %6.2f ms (%.2f), %.0f bytes beside the "
        "payload\n",
        cost.records, cost.block_bytes >> 10, cost.ingest * 1e3, cost.raw * 1e3,
        cost.ingest / cost.raw, cost.overhead);
  }
  for (const OpenCost& cost : report.open_costs) {
    absl::PrintF(
        "%d files, max_open_files %d: open %.2f s, %.1f MiB, %.0f descriptors, manifest "
        "%.1f MiB, one read %.0f us\n",
        report.files, cost.max_open_files, cost.open, cost.memory / kMiB, cost.descriptors,
        cost.manifest / kMiB, cost.get * 1e6);
  }
}

std::string RowJson(const Row& row) {
  std::string out = absl::StrFormat(R"({"value_bytes":%d,"arm":"%s")", row.block_bytes, row.arm);
  for (const Cell& cell : Cells(row)) {
    absl::StrAppendFormat(&out, R"(,"%s":%.6g,"%s_ratio":%.6g)", cell.name, cell.value, cell.name,
                          cell.ratio);
  }
  absl::StrAppendFormat(&out,
                        R"(,"ceiling":{"write_1_gb_s":%.6g,"write_8_gb_s":%.6g,"read_1_gb_s":%.6g,)"
                        R"("read_8_gb_s":%.6g}})",
                        CeilingMedian(row, &Ceiling::write_1),
                        CeilingMedian(row, &Ceiling::write_8), CeilingMedian(row, &Ceiling::read_1),
                        CeilingMedian(row, &Ceiling::read_8));
  return out;
}

void PrintJson(const Report& report) {
  std::vector<std::string> rows, file_costs, open_costs;
  for (const Row& row : report.rows) rows.push_back(RowJson(row));
  for (const FileCost& cost : report.file_costs) {
    file_costs.push_back(absl::StrFormat(
        R"({"value_bytes":%d,"records":%d,"ingest_ms":%.6g,"raw_ms":%.6g,"ratio":%.6g,)"
        R"("overhead_bytes":%.0f})",
        cost.block_bytes, cost.records, cost.ingest * 1e3, cost.raw * 1e3, cost.ingest / cost.raw,
        cost.overhead));
  }
  for (const OpenCost& cost : report.open_costs) {
    open_costs.push_back(absl::StrFormat(
        R"({"files":%d,"max_open_files":%d,"open_ms":%.6g,"memory_bytes":%.0f,"descriptors":%.0f,)"
        R"("manifest_bytes":%.0f,"read_us":%.6g})",
        report.files, cost.max_open_files, cost.open * 1e3, cost.memory, cost.descriptors,
        cost.manifest, cost.get * 1e6));
  }
  absl::PrintF(
      R"({"bytes":%d,"rounds":%d,"batch":%d,"rows":[%s],"file_costs":[%s],"open_costs":[%s]})"
      "\n",
      report.bytes, report.rounds, kBatch, absl::StrJoin(rows, ","), absl::StrJoin(file_costs, ","),
      absl::StrJoin(open_costs, ","));
}

absl::Status Run(const std::string& dir, Report& report) {
  KVTIER_RETURN_IF_ERROR(RunAlternatives(dir, report));
  KVTIER_RETURN_IF_ERROR(RunFileCosts(dir, report));
  return report.files > 0 ? RunManyFiles(dir, report) : absl::OkStatus();
}

// Values come from memory that is kept: else a read pays for fresh pages each time.
void KeepMemory() {
  KVTIER_CHECK(::mallopt(M_MMAP_THRESHOLD, 32 << 20) == 1);
  KVTIER_CHECK(::mallopt(M_TRIM_THRESHOLD, 1 << 30) == 1);
}

// With max_open_files -1 each SST file keeps a descriptor.
void RaiseFileLimit() {
  rlimit limit = {};
  KVTIER_CHECK(::getrlimit(RLIMIT_NOFILE, &limit) == 0);
  limit.rlim_cur = limit.rlim_max;
  KVTIER_CHECK(::setrlimit(RLIMIT_NOFILE, &limit) == 0);
}

int Main(int argc, char** argv) {
  std::string parent;
  Report report;
  report.bytes = 2048 * kMiB;
  report.rounds = 3;
  report.files = 16384;
  bool json = false;
  CLI::App app("Ways to keep blocks on an SSD, side by side, beside a raw file");
  app.add_option("--dir", parent, "a directory on the disk to measure; a new one is made in it")
      ->required()
      ->check(CLI::ExistingDirectory);
  app.add_option("--bytes", report.bytes, "payload of an arm, rounded down to 256 MiB")
      ->check(CLI::Range(256 * kMiB, 65536 * kMiB));
  app.add_option("--rounds", report.rounds)->check(CLI::Range(1, 99));
  app.add_option("--many-files", report.files, "files of the test of many files; 0: leave it out")
      ->check(CLI::Range(0, 1 << 20));
  app.add_flag("--json", json, "one document on stdout");
  CLI11_PARSE(app, argc, argv);
  report.bytes -= report.bytes % (256 * kMiB);  // a quarter is a whole batch of the largest values

  KeepMemory();
  RaiseFileLimit();
  std::string dir = parent + "/kvtier-ssd-XXXXXX";
  if (::mkdtemp(dir.data()) == nullptr) {
    absl::FPrintF(stderr, "%s\n", SystemError(dir).ToString());
    return 1;
  }
  const absl::Status status = Run(dir, report);
  std::error_code left_behind;  // of no interest beside the figures
  fs::remove_all(dir, left_behind);
  if (!status.ok()) {
    absl::FPrintF(stderr, "%s\n", status.ToString());
    return 1;
  }
  json ? PrintJson(report) : PrintTable(report);
  return 0;
}

}  // namespace
}  // namespace kvtier

int main(int argc, char** argv) { return kvtier::Main(argc, argv); }
