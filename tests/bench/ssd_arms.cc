#include "tests/bench/ssd_arms.h"

#include <fcntl.h>
#include <rocksdb/convenience.h>
#include <rocksdb/db.h>
#include <rocksdb/listener.h>
#include <rocksdb/sst_file_writer.h>
#include <rocksdb/table.h>
#include <rocksdb/table_properties.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <random>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/check.h"
#include "common/mutex.h"

namespace kvtier::bench {
namespace {

namespace fs = std::filesystem;

absl::Status FromRocks(const rocksdb::Status& status) {
  return status.ok() ? absl::OkStatus() : absl::InternalError(status.ToString());
}

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

rocksdb::Slice BlockSlice(Payload& payload, uint64_t i) {
  return {payload.block(i), payload.block_bytes()};
}

// ---------------------------------------------------------------------- RocksDB

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
template <typename Interface>
class RocksArm : public Interface {
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
class PutArm final : public RocksArm<Arm> {
 public:
  enum class Values { kSst, kBlob };
  enum class Durable { kLog, kFlush };
  PutArm(std::string name, Values values, Durable durable)
      : name_(std::move(name)), values_(values), durable_(durable) {}
  std::string name() const override { return name_; }

  absl::Status Write(Payload& payload, uint64_t first) override {
    rocksdb::WriteBatch batch;
    for (uint64_t i = 0; i < kBatch; i++) {
      KVTIER_RETURN_IF_ERROR(FromRocks(batch.Put(Key(first + i), BlockSlice(payload, i))));
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
class IngestArm final : public RocksArm<FileLog> {
 public:
  IngestArm(FileWrites writes, int max_open_files)
      : writes_(writes), max_open_files_(max_open_files) {}
  std::string name() const override {
    return writes_ == FileWrites::kDirect ? "ingest, direct" : "ingest, cached";
  }

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

  absl::Status WriteFile(Payload& payload, uint64_t first, uint64_t records) override {
    const std::string path = dir_ + "/next.sst";
    KVTIER_RETURN_IF_ERROR(MakeFile(path, payload, first, records));
    return Ingest({path});
  }
  absl::Status MakeFile(const std::string& path, Payload& payload, uint64_t first,
                        uint64_t records) override {
    rocksdb::EnvOptions env_options(options_);
    env_options.use_direct_writes = writes_ == FileWrites::kDirect;
    rocksdb::SstFileWriter writer(env_options, options_, nullptr,
                                  /*invalidate_page_cache=*/writes_ == FileWrites::kCached);
    KVTIER_RETURN_IF_ERROR(FromRocks(writer.Open(path)));
    for (uint64_t i = 0; i < records; i++) {
      KVTIER_RETURN_IF_ERROR(FromRocks(writer.Put(Key(first + i), BlockSlice(payload, i))));
    }
    return FromRocks(writer.Finish());
  }
  absl::Status Ingest(const std::vector<std::string>& paths) override {
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
  absl::Status AfterOpen() override { return ReadLists(); }

 private:
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

  const FileWrites writes_;
  const int max_open_files_;
};

// ---------------------------------------------------------------------- files

// A file for each block. The batch's files are written first and synced after, so that one commit
// of the file system's journal serves most of them.
class FileArm final : public Arm {
 public:
  std::string name() const override { return "file per block"; }
  absl::Status Open(const std::string& dir, uint64_t block_bytes, uint64_t blocks) override {
    dir_ = dir;
    block_bytes_ = block_bytes;
    KVTIER_ASSIGN_OR_RETURN(folder_, File::Open(dir, O_RDONLY | O_DIRECTORY));
    const auto found =
        static_cast<uint64_t>(std::distance(fs::directory_iterator(dir), fs::directory_iterator()));
    if (found == 0 || found == blocks) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat(found, " files, not ", blocks));
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
      KVTIER_RETURN_IF_ERROR(file.SyncFully());
    }
    return folder_.SyncFully();
  }
  absl::Status Read(uint64_t block, Buffer& to) override {
    KVTIER_ASSIGN_OR_RETURN(File file, File::Open(Path(block), O_RDONLY | O_DIRECT));
    return file.Read(to.data(), block_bytes_, 0);
  }
  absl::Status Delete(uint64_t first) override {
    for (uint64_t i = 0; i < kBatch; i++) {
      if (::unlink(Path(first + i).c_str()) != 0) return SystemError("unlink");
    }
    return folder_.SyncFully();
  }
  absl::Status Settle() override { return absl::OkStatus(); }

 private:
  std::string Path(uint64_t block) const { return absl::StrFormat("%s/%016x", dir_, block); }
  std::string dir_;
  uint64_t block_bytes_ = 0;
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

}  // namespace

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

Payload::Payload(uint64_t block_bytes) : block_bytes_(block_bytes), buffer_(kBatch * block_bytes) {
  std::mt19937_64 random(1);
  for (uint64_t at = 0; at < buffer_.size(); at += sizeof(uint64_t)) {
    const uint64_t value = random();
    std::memcpy(buffer_.data() + at, &value, sizeof(value));
  }
}

void Payload::Mark(uint64_t first) {
  for (uint64_t i = 0; i < kBatch; i++) MarkBlock(block(i), block_bytes_, first + i);
}

std::unique_ptr<FileLog> MakeFileLog(FileWrites writes, int max_open_files) {
  return std::make_unique<IngestArm>(writes, max_open_files);
}

std::vector<std::unique_ptr<Arm>> MakeArms() {
  using Values = PutArm::Values;
  using Durable = PutArm::Durable;
  std::vector<std::unique_ptr<Arm>> arms;
  arms.push_back(std::make_unique<PutArm>("BlobDB, log", Values::kBlob, Durable::kLog));
  arms.push_back(std::make_unique<PutArm>("BlobDB, flush", Values::kBlob, Durable::kFlush));
  arms.push_back(std::make_unique<PutArm>("LSM tree", Values::kSst, Durable::kLog));
  arms.push_back(MakeFileLog(FileWrites::kDirect));
  arms.push_back(MakeFileLog(FileWrites::kCached));
  arms.push_back(std::make_unique<FileArm>());
  arms.push_back(std::make_unique<SegmentArm>());
  return arms;
}

}  // namespace kvtier::bench
