#include "storage/ssd_tier.h"

#include <algorithm>
#include <chrono>
#include <set>

#include "common/bytes.h"
#include "common/check.h"
#include "common/executor.h"
#include "common/hashed_copy.h"
#include "common/log.h"
#include "common/running_checksum.h"
#include "storage/record_codec.h"
#include "storage/ssd_directory.h"

namespace kvtier {
namespace {

constexpr uint64_t kMinSegmentBytes = uint64_t{1} << 20;
constexpr Duration kFirstBackoff = std::chrono::milliseconds(250);
constexpr Duration kLastBackoff = std::chrono::seconds(5);

// What RocksDB adds, rounded up: to a record its keys, block and index entry; to a file its
// properties, index and footer.
constexpr uint64_t kEntryBytes = 96;
constexpr uint64_t kFileBytes = 2048;
constexpr int kRecoverThreads = 16;
constexpr size_t kRecoverAtOnce = 64;  // files whose lists are in memory together

uint64_t SpaceOfPart(uint64_t identity_bytes, uint64_t payload_bytes) {
  return kRecordHeaderBytes + identity_bytes + payload_bytes + kListRecordBytes + identity_bytes +
         kEntryBytes;
}

int64_t UnixSeconds() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::seconds>(now).count();
}

absl::Status CopyRecord(std::string_view head, std::string_view body, const ReadOp& op) {
  const absl::StatusOr<RecordHead> record = DecodeRecordHead(head);
  if (!record.ok()) return absl::DataLossError(record.status().message());
  KVTIER_RETURN_IF_ERROR(CheckSamePart(record->id, op.id));
  if (record->payload_bytes != body.size() || body.size() != op.to.size()) {
    return absl::DataLossError(absl::StrCat("the record has ", body.size(),
                                            " bytes; it should have ", record->payload_bytes,
                                            ", and asked for are ", op.to.size()));
  }
  RunningChecksum received;
  HashAndCopy(op.to.data(), std::as_bytes(std::span(body)), &received);
  const uint64_t checksum = received.Value();
  if (checksum != record->checksum || checksum != op.checksum) {
    return absl::DataLossError("the payload's checksum differs");
  }
  return absl::OkStatus();
}

RocksdbStore::KeyRange RangeOf(uint64_t batch) { return {BeginKey(batch), BeginKey(batch + 1)}; }

}  // namespace

std::string_view SsdStateName(SsdState state) {
  switch (state) {
    case SsdState::kServing:
      return "serving";
    case SsdState::kReadOnly:
      return "read-only";
    case SsdState::kReopening:
      return "reopening";
  }
  return "";
}

// --------------------------------------------------------------------------------------------------
// Opening

absl::StatusOr<std::unique_ptr<SsdTier>> SsdTier::Open(SsdTierOptions options) {
  std::unique_ptr<SsdTier> tier(new SsdTier(std::move(options)));
  {
    MutexLock io(tier->io_mutex_);
    KVTIER_RETURN_IF_ERROR(tier->Start());
  }
  return tier;
}

SsdTier::SsdTier(SsdTierOptions options)
    : options_(std::move(options)),
      backoff_(kFirstBackoff),
      capacity_bytes_(options_.capacity_bytes) {
  KVTIER_CHECK(options_.clock != nullptr);
}

SsdTier::~SsdTier() = default;

absl::Status SsdTier::Start() {
  absl::StatusOr<std::unique_ptr<RocksdbStore>> store = OpenStore();
  if (absl::IsResourceExhausted(store.status())) return StartOnFullDisk(store.status());
  KVTIER_RETURN_IF_ERROR(store.status());
  if (!direct_io_) {
    Log(LogLevel::kWarning, "ssd: the filesystem has no direct I/O; the page cache is used",
        {{"path", options_.directory}});
  }
  TakeOver(std::move(*store), /*start=*/true);
  return absl::OkStatus();
}

// From there Maintain goes on as after a disk that filled up later.
absl::Status SsdTier::StartOnFullDisk(const absl::Status& full) {
  absl::StatusOr<std::unique_ptr<RocksdbStore>> store = RocksdbStore::OpenReadOnly(StoreOptions());
  if (store.ok()) {
    TakeOver(std::move(*store), /*start=*/true);
    Fail(full).IgnoreError();
    return absl::OkStatus();
  }
  if (!absl::IsNotFound(store.status())) return full;
  ReopenAfter(full);
  Postpone();
  return absl::OkStatus();
}

RocksdbStoreOptions SsdTier::StoreOptions() const {
  return {options_.directory, direct_io_, options_.file_system};
}

// Sets a damaged database aside once; what fails after that is the host's.
absl::StatusOr<std::unique_ptr<RocksdbStore>> SsdTier::OpenStore() {
  KVTIER_ASSIGN_OR_RETURN(direct_io_, PrepareSsdDirectory(options_.directory));
  absl::StatusOr<std::unique_ptr<RocksdbStore>> store = RocksdbStore::Open(StoreOptions());
  if (absl::IsDataLoss(store.status())) {
    KVTIER_ASSIGN_OR_RETURN(const std::string aside, SetSsdDirectoryAside(options_.directory));
    Log(LogLevel::kError, "ssd: damaged; set aside, starting empty",
        {{"path", options_.directory},
         {"set_aside", aside},
         {"error", std::string(store.status().message())}});
    KVTIER_RETURN_IF_ERROR(PrepareSsdDirectory(options_.directory).status());
    store = RocksdbStore::Open(StoreOptions());
  }
  if (store.ok()) return store;
  return Annotate(store.status(), absl::StrCat("cannot open the SSD tier in ", options_.directory));
}

void SsdTier::TakeOver(std::unique_ptr<RocksdbStore> store, bool start) {
  {
    MutexLock lock(mutex_);
    store_ = std::move(store);
  }
  Reconcile(start);
}

// Brings the books in line with the files there are. At the start every file is news; later, one
// that is news is a Write that failed, and its caller knows none of its records.
void SsdTier::Reconcile(bool start) {
  const std::vector<StoreFile> files = store()->Files();
  MutexLock lock(mutex_);
  const std::map<uint64_t, Segment> before = std::move(segments_);
  segments_.clear();
  dead_.clear();
  tombstones_.clear();
  used_bytes_ = foreign_bytes_ = dead_bytes_ = tombstone_bytes_ = 0;
  for (const StoreFile& file : files) {
    const std::optional<FileKey> key = ParseFileKey(file.smallest_key);
    if (!key) continue;
    next_batch_ = std::max(next_batch_, key->batch + 1);
    const auto old = before.find(key->batch);
    if (key->tombstone) {
      AddTombstone(*key->tombstone, file.bytes);
      continue;
    }
    Segment segment = old != before.end() ? old->second : Segment{file.bytes, {}, 0, !key->known};
    (segment.foreign ? foreign_bytes_ : used_bytes_) += segment.bytes;
    segments_.emplace(key->batch, std::move(segment));
    if (!start && old == before.end()) Bury(key->batch);
  }
}

// Of several for one name the latest says it all.
void SsdTier::AddTombstone(const Tombstone& tombstone, uint64_t bytes) {
  SmallFile file{tombstone.batch, bytes};
  SmallFile& latest = tombstones_[{tombstone.model, tombstone.root}];
  if (file.batch > latest.batch) std::swap(file, latest);
  tombstone_bytes_ += bytes;
  if (file.batch == 0) return;
  tombstone_bytes_ -= file.bytes;
  dead_bytes_ += file.bytes;
  dead_.emplace(file.batch, file.bytes);
}

// --------------------------------------------------------------------------------------------------
// Recovering

void SsdTier::Recover(const std::function<void(std::span<const StoredPart>)>& segment) {
  MutexLock io(io_mutex_);
  const RocksdbStore* const store = this->store();
  if (store == nullptr) return;
  std::vector<StoreFile> files = store->Files();
  std::erase_if(files, [](const StoreFile& file) {
    const std::optional<FileKey> key = ParseFileKey(file.smallest_key);
    return !key || !key->known || key->tombstone;
  });
  ThreadPool readers(kRecoverThreads);
  for (size_t at = 0; at < files.size(); at += kRecoverAtOnce) {
    const size_t count = std::min(kRecoverAtOnce, files.size() - at);
    RecoverFiles(*store, {files.data() + at, count}, &readers, segment);
  }
}

// The lists are read side by side, as each takes a few small reads that wait for the medium.
void SsdTier::RecoverFiles(const RocksdbStore& store, std::span<const StoreFile> files,
                           ThreadPool* readers,
                           const std::function<void(std::span<const StoredPart>)>& segment) {
  std::vector<absl::StatusOr<std::string>> lists(files.size());
  for (size_t i = 0; i < files.size(); ++i) {
    readers->Run([&store, &files, &lists, i] { lists[i] = store.ReadList(files[i]); });
  }
  readers->WaitIdle();
  for (size_t i = 0; i < files.size(); ++i) {
    const uint64_t batch = ParseFileKey(files[i].smallest_key)->batch;
    absl::StatusOr<SegmentList> list =
        lists[i].ok() ? DecodeSegmentList(*lists[i]) : lists[i].status();
    if (list.ok() && list->batch != batch) list = absl::DataLossError("its list is another file's");
    if (!list.ok()) {
      Lose(batch, list.status());
      continue;
    }
    const std::vector<StoredPart> parts = KeepRemembered(batch, list->parts);
    if (!parts.empty()) segment(parts);
  }
}

// Without those that a Forget names. The segment is left with what is given back.
std::vector<StoredPart> SsdTier::KeepRemembered(uint64_t batch, std::span<const StoredPart> parts) {
  MutexLock lock(mutex_);
  Segment& segment = segments_.at(batch);
  segment.live.assign(parts.size(), false);
  std::vector<StoredPart> kept;
  kept.reserve(parts.size());
  for (const StoredPart& part : parts) {
    if (IsForgotten(part)) continue;
    segment.live[IndexOf(part.location)] = true;
    kept.push_back(part);
  }
  segment.live_count = kept.size();
  if (kept.empty()) Bury(batch);
  return kept;
}

bool SsdTier::IsForgotten(const StoredPart& part) const {
  if (tombstones_.empty()) return false;
  const uint64_t batch = BatchOf(part.location);
  const auto of_root = tombstones_.find({part.id.model, part.id.root});
  if (of_root != tombstones_.end() && batch < of_root->second.batch) return true;
  const auto of_model = tombstones_.find({part.id.model, std::nullopt});
  return of_model != tombstones_.end() && batch < of_model->second.batch;
}

// A file whose list a newer version wrote stays while there is room; one that cannot be read goes.
void SsdTier::Lose(uint64_t batch, const absl::Status& why) {
  const bool foreign = absl::IsUnimplemented(why);
  Log(LogLevel::kWarning, foreign ? "ssd: a file is left alone" : "ssd: a file is lost",
      {{"path", options_.directory}, {"batch", batch}, {"error", std::string(why.message())}});
  MutexLock lock(mutex_);
  if (!foreign) return Bury(batch);
  Segment& segment = segments_.at(batch);
  segment.foreign = true;
  used_bytes_ -= segment.bytes;
  foreign_bytes_ += segment.bytes;
}

// --------------------------------------------------------------------------------------------------
// Writing

void SsdTier::Write(std::span<WriteOp> ops, TimePoint /*deadline*/) {
  std::vector<WriteOp*> parts;
  parts.reserve(ops.size());
  for (WriteOp& op : ops) {
    op.status = absl::InvalidArgumentError("a part of 0 bytes cannot be written; at least 1");
    if (!op.from.empty()) parts.push_back(&op);
  }
  if (parts.empty()) return;
  KVTIER_CHECK(parts.size() <= kMaxRecords);
  MutexLock io(io_mutex_);
  uint64_t batch = 0;
  const absl::Status status = WriteSegment(parts, BytesFor(ops), &batch);
  for (size_t i = 0; i < parts.size(); ++i) {
    parts[i]->status = status;
    parts[i]->location = MakeLocation(batch, static_cast<uint32_t>(i));
  }
}

absl::Status SsdTier::WriteSegment(std::span<WriteOp* const> ops, uint64_t need, uint64_t* batch) {
  KVTIER_RETURN_IF_ERROR(MakeReady(need, ops.size()));
  *batch = next_batch_++;
  KVTIER_CHECK(*batch <= kMaxBatch);
  std::vector<uint64_t> dead;
  {
    MutexLock lock(mutex_);
    dead = Removable();
  }
  const absl::StatusOr<StoreFile> file = WriteFile(ops, *batch, dead);
  if (!file.ok()) return Fail(file.status());
  backoff_ = kFirstBackoff;
  file_bytes_written_.Add(file->bytes);
  for (const WriteOp* op : ops) payload_bytes_written_.Add(op->from.size());
  MutexLock lock(mutex_);
  Retired(dead);
  used_bytes_ += file->bytes;
  segments_[*batch] = {file->bytes, std::vector<bool>(ops.size(), true), ops.size(), false};
  return absl::OkStatus();
}

// Dead files go before a new one comes, so that the disk never holds both; a single one goes while
// the new one is written, where there is room.
absl::Status SsdTier::MakeReady(uint64_t need, size_t parts) {
  {
    MutexLock lock(mutex_);
    KVTIER_RETURN_IF_ERROR(why_);
    KVTIER_RETURN_IF_ERROR(CheckRoom(need, parts));
    DropForeignFor(need);
  }
  if (MayDieLater(need)) return absl::OkStatus();
  const absl::Status retired = RetireDead();
  if (!retired.ok()) return Fail(retired);
  MutexLock lock(mutex_);
  if (used_bytes_ + lingering_bytes_ <= capacity_bytes_ + 2 * SegmentBytesLocked()) return retired;
  return absl::UnavailableError(absl::StrCat("reads that have not ended hold ", lingering_bytes_,
                                             " bytes of removed files in ", options_.directory,
                                             "; nothing is written until then"));
}

absl::Status SsdTier::CheckRoom(uint64_t need, size_t parts) const {
  std::string what;
  if (need > capacity_bytes_) {
    what = absl::StrCat("a file of ", need, " bytes");
  } else if (parts > 1 && need > SegmentBytesLocked()) {
    what = absl::StrCat("a file of ", need, " bytes: a segment has ", SegmentBytesLocked(), ";");
  } else if (used_bytes_ > capacity_bytes_ + SegmentBytesLocked()) {
    what = absl::StrCat("more than the ", used_bytes_, " bytes that are used");
  } else {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      "tier ssd has no room for ", what, " within its capacity of ", capacity_bytes_, " bytes"));
}

void SsdTier::DropForeignFor(uint64_t need) {
  if (foreign_bytes_ == 0 || used_bytes_ + foreign_bytes_ + need <= capacity_bytes_) return;
  std::vector<uint64_t> foreign;
  for (const auto& [batch, segment] : segments_) {
    if (segment.foreign) foreign.push_back(batch);
  }
  for (const uint64_t batch : foreign) Bury(batch);
}

absl::StatusOr<StoreFile> SsdTier::WriteFile(std::span<WriteOp* const> ops, uint64_t batch,
                                             std::span<const uint64_t> replaced) {
  RocksdbStore::NewFile file{BeginKey(batch), EndKey(batch), ops.size(), nullptr, 0, ""};
  for (const uint64_t dead : replaced) file.replaced.push_back(RangeOf(dead));
  std::vector<StoredPart> parts(ops.size());
  for (size_t i = 0; i < ops.size(); ++i) {
    const WriteOp& op = *ops[i];
    parts[i] = {op.id, MakeLocation(batch, static_cast<uint32_t>(i)), op.from.size(), op.checksum};
    file.largest_pair_bytes =
        std::max(file.largest_pair_bytes, SpaceOfPart(op.id.identity.size(), op.from.size()));
  }
  file.list = EncodeSegmentList(batch, UnixSeconds(), parts);
  std::string head;
  file.pair = [&ops, &head, batch](size_t i) {
    const WriteOp& op = *ops[i];
    head = EncodeRecordHead(op.id, op.from.size(), op.checksum);
    return RocksdbStore::Pair{RecordKey(batch, static_cast<uint32_t>(i)),
                              head,
                              {reinterpret_cast<const char*>(op.from.data()), op.from.size()}};
  };
  return store()->AddFile(file);
}

// The name is in the key, and the value is empty. Written even while the tier is read-only: what it
// forgets must not come back.
absl::Status SsdTier::Forget(const ModelId& model, const std::optional<RootFingerprint>& root) {
  MutexLock io(io_mutex_);
  RocksdbStore* const store = this->store();
  if (store == nullptr) return writable();
  {
    MutexLock lock(mutex_);
    if (segments_.empty() && dead_.empty()) return absl::OkStatus();
  }
  const Tombstone tombstone{next_batch_++, model, root};
  RocksdbStore::NewFile all_in_its_key;
  all_in_its_key.begin_key = TombstoneKey(tombstone);
  const absl::StatusOr<StoreFile> file = store->AddFile(all_in_its_key);
  if (!file.ok()) return Fail(file.status());
  MutexLock lock(mutex_);
  AddTombstone(tombstone, file->bytes);
  return absl::OkStatus();
}

// --------------------------------------------------------------------------------------------------
// Removing

void SsdTier::Erase(std::span<const Location> locations) {
  MutexLock lock(mutex_);
  for (const Location location : locations) {
    const auto found = segments_.find(BatchOf(location));
    if (found == segments_.end()) continue;  // lost with its file
    Segment& segment = found->second;
    KVTIER_CHECK(IndexOf(location) < segment.live.size() && segment.live[IndexOf(location)]);
    segment.live[IndexOf(location)] = false;
    if (--segment.live_count == 0) Bury(found->first);
  }
}

// From the living to the dead, which RetireDead removes.
void SsdTier::Bury(uint64_t batch) {
  const auto found = segments_.find(batch);
  const uint64_t bytes = found->second.bytes;
  (found->second.foreign ? foreign_bytes_ : used_bytes_) -= bytes;
  dead_bytes_ += bytes;
  dead_.emplace(batch, bytes);
  segments_.erase(found);
}

// The dead, and tombstones with nothing older left that they could speak of.
std::vector<uint64_t> SsdTier::Removable() {
  const uint64_t oldest = segments_.empty() ? UINT64_MAX : segments_.begin()->first;
  for (auto it = tombstones_.begin(); it != tombstones_.end();) {
    const SmallFile file = it->second;
    if (file.batch > oldest) {
      ++it;
      continue;
    }
    tombstone_bytes_ -= file.bytes;
    dead_bytes_ += file.bytes;
    dead_.emplace(file.batch, file.bytes);
    it = tombstones_.erase(it);
  }
  std::vector<uint64_t> batches;
  for (const auto& [batch, bytes] : dead_) batches.push_back(batch);
  return batches;
}

// Whether what is dead may go while `need` bytes are written: a single file, which the tier and the
// disk can hold beside the new one.
bool SsdTier::MayDieLater(uint64_t need) {
  {
    MutexLock lock(mutex_);
    if (Removable().size() != 1) return false;
    const uint64_t limit = capacity_bytes_ + 2 * SegmentBytesLocked();
    if (used_bytes_ + dead_bytes_ + lingering_bytes_ > limit) return false;
  }
  return CheckFreeSpace(options_.directory, need).ok();
}

absl::Status SsdTier::RetireDead() {
  std::vector<uint64_t> batches;
  {
    MutexLock lock(mutex_);
    batches = Removable();
  }
  if (batches.empty()) return absl::OkStatus();
  std::vector<RocksdbStore::KeyRange> ranges;
  for (const uint64_t batch : batches) ranges.push_back(RangeOf(batch));
  KVTIER_RETURN_IF_ERROR(store()->DeleteFiles(ranges));
  MutexLock lock(mutex_);
  Retired(batches);
  return absl::OkStatus();
}

// Their space is back when the reads that began before have ended.
void SsdTier::Retired(std::span<const uint64_t> batches) {
  if (batches.empty()) return;
  files_retired_.Add(batches.size());
  uint64_t& lingering = lingering_[++epoch_];
  for (const uint64_t batch : batches) {
    const auto dead = dead_.find(batch);
    dead_bytes_ -= dead->second;
    lingering += dead->second;
    lingering_bytes_ += dead->second;
    dead_.erase(dead);
  }
  FreeLingering();
}

// --------------------------------------------------------------------------------------------------
// Reading

void SsdTier::Read(std::span<ReadOp> ops, TimePoint /*deadline*/) {
  for (ReadOp& op : ops) {
    const TimePoint start = options_.clock->Now();
    op.status = ReadPart(op);
    read_latency_.Record(options_.clock->Now() - start);
  }
}

absl::Status SsdTier::ReadPart(const ReadOp& op) {
  uint64_t epoch = 0;
  KVTIER_ASSIGN_OR_RETURN(const RocksdbStore* const store, EnterRead(op.location, &epoch));
  const auto use = [&op](std::string_view head, std::string_view body) {
    return CopyRecord(head, body, op);
  };
  const absl::Status status =
      store->GetPair(RecordKey(BatchOf(op.location), IndexOf(op.location)), use);
  LeaveRead(epoch);
  if (status.ok()) return status;
  (absl::IsDataLoss(status) ? checksum_failures_ : read_errors_).Add();
  return absl::IsNotFound(status) ? status : absl::DataLossError(status.message());
}

absl::StatusOr<const RocksdbStore*> SsdTier::EnterRead(Location location, uint64_t* epoch) {
  MutexLock lock(mutex_);
  if (state_ == SsdState::kReopening) return why_;
  const auto found = segments_.find(BatchOf(location));
  if (found == segments_.end() || IndexOf(location) >= found->second.live.size() ||
      !found->second.live[IndexOf(location)]) {
    return absl::NotFoundError("tier ssd has no part at this location");
  }
  *epoch = epoch_;
  ++readers_[epoch_];
  return store_.get();
}

void SsdTier::LeaveRead(uint64_t epoch) {
  MutexLock lock(mutex_);
  const auto readers = readers_.find(epoch);
  if (--readers->second > 0) return;
  readers_.erase(readers);
  FreeLingering();
}

void SsdTier::FreeLingering() {
  const uint64_t oldest = readers_.empty() ? UINT64_MAX : readers_.begin()->first;
  while (!lingering_.empty() && lingering_.begin()->first <= oldest) {
    lingering_bytes_ -= lingering_.begin()->second;
    lingering_.erase(lingering_.begin());
  }
}

// --------------------------------------------------------------------------------------------------
// States

RocksdbStore* SsdTier::store() const {
  MutexLock lock(mutex_);
  return store_.get();
}

SsdState SsdTier::state() const {
  MutexLock lock(mutex_);
  return state_;
}

absl::Status SsdTier::writable() const {
  MutexLock lock(mutex_);
  return why_;
}

void SsdTier::ChangeState(SsdState state, const absl::Status& why) {
  MutexLock lock(mutex_);
  why_ = why;
  if (state_ == state) return;
  state_ = state;
  const LogLevel level = why.ok() ? LogLevel::kInfo : LogLevel::kError;
  Log(level, absl::StrCat("ssd: ", std::string(SsdStateName(state))),
      {{"path", options_.directory}, {"why", std::string(why.message())}});
}

void SsdTier::ReopenAfter(const absl::Status& why) {
  ChangeState(SsdState::kReopening,
              absl::UnavailableError(absl::StrCat(
                  "the SSD tier in ", options_.directory, " is being reopened after an error: ",
                  std::string(why.message()), "; it is tried again every few seconds")));
}

// After a write that went wrong. Returns what the tier says from now on.
absl::Status SsdTier::Fail(const absl::Status& why) {
  write_errors_.Add();
  if (state() != SsdState::kReopening) {
    ChangeState(
        SsdState::kReadOnly,
        absl::UnavailableError(absl::StrCat(
            "the SSD tier in ", options_.directory, " cannot write: ", std::string(why.message()),
            "; what it has can be read, and writing is tried again every few seconds")));
  }
  Postpone();
  return writable();
}

void SsdTier::Postpone() {
  retry_at_ = options_.clock->Now() + backoff_;
  backoff_ = std::min(backoff_ * 2, kLastBackoff);
}

void SsdTier::Maintain() {
  MutexLock io(io_mutex_);
  if (state() == SsdState::kServing) {
    const absl::Status retired = RetireDead();
    if (!retired.ok()) Fail(retired).IgnoreError();
  } else if (options_.clock->Now() >= retry_at_) {
    TryToServe();
  }
}

void SsdTier::TryToServe() {
  const absl::Status status = GetWell();
  if (status.ok()) {
    ChangeState(SsdState::kServing, absl::OkStatus());
  } else {
    Postpone();
  }
}

// Space that dead files hold may be just what is missing, so they go first. RocksDB is closed only
// when it holds on to an error and the medium takes bytes again: reading goes on until then.
absl::Status SsdTier::GetWell() {
  if (state() != SsdState::kReopening) RetireDead().IgnoreError();
  KVTIER_RETURN_IF_ERROR(CheckFreeSpace(options_.directory, segment_bytes()));
  if (state() == SsdState::kReopening) return Reopen();
  KVTIER_RETURN_IF_ERROR(store()->ProbeWrite());
  if (store()->stopped()) {
    ReopenAfter(writable());
    return Reopen();
  }
  Reconcile(/*start=*/false);
  return RetireDead();
}

absl::Status SsdTier::Reopen() {
  std::unique_ptr<RocksdbStore> old;
  {
    MutexLock lock(mutex_);
    if (!readers_.empty()) return absl::UnavailableError("reads that began before have not ended");
    old = std::move(store_);
  }
  old.reset();
  absl::StatusOr<std::unique_ptr<RocksdbStore>> store = OpenStore();
  if (!store.ok()) {
    ReopenAfter(store.status());
    return store.status();
  }
  TakeOver(std::move(*store), /*start=*/false);
  ChangeState(SsdState::kReadOnly,
              absl::UnavailableError(absl::StrCat("the SSD tier in ", options_.directory,
                                                  " was reopened and tries to write again")));
  return RetireDead();
}

// --------------------------------------------------------------------------------------------------
// Sizes and figures

TierUsage SsdTier::usage() const {
  MutexLock lock(mutex_);
  return {capacity_bytes_, used_bytes_,
          used_bytes_ + foreign_bytes_ + dead_bytes_ + tombstone_bytes_ + lingering_bytes_};
}

void SsdTier::SetCapacity(uint64_t bytes) {
  MutexLock lock(mutex_);
  capacity_bytes_ = bytes;
}

uint64_t SsdTier::SegmentBytes(Location location) const {
  MutexLock lock(mutex_);
  const auto segment = segments_.find(BatchOf(location));
  return segment == segments_.end() ? 0 : segment->second.bytes;
}

uint64_t SsdTier::segment_bytes() const {
  MutexLock lock(mutex_);
  return SegmentBytesLocked();
}

uint64_t SsdTier::SegmentBytesLocked() const {
  return std::min(std::max(capacity_bytes_ / kSegmentsOfCapacity, kMinSegmentBytes),
                  options_.max_segment_bytes);
}

uint64_t SsdTier::BytesFor(std::span<const WriteOp> ops) const {
  uint64_t bytes = kFileBytes;
  const PartIdentity* last = nullptr;
  for (const WriteOp& op : ops) {
    bytes += SpaceOfPart(op.id.identity.size(), op.from.size());
    const bool same_name =
        last != nullptr && last->model == op.id.model && last->root == op.id.root;
    if (!same_name) bytes += kListNameBytes;
    last = &op.id;
  }
  return DiskBytes(bytes);
}

// In full files, and one more with the rest of the capacity. Some parts' identities are longer than
// supposed here; next to their payload that is nothing.
uint64_t SsdTier::BlocksFor(std::span<const uint64_t> part_bytes, uint64_t identity_bytes) const {
  uint64_t block = 0;
  for (const uint64_t bytes : part_bytes) block += SpaceOfPart(identity_bytes, bytes);
  if (block == 0) return 0;
  const auto fit = [block](uint64_t bytes) {
    return bytes < kFileBytes ? 0 : (bytes - kFileBytes) / block;
  };
  MutexLock lock(mutex_);
  const uint64_t in_file = std::max<uint64_t>(fit(SegmentBytesLocked()), 1);
  const uint64_t file = DiskBytes(kFileBytes + in_file * block);
  return capacity_bytes_ / file * in_file + fit(capacity_bytes_ % file);
}

SsdTierStats SsdTier::stats() const {
  SsdTierStats stats;
  stats.file_bytes_written = file_bytes_written_.value();
  stats.payload_bytes_written = payload_bytes_written_.value();
  stats.files_retired = files_retired_.value();
  stats.write_errors = write_errors_.value();
  stats.read_errors = read_errors_.value();
  stats.checksum_failures = checksum_failures_.value();
  stats.read_latency = read_latency_.snapshot();
  MutexLock lock(mutex_);
  stats.state = state_;
  for (const auto& [batch, segment] : segments_) {
    if (segment.foreign) continue;
    ++stats.files;
    stats.live_records += segment.live_count;
    stats.dead_records += segment.live.size() - segment.live_count;
  }
  return stats;
}

}  // namespace kvtier
