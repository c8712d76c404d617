#include "storage/rocksdb_store.h"

#include <rocksdb/convenience.h>
#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/file_system.h>
#include <rocksdb/flush_block_policy.h>
#include <rocksdb/listener.h>
#include <rocksdb/sst_file_writer.h>
#include <rocksdb/table.h>
#include <rocksdb/table_properties.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <utility>

#include "common/executor.h"
#include "common/log.h"
#include "storage/rocksdb_manifest.h"
#include "storage/rocksdb_staged_file.h"

namespace kvtier {
namespace {

constexpr char kListProperty[] = "kvtier.list";
constexpr char kStagingFolder[] = "/staging";
constexpr uint64_t kMaxManifestBytes = 16 << 20;
constexpr uint64_t kBlockBytes = 4096;
constexpr char kBodySuffix = '\x01';
constexpr rlim_t kLeastOpenFiles = 64;
constexpr rlim_t kMostOpenFiles = 1 << 20;

// RocksDB's errors become lines of our log; it writes no log files of its own.
class ErrorLogger final : public rocksdb::Logger {
 public:
  ErrorLogger() : Logger(rocksdb::InfoLogLevel::ERROR_LEVEL) {}
  using rocksdb::Logger::Logv;
  void LogHeader(const char* /*format*/, va_list /*arguments*/) override {}
  void Logv(const char* format, va_list arguments) override {
    char line[512];
    std::vsnprintf(line, sizeof(line), format, arguments);
    Log(LogLevel::kWarning, "rocksdb", {{"message", std::string(line)}});
  }
  void Logv(const rocksdb::InfoLogLevel level, const char* format, va_list arguments) override {
    if (level >= rocksdb::InfoLogLevel::ERROR_LEVEL &&
        level < rocksdb::InfoLogLevel::HEADER_LEVEL) {
      Logv(format, arguments);
    }
  }
};

// Hears of errors that RocksDB holds on to. It is not to clear them by itself, nor are we by
// Resume: in 7.8 a database that has resumed after a full disk can still be half stopped, and then
// ends the process when a file is ingested.
class StopListener final : public rocksdb::EventListener {
 public:
  explicit StopListener(std::shared_ptr<std::atomic<bool>> stopped)
      : stopped_(std::move(stopped)) {}
  void OnBackgroundError(rocksdb::BackgroundErrorReason, rocksdb::Status*) override {
    *stopped_ = true;
  }
  void OnErrorRecoveryBegin(rocksdb::BackgroundErrorReason, rocksdb::Status,
                            bool* auto_recovery) override {
    *auto_recovery = false;
  }

 private:
  const std::shared_ptr<std::atomic<bool>> stopped_;
};

// Puts the same text into the properties of every table that is built with it.
class ListCollector final : public rocksdb::TablePropertiesCollector {
 public:
  explicit ListCollector(const std::string* list) : list_(list) {}
  rocksdb::Status AddUserKey(const rocksdb::Slice&, const rocksdb::Slice&, rocksdb::EntryType,
                             rocksdb::SequenceNumber, uint64_t) override {
    return rocksdb::Status::OK();
  }
  rocksdb::Status Finish(rocksdb::UserCollectedProperties* properties) override {
    properties->insert({kListProperty, *list_});
    return rocksdb::Status::OK();
  }
  rocksdb::UserCollectedProperties GetReadableProperties() const override { return {}; }
  const char* Name() const override { return "kvtier.ListCollector"; }

 private:
  const std::string* const list_;
};

class ListCollectorFactory final : public rocksdb::TablePropertiesCollectorFactory {
 public:
  explicit ListCollectorFactory(const std::string* list) : list_(list) {}
  rocksdb::TablePropertiesCollector* CreateTablePropertiesCollector(Context) override {
    return new ListCollector(list_);  // RocksDB's to delete
  }
  const char* Name() const override { return "kvtier.ListCollectorFactory"; }

 private:
  const std::string* const list_;
};

// Where a block of the table ends. Pairs stay together, so that one read gets both. The first and
// the last entry are alone: ingesting a file reads their blocks.
class PairPolicy final : public rocksdb::FlushBlockPolicy {
 public:
  explicit PairPolicy(size_t entries) : last_(entries - 1) {}
  bool Update(const rocksdb::Slice& key, const rocksdb::Slice& value) override {
    const size_t number = next_++;
    const bool of_pair = number % 2 == 0 && number != last_;
    const bool ends = number == 1 || number == last_ || (!of_pair && bytes_ >= kBlockBytes);
    if (ends) bytes_ = 0;
    bytes_ += key.size() + value.size();
    return ends && number > 0;
  }

 private:
  const size_t last_;
  size_t next_ = 0;
  uint64_t bytes_ = 0;  // in the block so far
};

class PairPolicyFactory final : public rocksdb::FlushBlockPolicyFactory {
 public:
  explicit PairPolicyFactory(size_t entries) : entries_(entries) {}
  rocksdb::FlushBlockPolicy* NewFlushBlockPolicy(const rocksdb::BlockBasedTableOptions&,
                                                 const rocksdb::BlockBuilder&) const override {
    return new PairPolicy(entries_);  // RocksDB's to delete
  }
  const char* Name() const override { return "kvtier.PairPolicyFactory"; }

 private:
  const size_t entries_;
};

rocksdb::Slice SliceOf(std::string_view bytes) { return {bytes.data(), bytes.size()}; }

absl::Status ReadError(const rocksdb::Status& status) {
  if (status.ok()) return absl::NotFoundError("no such key");
  if (status.IsCorruption()) return absl::DataLossError(status.ToString());
  return absl::UnavailableError(status.ToString());
}

// A table's footer has no checksum: a damaged one can make RocksDB ask for more memory than there
// is.
template <typename Result, typename Call>
Result WithoutExceptions(const Call& call) {
  try {
    return call();
  } catch (const std::exception& thrown) {
    return absl::DataLossError(absl::StrCat("a damaged file: ", thrown.what()));
  }
}

// RocksDB has no code for a user's quota that is used up: only the system's text says so.
bool IsFull(const rocksdb::Status& status) {
  return status.IsNoSpace() ||
         (status.IsIOError() && status.ToString().find(std::strerror(EDQUOT)) != std::string::npos);
}

absl::Status WriteError(const rocksdb::Status& status) {
  if (status.ok()) return absl::OkStatus();
  if (IsFull(status)) return absl::ResourceExhaustedError(status.ToString());
  return absl::UnavailableError(status.ToString());
}

absl::Status OpenError(const rocksdb::Status& status) {
  const std::string text = status.ToString();
  if (status.IsCorruption() || status.IsPathNotFound()) return absl::DataLossError(text);
  if (text.find("/LOCK") != std::string::npos) {
    return absl::FailedPreconditionError(
        absl::StrCat("it is in use by another process (", text, ")"));
  }
  return WriteError(status);
}

// Half of the files that this process may have; the others are for connections.
int MaxOpenFiles() {
  rlimit limit = {};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  return static_cast<int>(std::clamp<rlim_t>(limit.rlim_cur / 2, kLeastOpenFiles, kMostOpenFiles));
}

// Every block is verified before RocksDB looks into it, though heads and bodies carry checksums of
// their own: with Debian's build, which checks assertions, one wrong byte between them would end
// the process.
rocksdb::BlockBasedTableOptions TableOptions() {
  rocksdb::BlockBasedTableOptions table;
  table.no_block_cache = true;
  table.filter_policy = nullptr;
  table.checksum = rocksdb::kXXH3;
  table.format_version = 5;
  return table;
}

// RocksDB gives a new block's buffer `block_size` bytes, and copies what outgrows them.
rocksdb::BlockBasedTableOptions TableOptionsFor(const RocksdbStore::NewFile& file) {
  rocksdb::BlockBasedTableOptions table = TableOptions();
  table.block_size = kBlockBytes + kBlockBytes + file.largest_pair_bytes;
  const size_t entries = 2 * file.pairs + (file.end_key.empty() ? 1 : 2);
  table.flush_block_policy_factory = std::make_shared<PairPolicyFactory>(entries);
  return table;
}

// With paranoid checks one missing file would keep the whole database from opening.
void SetOpening(rocksdb::Options* options) {
  options->create_if_missing = true;
  options->paranoid_checks = false;
  options->skip_stats_update_on_db_open = true;
  options->skip_checking_sst_file_sizes_on_db_open = true;
  options->max_file_opening_threads = 1;  // the caller's, which can catch an exception
  options->max_open_files = MaxOpenFiles();
}

// Nothing is ever compacted, and no error is retried behind our back.
void SetBackground(rocksdb::Options* options) {
  options->num_levels = 2;
  options->disable_auto_compactions = true;
  options->max_bgerror_resume_count = 0;
  options->stats_dump_period_sec = 0;
  options->stats_persist_period_sec = 0;
  options->max_background_jobs = 1;
}

// A manifest larger than its limit is written anew at each change, so the limit is far above what
// the list of all files takes.
void SetOwnFiles(rocksdb::Options* options) {
  options->write_buffer_size = 64 << 10;
  options->max_manifest_file_size = kMaxManifestBytes;
  options->manifest_preallocation_size = 64 << 10;
  options->compression = rocksdb::kNoCompression;
  options->info_log = std::make_shared<ErrorLogger>();
  options->info_log_level = rocksdb::InfoLogLevel::ERROR_LEVEL;
}

std::unique_ptr<rocksdb::Options> MakeOptions(const RocksdbStoreOptions& settings,
                                              rocksdb::Env* env) {
  auto options = std::make_unique<rocksdb::Options>();
  options->env = env;
  options->use_direct_reads = settings.direct_io;
  options->use_direct_io_for_flush_and_compaction = settings.direct_io;
  SetOpening(options.get());
  SetBackground(options.get());
  SetOwnFiles(options.get());
  options->table_factory.reset(rocksdb::NewBlockBasedTableFactory(TableOptions()));
  return options;
}

}  // namespace

RocksdbStore::RocksdbStore(const RocksdbStoreOptions& options)
    : settings_(options),
      file_system_(std::make_shared<StagedFileSystem>(
          options.file_system == nullptr ? rocksdb::FileSystem::Default() : options.file_system,
          StagedPath())),
      env_(rocksdb::NewCompositeEnv(file_system_)),
      stopped_(std::make_shared<std::atomic<bool>>(false)),
      options_(MakeOptions(settings_, env_.get())) {
  options_->listeners = {std::make_shared<StopListener>(stopped_)};
  remover_ = std::make_unique<ThreadPool>(1);
}

RocksdbStore::~RocksdbStore() = default;

absl::StatusOr<std::unique_ptr<RocksdbStore>> RocksdbStore::Open(
    const RocksdbStoreOptions& options) {
  std::unique_ptr<RocksdbStore> store(new RocksdbStore(options));
  KVTIER_RETURN_IF_ERROR(store->OpenDatabase());
  return store;
}

absl::Status RocksdbStore::OpenDatabase() {
  rocksdb::Env* const env = options_->env;
  std::vector<std::string> names;
  env->GetChildren(settings_.directory, &names);
  const bool has_current = std::find(names.begin(), names.end(), "CURRENT") != names.end();
  const bool has_files = std::any_of(
      names.begin(), names.end(), [](const std::string& name) { return name.ends_with(".sst"); });
  if (has_files && !has_current) return absl::DataLossError("the file CURRENT is gone");

  absl::Status opened = TryToOpen();
  if (absl::IsResourceExhausted(opened) && RemoveStaged()) opened = TryToOpen();
  if (absl::IsDataLoss(opened) && CutTornChange(settings_.directory).ok()) {
    Log(LogLevel::kWarning, "ssd: the last change of the list of files was torn, and is undone",
        {{"path", settings_.directory}, {"error", std::string(opened.message())}});
    opened = TryToOpen();
  }
  KVTIER_RETURN_IF_ERROR(opened);

  RemoveStaged();  // not before: the lock is ours now
  file_system_->KeepTables();
  return WriteError(env->CreateDirIfMissing(StagingFolder()));
}

// What a killed process was writing, and the folder. True when that gave room.
bool RocksdbStore::RemoveStaged() {
  std::error_code error;
  return std::filesystem::remove_all(StagingFolder(), error) > 1 && !error;
}

absl::Status RocksdbStore::TryToOpen() {
  return WithoutExceptions<absl::Status>([this] {
    rocksdb::DB* db = nullptr;
    const rocksdb::Status opened = rocksdb::DB::Open(*options_, settings_.directory, &db);
    db_.reset(db);
    return opened.ok() ? absl::OkStatus() : OpenError(opened);
  });
}

absl::StatusOr<std::unique_ptr<RocksdbStore>> RocksdbStore::OpenReadOnly(
    const RocksdbStoreOptions& options) {
  std::unique_ptr<RocksdbStore> store(new RocksdbStore(options));
  store->read_only_ = true;
  KVTIER_RETURN_IF_ERROR(store->TryToOpenReadOnly());
  return store;
}

absl::Status RocksdbStore::TryToOpenReadOnly() {
  if (options_->env->FileExists(settings_.directory + "/CURRENT").IsNotFound()) {
    return absl::NotFoundError(absl::StrCat("there is no database in ", settings_.directory));
  }
  options_->create_if_missing = false;
  return WithoutExceptions<absl::Status>([this] {
    rocksdb::DB* db = nullptr;
    const rocksdb::Status opened =
        rocksdb::DB::OpenForReadOnly(*options_, settings_.directory, &db);
    db_.reset(db);
    return opened.ok() ? absl::OkStatus() : OpenError(opened);
  });
}

std::vector<StoreFile> RocksdbStore::Files() const {
  std::vector<rocksdb::LiveFileMetaData> live;
  db_->GetLiveFilesMetaData(&live);
  std::vector<StoreFile> files;
  files.reserve(live.size());
  for (rocksdb::LiveFileMetaData& file : live) {
    files.push_back(
        {std::move(file.smallestkey), std::move(file.largestkey), DiskBytes(file.size)});
  }
  std::sort(files.begin(), files.end(),
            [](const StoreFile& a, const StoreFile& b) { return a.smallest_key < b.smallest_key; });
  return files;
}

std::string RocksdbStore::StagingFolder() const { return settings_.directory + kStagingFolder; }

// One file is written at a time, so one name is enough.
std::string RocksdbStore::StagedPath() const { return StagingFolder() + "/new.sst"; }

// Freeing a file's space takes the disk half as long as writing it, so both are done at once.
absl::StatusOr<StoreFile> RocksdbStore::AddFile(const NewFile& file) {
  const std::string path = StagedPath();
  absl::Status removed;
  if (!file.replaced.empty()) remover_->Run([&] { removed = DeleteFiles(file.replaced); });
  absl::StatusOr<StoreFile> written = WriteStaged(path, file);
  remover_->WaitIdle();
  absl::Status added = written.ok() ? removed : written.status();
  if (added.ok()) added = Ingest(path);
  if (added.ok()) return written;
  options_->env->DeleteFile(path);
  return added;
}

absl::StatusOr<StoreFile> RocksdbStore::WriteStaged(const std::string& path, const NewFile& file) {
  rocksdb::Options options = *options_;
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(TableOptionsFor(file)));
  options.table_properties_collector_factories = {
      std::make_shared<ListCollectorFactory>(&file.list)};
  rocksdb::EnvOptions env_options(options);
  env_options.use_direct_writes = settings_.direct_io;
  rocksdb::SstFileWriter writer(env_options, options, nullptr, /*invalidate_page_cache=*/false);
  rocksdb::Status status = writer.Open(path);
  if (status.ok()) status = writer.Put(file.begin_key, rocksdb::Slice());
  for (size_t i = 0; i < file.pairs && status.ok(); ++i) {
    const Pair pair = file.pair(i);
    status = writer.Put(pair.key, SliceOf(pair.head));
    if (status.ok()) status = writer.Put(pair.key + kBodySuffix, SliceOf(pair.body));
  }
  if (status.ok() && !file.end_key.empty()) status = writer.Put(file.end_key, rocksdb::Slice());
  const uint64_t tail_offset = writer.FileSize();  // where the last entry's block will begin
  rocksdb::ExternalSstFileInfo info;
  if (status.ok()) status = writer.Finish(&info);
  if (status.ok()) status = file_system_->Load(tail_offset);
  if (!status.ok()) return WriteError(status);
  return StoreFile{std::move(info.smallest_key), std::move(info.largest_key),
                   DiskBytes(info.file_size)};
}

absl::Status RocksdbStore::Ingest(const std::string& path) {
  rocksdb::IngestExternalFileOptions ingest;
  ingest.move_files = true;
  ingest.failed_move_fall_back_to_copy = false;
  ingest.snapshot_consistency = false;
  ingest.allow_global_seqno = false;
  ingest.write_global_seqno = false;
  ingest.allow_blocking_flush = false;
  ingest.fail_if_not_bottommost_level = true;
  if (stopped()) return absl::UnavailableError("RocksDB takes nothing until it is opened again");
  return WriteError(db_->IngestExternalFile({path}, ingest));
}

absl::StatusOr<std::string> RocksdbStore::ReadList(const StoreFile& file) const {
  return WithoutExceptions<absl::StatusOr<std::string>>([&] { return FindList(file); });
}

absl::StatusOr<std::string> RocksdbStore::FindList(const StoreFile& file) const {
  const rocksdb::Range range(SliceOf(file.smallest_key), SliceOf(file.largest_key));
  rocksdb::TablePropertiesCollection tables;
  const rocksdb::Status status =
      db_->GetPropertiesOfTablesInRange(db_->DefaultColumnFamily(), &range, 1, &tables);
  if (status.IsNotSupported()) return absl::UnimplementedError(status.ToString());
  if (!status.ok()) return absl::DataLossError(status.ToString());
  if (tables.size() != 1) return absl::DataLossError("the database does not list it any more");
  const auto& properties = tables.begin()->second->user_collected_properties;
  const auto list = properties.find(kListProperty);
  if (list == properties.end()) return absl::NotFoundError("it has no list of records");
  return list->second;
}

// By one iterator: both lie in one block, which is read once.
absl::Status RocksdbStore::GetPair(std::string_view key, const UsePair& use) const {
  return WithoutExceptions<absl::Status>([&] { return SeekPair(key, use); });
}

// The bound keeps RocksDB in the block where the key has to be. Where a lost write has left blocks
// of an older file, intact and with lower keys, it would else go on from one to the next, and check
// an assertion that the keys ascend. First the bound is the second key, which no separator of
// blocks is below; then what comes after it.
absl::Status RocksdbStore::SeekPair(std::string_view key, const UsePair& use) const {
  const std::string body_key = std::string(key) + kBodySuffix;
  const std::string after_body = body_key + '\0';
  rocksdb::Slice bound = body_key;
  rocksdb::ReadOptions options;
  options.fill_cache = false;
  options.iterate_upper_bound = &bound;
  const std::unique_ptr<rocksdb::Iterator> at(db_->NewIterator(options));
  at->Seek(SliceOf(key));
  if (!at->Valid() || at->key() != SliceOf(key)) return ReadError(at->status());
  const std::string head = at->value().ToString();
  bound = after_body;
  at->Next();
  if (!at->Valid() || at->key() != rocksdb::Slice(body_key)) return ReadError(at->status());
  return use(head, {at->value().data(), at->value().size()});
}

absl::Status RocksdbStore::DeleteFiles(std::span<const KeyRange> ranges) {
  if (ranges.empty()) return absl::OkStatus();
  if (read_only_) return absl::UnavailableError("the database is open to read only");
  std::vector<rocksdb::Slice> bounds;
  bounds.reserve(ranges.size() * 2);
  std::vector<rocksdb::RangePtr> pointers;
  for (const KeyRange& range : ranges) {
    bounds.push_back(SliceOf(range.first));
    bounds.push_back(SliceOf(range.end));
    pointers.emplace_back(&bounds[bounds.size() - 2], &bounds[bounds.size() - 1]);
  }
  return WriteError(rocksdb::DeleteFilesInRanges(db_.get(), db_->DefaultColumnFamily(),
                                                 pointers.data(), pointers.size(),
                                                 /*include_end=*/false));
}

// The folder may be missing: a full disk can keep Open from making it.
absl::Status RocksdbStore::ProbeWrite() {
  KVTIER_RETURN_IF_ERROR(WriteError(options_->env->CreateDirIfMissing(StagingFolder())));
  NewFile probe;
  probe.begin_key = "probe";
  const absl::Status status = WriteStaged(StagedPath(), probe).status();
  options_->env->DeleteFile(StagedPath());
  return status;
}

bool RocksdbStore::stopped() const { return read_only_ || *stopped_; }

}  // namespace kvtier
