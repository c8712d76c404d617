// The part of TierManager that writes to SSD and keeps the log there: what is written when, which
// segments leave, what of them is written again, and what is there after a restart.
//
// One batch at a time, under ssd_write_mutex_. Its blocks are marked `writing`, which keeps them
// and their bytes where they are until it has ended.
#include <algorithm>
#include <utility>

#include "common/check.h"
#include "common/log.h"
#include "storage/tier_manager.h"

namespace kvtier {
namespace {

// A batch of blocks that will leave RAM is at most this share of it, and is picked from this many
// batches' worth of the least recent: so that room is there before it is asked for.
constexpr uint64_t kUnitShare = 16;
constexpr uint64_t kUnitsAhead = 2;
constexpr uint64_t kRecordOverhead = 512;
// How long somebody who needs room waits for the writer to get on. After that blocks leave RAM
// unwritten until it does.
constexpr Duration kWriterPatience = std::chrono::seconds(1);
// For the tier's sake: nobody waits for a write by a deadline of its own.
constexpr Duration kWriteLimit = std::chrono::seconds(30);
// What may be written again only because it was used: so many bytes for each new one, with some in
// hand for a hot stretch of the log. Traces do not reach it; without it a tier whose blocks were
// all used would rewrite itself for each block it takes.
constexpr uint64_t kCarryPerByte = 4;
constexpr uint64_t kCarrySegments = 16;
constexpr uint64_t kCarryShare = 4;  // but no more than this part of the tier
// Between attempts to get back below the capacity.
constexpr Duration kTrimPause = std::chrono::seconds(2);
constexpr SlotPool::OwnerTag kUnknownOwner = UINT64_MAX;  // a block of a model not known here

WriteOp ToWriteOp(const PartIdentity& id, std::span<const std::byte> from, uint64_t checksum) {
  WriteOp op;
  op.id = id;
  op.from = from;
  op.checksum = checksum;
  return op;
}

}  // namespace

uint64_t TierManager::RecordBytes(uint64_t payload, uint64_t identity) {
  return payload + 2 * identity + kRecordOverhead;
}

// --- Who wants something written

bool TierManager::NeedsWritingLocked(EntryId block) const {
  if (ssd_ == nullptr) return false;
  const Entry& entry = index_.entry(block);
  return entry.complete() && !entry.detached && !index_.CompleteIn(block, TierKind::kSsd);
}

bool TierManager::MayWriteLocked() {
  return !writer_stuck_ && unwritten_credit_ == 0 && write_tokens_.HasTokens(clock_->Now()) &&
         ssd_->writable().ok();
}

void TierManager::KickWriterLocked() {
  if (writer_runs_) return;
  writer_runs_ = true;
  executors_.ssd_writer->Run([this] { RunWriter(); });
}

uint64_t TierManager::WriterProgress() const {
  MutexLock lock(mutex_);
  return writer_progress_;
}

// Returns when the writer has got on since `seen`, or when patience or time is over.
void TierManager::WaitForWriter(uint64_t seen, TimePoint deadline) {
  if (executors_.ssd_writer->RunOne()) return;
  MutexLock lock(mutex_);
  while (writer_runs_ && writer_progress_ == seen) {
    const Duration left = std::min(deadline - clock_->Now(), kWriterPatience);
    if (left > Duration::zero() && write_done_.WaitFor(mutex_, left)) continue;
    if (left < kWriterPatience || writer_stuck_) return;
    writer_stuck_ = true;
    Log(LogLevel::kWarning, "SSD is too slow: blocks leave RAM unwritten until it gets on",
        {{"waited_ms", kWriterPatience / std::chrono::milliseconds(1)}});
    return;
  }
}

// OK when every part of these blocks that RAM has is on SSD, synced. They are pinned by the caller.
absl::Status TierManager::MakeDurable(std::span<const EntryId> path, TimePoint deadline) {
  auto request = std::make_shared<WriteRequest>();
  {
    MutexLock lock(mutex_);
    for (EntryId block : path) AddPinLocked(block);
    request->pins =
        std::make_shared<const PinSet>(this, std::vector<EntryId>(path.begin(), path.end()));
    write_requests_.push_back(request);
    KickWriterLocked();
  }
  while (executors_.ssd_writer->RunOne()) {
  }
  MutexLock lock(mutex_);
  while (!request->done) {
    const Duration left = deadline - clock_->Now();
    if (left <= Duration::zero() || !write_done_.WaitFor(mutex_, left)) {
      return absl::DeadlineExceededError("the blocks are held, but are not on SSD in time");
    }
  }
  return request->status;
}

// --- The writer

void TierManager::RunWriter() {
  for (;;) {
    MutexLock writing(ssd_write_mutex_);
    WriteBatch batch;
    {
      MutexLock lock(mutex_);
      if (!PickLocked(&batch)) {
        writer_runs_ = false;
        break;
      }
    }
    const absl::Status written = WriteOut(&batch);
    EndBatch(&batch, written);
  }
  write_done_.NotifyAll();
}

// Bytes of RAM that are written together when nobody waits for them in particular.
uint64_t TierManager::WriteUnit() const {
  return std::min(ssd_->segment_bytes(), ram_->usage().capacity_bytes / kUnitShare);
}

// False when there is nothing to do.
bool TierManager::PickLocked(WriteBatch* batch) {
  PickRequestedLocked(batch);
  if (batch->requests.empty() && MayWriteLocked()) PickLeavingLocked(batch);
  room_wanted_ = false;
  evicted_since_pick_ = 0;
  return !batch->requests.empty() || !batch->fresh.empty();
}

void TierManager::PickRequestedLocked(WriteBatch* batch) {
  const uint64_t limit = ssd_->segment_bytes();
  for (const std::shared_ptr<WriteRequest>& request : write_requests_) {
    const std::vector<EntryId>& path = request->pins->blocks();
    size_t next = request->next;
    for (; next < path.size() && batch->fresh_bytes < limit; ++next) AddLocked(path[next], batch);
    batch->requests.emplace_back(request, next);
    if (batch->fresh_bytes >= limit) return;
  }
}

// The least recent blocks of RAM, as far as the SSD lacks them. A few are not worth a segment,
// unless somebody waits.
void TierManager::PickLeavingLocked(WriteBatch* batch) {
  const uint64_t unit = WriteUnit();
  std::vector<EntryId> unwritten;
  uint64_t walked = 0, unwritten_bytes = 0;
  for (EntryId block = index_.oldest(TierKind::kRam);
       block != kNoEntry && walked <= kUnitsAhead * unit && unwritten_bytes <= unit;
       block = index_.NextNewer(block, TierKind::kRam)) {
    const Entry& entry = index_.entry(block);
    const uint64_t bytes = models_[entry.model]->block_bytes;
    walked += bytes;
    if (entry.in_use() || !NeedsWritingLocked(block)) continue;
    unwritten_bytes += bytes;
    unwritten.push_back(block);
  }
  if (unwritten_bytes < unit / 2 && !room_wanted_) return;
  for (EntryId block : unwritten) {
    if (!AddWithAncestorsLocked(block, unit, batch)) return;
  }
}

// A block on SSD whose ancestors are only in RAM could not be found after a crash. False when the
// batch is full.
bool TierManager::AddWithAncestorsLocked(EntryId block, uint64_t limit, WriteBatch* batch) {
  std::vector<EntryId> missing;
  while (block != kNoEntry && batch->seen.insert(block).second) {
    if (NeedsWritingLocked(block)) missing.push_back(block);
    const Entry& entry = index_.entry(block);
    block = entry.depth == 0 ? kNoEntry : index_.FindKey(entry.parent);
  }
  for (; !missing.empty(); missing.pop_back()) {
    AddLocked(missing.back(), batch);
    if (batch->fresh_bytes >= limit) return false;
  }
  return true;
}

// The parts of a block that RAM has and the SSD lacks.
void TierManager::AddLocked(EntryId block, WriteBatch* batch) {
  if (index_.entry(block).writing) return;
  const std::span<const PartState> parts = index_.parts(block);
  bool added = false;
  for (uint16_t part = 0; part < parts.size(); ++part) {
    if (parts[part].at[static_cast<int>(TierKind::kRam)] == kNoLocation) continue;
    if (parts[part].at[static_cast<int>(TierKind::kSsd)] != kNoLocation) continue;
    batch->fresh.push_back(MoveLocked(block, part, TierKind::kRam));
    batch->fresh_bytes +=
        RecordBytes(batch->fresh.back().bytes, batch->fresh.back().id.identity.size());
    added = true;
  }
  if (!added) return;
  index_.entry(block).ssd_hit = false;
  MarkWritingLocked(block, batch);
}

void TierManager::MarkWritingLocked(EntryId block, WriteBatch* batch) {
  Entry& entry = index_.entry(block);
  if (entry.writing) return;
  entry.writing = true;
  batch->blocks.push_back(block);
}

absl::Status TierManager::WriteOut(WriteBatch* batch) {
  KVTIER_RETURN_IF_ERROR(ssd_->writable());
  KVTIER_RETURN_IF_ERROR(MakeSsdRoom(batch));
  while (!batch->carried.empty() || !batch->fresh.empty() || !batch->leaving.empty()) {
    KVTIER_RETURN_IF_ERROR(WriteSegment(batch));
  }
  return absl::OkStatus();
}

// --- Room on SSD

// Takes the oldest segments out of the log until the batch fits in their place. What of them is in
// use joins the batch.
absl::Status TierManager::MakeSsdRoom(WriteBatch* batch) {
  const auto bytes_for = [this](const std::vector<Move>& moves) {
    if (moves.empty()) return uint64_t{0};
    std::vector<WriteOp> ops;
    constexpr const std::byte* kNotReadYet = nullptr;
    for (const Move& move : moves) ops.push_back(ToWriteOp(move.id, {kNotReadYet, move.bytes}, 0));
    return ssd_->BytesFor(ops);
  };
  size_t most = 0;
  {
    MutexLock lock(mutex_);
    most = log_.size();
  }
  uint64_t fresh = bytes_for(batch->fresh), carried = 0;
  for (size_t taken = 0;; ++taken) {
    const TierUsage usage = ssd_->usage();
    uint64_t leaving = 0;
    for (const Segment& segment : batch->leaving) leaving += segment.bytes;
    const uint64_t coming = carried + fresh;
    if (usage.used_bytes + coming <= usage.capacity_bytes + leaving) return absl::OkStatus();
    // Once around: what is left then is in use.
    if (taken == most || !TakeOldestSegment(batch)) {
      return absl::ResourceExhaustedError(absl::StrCat("tier ssd has no room for ", coming,
                                                       " bytes within its capacity of ",
                                                       usage.capacity_bytes, " bytes"));
    }
    carried = bytes_for(batch->carried);
    if (carried < ssd_->segment_bytes()) continue;
    KVTIER_RETURN_IF_ERROR(WriteSegment(batch));
    carried = bytes_for(batch->carried);
    fresh = bytes_for(batch->fresh);
  }
}

bool TierManager::LivesAtLocked(const Segment::Record& record) const {
  if (record.owner == kUnknownOwner) return false;
  const EntryId block = OwnerBlock(record.owner);
  const uint16_t part = OwnerPart(record.owner);
  return index_.live(block) && part < index_.parts(block).size() &&
         index_.parts(block)[part].at[static_cast<int>(TierKind::kSsd)] == record.location;
}

uint64_t TierManager::MostCarry() const {
  return std::min(kCarrySegments * ssd_->segment_bytes(),
                  ssd_->usage().capacity_bytes / kCarryShare);
}

// Second chance: what was used since it was written, or is in use now, is written again.
bool TierManager::TakeOldestSegment(WriteBatch* batch) {
  MutexLock lock(mutex_);
  if (log_.empty()) return false;
  Segment segment = std::move(log_.front());
  log_.pop_front();
  std::erase_if(segment.records, [this](const Segment::Record& record) KVTIER_REQUIRES(mutex_) {
    return record.owner != kUnknownOwner && !LivesAtLocked(record);
  });
  if (segment.records.empty()) return true;  // its room came back with its last record
  for (const Segment::Record& record : segment.records) {
    if (record.owner == kUnknownOwner) continue;
    const EntryId block = OwnerBlock(record.owner);
    const Entry& entry = index_.entry(block);
    const uint64_t bytes = models_[entry.model]->block_bytes;
    const bool again = entry.ssd_hit && carry_credit_ >= bytes &&
                       !batch->carried_blocks.contains(block) &&
                       write_tokens_.HasTokens(clock_->Now());
    if (again) carry_credit_ -= bytes;
    if (again || entry.in_use()) CarryLocked(block, batch);
  }
  segment.bytes = ssd_->SegmentBytes(segment.records.front().location);
  batch->leaving.push_back(std::move(segment));
  return true;
}

// All its parts, wherever in the log they are: a block stays together.
void TierManager::CarryLocked(EntryId block, WriteBatch* batch) {
  if (!batch->carried_blocks.insert(block).second) return;
  const std::span<const PartState> parts = index_.parts(block);
  Entry& entry = index_.entry(block);
  entry.carried += entry.carried < UINT8_MAX;
  entry.ssd_hit = false;
  for (uint16_t part = 0; part < parts.size(); ++part) {
    if (parts[part].at[static_cast<int>(TierKind::kSsd)] == kNoLocation) continue;
    const bool in_ram = parts[part].at[static_cast<int>(TierKind::kRam)] != kNoLocation;
    batch->carried.push_back(MoveLocked(block, part, in_ram ? TierKind::kRam : TierKind::kSsd));
  }
  MarkWritingLocked(block, batch);
}

// --- One segment

// As much of the batch as one segment holds, carried parts first; and what it replaces goes.
absl::Status TierManager::WriteSegment(WriteBatch* batch) {
  std::vector<Move> moves;
  uint64_t bytes = 0;
  for (std::vector<Move>* from : {&batch->carried, &batch->fresh}) {
    size_t taken = 0;
    for (; taken < from->size(); ++taken) {
      const Move& move = (*from)[taken];
      bytes += RecordBytes(move.bytes, move.id.identity.size());
      if (bytes > ssd_->segment_bytes() && !moves.empty()) break;
      moves.push_back(move);
    }
    from->erase(from->begin(), from->begin() + static_cast<ptrdiff_t>(taken));
    if (!from->empty()) break;
  }
  std::vector<WriteOp> ops;
  LoadFromSsd(&moves, &ops);
  if (!ops.empty()) {
    NoteRoots(ops);
    ssd_->Write(ops, clock_->Now() + kWriteLimit);
    KVTIER_RETURN_IF_ERROR(ops.front().status);
    CommitSegment(moves, ops);
  }
  EraseLeaving(batch);
  return absl::OkStatus();
}

// Where each part's bytes are. Those only the SSD has are read; what cannot be read is left out.
void TierManager::LoadFromSsd(std::vector<Move>* moves, std::vector<WriteOp>* ops) {
  uint64_t staged = 0;
  for (const Move& move : *moves) staged += move.tier == TierKind::kSsd ? move.bytes : 0;
  if (carry_buffer_.size() < staged) carry_buffer_.resize(staged);
  std::span<std::byte> rest(carry_buffer_);
  std::vector<Move> readable;
  for (const Move& move : *moves) {
    std::span<const std::byte> from;
    if (move.tier == TierKind::kRam) {
      from = ram_->Bytes(move.from).first(move.bytes);
    } else {
      ReadOp read{move.id, move.from, move.checksum, rest.first(move.bytes), absl::OkStatus()};
      ssd_->Read(std::span(&read, 1), clock_->Now() + kWriteLimit);
      if (!read.status.ok()) continue;
      from = read.to;
      rest = rest.subspan(move.bytes);
    }
    ops->push_back(ToWriteOp(move.id, from, move.checksum));
    ops->back().owner = ToOwner(move.block, move.part);
    readable.push_back(move);
  }
  *moves = std::move(readable);
}

// Before they are written: even a write that fails may leave something behind.
void TierManager::NoteRoots(const std::vector<WriteOp>& ops) {
  MutexLock lock(mutex_);
  for (const WriteOp& op : ops) roots_on_ssd_.insert(op.id.root);
}

void TierManager::CommitSegment(const std::vector<Move>& moves, const std::vector<WriteOp>& ops) {
  Erasures erasures;
  {
    MutexLock lock(mutex_);
    TierStats& ssd = counts_.tiers[static_cast<int>(TierKind::kSsd)];
    Segment segment;
    for (size_t i = 0; i < ops.size(); ++i) {
      const Move& move = moves[i];
      const Location old = index_.parts(move.block)[move.part].at[static_cast<int>(TierKind::kSsd)];
      if (old != kNoLocation) erasures.at[static_cast<int>(TierKind::kSsd)].push_back(old);
      const bool was_complete = index_.CompleteIn(move.block, TierKind::kSsd);
      SetLocationLocked(move.block, move.part, TierKind::kSsd, ops[i].location);
      const bool now_complete = index_.CompleteIn(move.block, TierKind::kSsd);
      ssd.demotions += now_complete && !was_complete;
      counts_.ssd_carried_blocks += now_complete && was_complete && move.part == 0;
      ssd.bytes_written += move.bytes;
      counts_.tiers[static_cast<int>(move.tier)].bytes_read += move.bytes;
      write_tokens_.Take(move.bytes, clock_->Now());
      if (old == kNoLocation) carry_credit_ += kCarryPerByte * move.bytes;
      segment.records.push_back({ops[i].owner, ops[i].location});
    }
    carry_credit_ = std::min(carry_credit_, MostCarry());
    log_.push_back(std::move(segment));
    ++writer_progress_;
  }
  write_done_.NotifyAll();
  Erase(erasures);
}

// What is still there of the segments that leave goes, but for what is still to be carried. A block
// that has come into use meanwhile keeps its segment, which is then the next to leave.
void TierManager::EraseLeaving(WriteBatch* batch) {
  Erasures erasures;
  {
    MutexLock lock(mutex_);
    for (Segment& segment : batch->leaving) {
      std::erase_if(segment.records, [&](const Segment::Record& record) KVTIER_REQUIRES(mutex_) {
        return !StaysLocked(record, &erasures);
      });
    }
    std::erase_if(batch->leaving, [](const Segment& segment) { return segment.records.empty(); });
    if (batch->carried.empty()) PutBackLocked(batch);
  }
  Erase(erasures);
}

bool TierManager::StaysLocked(const Segment::Record& record, Erasures* erasures) {
  if (record.owner == kUnknownOwner) {
    erasures->at[static_cast<int>(TierKind::kSsd)].push_back(record.location);
    return false;
  }
  if (!LivesAtLocked(record)) return false;
  const EntryId block = OwnerBlock(record.owner);
  if (index_.entry(block).in_use()) return true;
  LeaveTierLocked(block, TierKind::kSsd, erasures);
  return false;
}

void TierManager::PutBackLocked(WriteBatch* batch) {
  for (; !batch->leaving.empty(); batch->leaving.pop_back()) {
    log_.push_front(std::move(batch->leaving.back()));
  }
}

void TierManager::EndBatch(WriteBatch* batch, const absl::Status& status) {
  Erasures erasures;
  {
    MutexLock lock(mutex_);
    PutBackLocked(batch);  // what they still hold is not safe elsewhere
    for (EntryId block : batch->blocks) {
      Entry& entry = index_.entry(block);
      entry.writing = false;
      entry.ssd_hit |= !status.ok() && batch->carried_blocks.contains(block);
      SettleLocked(block, &erasures);
    }
    for (auto& [request, next] : batch->requests) {
      request->next = next;
      request->done = !status.ok() || next == request->pins->blocks().size();
      request->status = status;
      if (request->done) std::erase(write_requests_, request);
    }
    writer_stuck_ = false;
    unwritten_credit_ = status.ok() ? 0 : WriteUnit();
    if (absl::IsResourceExhausted(status)) carry_credit_ = 0;  // the next one needs the room
    ++writer_progress_;
  }
  write_done_.NotifyAll();
  Erase(erasures);
  batch->requests.clear();  // their pins end here, if nobody waits any more
}

// --- Resizing, stopping, starting

void TierManager::MaintainSsd() {
  if (ssd_ == nullptr) return;
  MutexLock lock(mutex_);
  if (maintaining_) return;
  maintaining_ = true;
  executors_.ssd_writer->Run([this] {
    {
      MutexLock writing(ssd_write_mutex_);
      ssd_->Maintain();
      if (TrimIsDue()) TrimSsd().IgnoreError();  // the next one tries again
    }
    MutexLock lock(mutex_);
    maintaining_ = false;
  });
}

// What was in use when its segment was to leave may be free now. Not all the time: what is still in
// use is written again by each attempt.
bool TierManager::TrimIsDue() {
  const TierUsage usage = ssd_->usage();
  if (usage.used_bytes <= usage.capacity_bytes || !ssd_->writable().ok()) return false;
  if (clock_->Now() < next_trim_) return false;
  next_trim_ = clock_->Now() + kTrimPause;
  return true;
}

// Until what is there fits.
absl::Status TierManager::TrimSsd() {
  WriteBatch batch;
  const absl::Status trimmed = WriteOut(&batch);
  EndBatch(&batch, trimmed);
  return trimmed;
}

// Downwards by a segment at a time, of the size that the new capacity has: what is in use is
// written again before its old place goes. What cannot go now goes later: see MaintainSsd.
absl::Status TierManager::ResizeSsd(uint64_t bytes) {
  const uint64_t previous = ssd_->usage().capacity_bytes;
  for (bool there = false; !there;) {
    MutexLock writing(ssd_write_mutex_);
    ssd_->SetCapacity(bytes);
    const uint64_t used = ssd_->usage().used_bytes;
    const uint64_t step = used > ssd_->segment_bytes() ? used - ssd_->segment_bytes() : 0;
    there = step <= bytes;
    ssd_->SetCapacity(std::max(bytes, step));
    absl::Status trimmed = TrimSsd();
    if (absl::IsResourceExhausted(trimmed)) trimmed = TrimSsd();  // with no second chances
    if (trimmed.ok()) continue;
    if (!ssd_->writable().ok()) {
      ssd_->SetCapacity(previous);
      return trimmed;
    }
    ssd_->SetCapacity(bytes);
    there = true;
  }
  return absl::OkStatus();
}

uint64_t TierManager::WriteDownAll(TimePoint deadline) {
  if (ssd_ == nullptr) return 0;
  EndAllLeases();
  MutexLock writing(ssd_write_mutex_);
  absl::Status written;
  EntryId block = kNoEntry;
  // More than it holds would push out what was written first, which is the most recent.
  uint64_t room = ssd_->usage().capacity_bytes;
  do {
    WriteBatch batch;
    {
      MutexLock lock(mutex_);
      // Where the last batch ended; from the newest again when that block has left.
      const bool there =
          block != kNoEntry && index_.live(block) && index_.entry(block).listed(TierKind::kRam);
      if (!there) block = index_.newest(TierKind::kRam);
      for (; block != kNoEntry; block = index_.NextOlder(block, TierKind::kRam)) {
        if (index_.entry(block).in_use() || !NeedsWritingLocked(block)) continue;
        if (!AddWithAncestorsLocked(block, ssd_->segment_bytes(), &batch)) break;
      }
    }
    if (batch.fresh.empty()) break;
    room -= std::min(room, batch.fresh_bytes + ssd_->segment_bytes() / 8);
    written = WriteOut(&batch);
    EndBatch(&batch, written);
  } while (written.ok() && clock_->Now() < deadline && room > 2 * ssd_->segment_bytes());
  if (!written.ok()) {
    Log(LogLevel::kWarning, "blocks in RAM cannot be written to SSD",
        {{"reason", std::string(written.message())}});
  }
  MutexLock lock(mutex_);
  uint64_t left = 0;
  for (block = index_.oldest(TierKind::kRam); block != kNoEntry;
       block = index_.NextNewer(block, TierKind::kRam)) {
    left += NeedsWritingLocked(block);
  }
  return left;
}

void TierManager::Restore() {
  if (ssd_ == nullptr) return;
  MutexLock writing(ssd_write_mutex_);
  ssd_->Recover([this](std::span<const StoredPart> parts) { RestoreSegment(parts); });
  {
    MutexLock lock(mutex_);
    counts_.ssd_restored_blocks = index_.complete_in(TierKind::kSsd);
    carry_credit_ = MostCarry();
  }
  const TierUsage usage = ssd_->usage();
  if (usage.used_bytes <= usage.capacity_bytes) return;
  const absl::Status trimmed = TrimSsd();
  if (trimmed.ok()) return;
  Log(LogLevel::kWarning, "SSD tier holds more than its capacity and cannot shrink now",
      {{"reason", std::string(trimmed.message())}});
}

void TierManager::RestoreSegment(std::span<const StoredPart> parts) {
  Segment segment;
  Erasures erasures;
  {
    MutexLock lock(mutex_);
    for (const StoredPart& part : parts) {
      EntryId block = kNoEntry;
      const bool known = RestorePartLocked(part, &block, &erasures);
      const SlotPool::OwnerTag owner = known ? ToOwner(block, part.id.part) : kUnknownOwner;
      segment.records.push_back({owner, part.location});
    }
    log_.push_back(std::move(segment));
  }
  Erase(erasures);
}

// False for a part that nobody here can ask for.
bool TierManager::RestorePartLocked(const StoredPart& part, EntryId* block, Erasures* erasures) {
  roots_on_ssd_.insert(part.id.root);
  const auto known = model_numbers_.find(part.id.model);
  if (known == model_numbers_.end()) return false;
  const Model& model = *models_[known->second];
  if (part.id.part_count != model.part_bytes.size() || part.id.part >= part.id.part_count ||
      part.bytes != model.part_bytes[part.id.part]) {
    return false;
  }
  const SpaceId space = RestoreSpaceLocked(model.number, part.id.root);
  const EntryId previous = part.id.depth == 0 ? kNoEntry : index_.FindKey(part.id.parent);
  *block = index_.FindKey(part.id.key);
  if (*block == kNoEntry) {
    const BlockIdentity identity{part.id.key, part.id.parent, part.id.identity};
    *block =
        index_.Insert(identity, space, model.number, part.id.depth, part.id.part_count, previous);
    ++spaces_.at(space).refs;
  } else if (index_.entry(*block).depth != part.id.depth ||
             index_.FindChild(previous, part.id.parent, part.id.identity, space) != *block) {
    return false;  // another identity with this key came first
  }
  PartState& state = index_.parts(*block)[part.id.part];
  const Location older = state.at[static_cast<int>(TierKind::kSsd)];
  if (older != kNoLocation) erasures->at[static_cast<int>(TierKind::kSsd)].push_back(older);
  state.checksum = part.checksum;
  index_.entry(*block).carried = part.id.carried;
  SetLocationLocked(*block, part.id.part, TierKind::kSsd, part.location);
  return true;
}

SpaceId TierManager::RestoreSpaceLocked(uint32_t model, const RootFingerprint& fingerprint) {
  const auto [it, added] = restored_spaces_.try_emplace(fingerprint, next_space_);
  if (added) spaces_[next_space_++] = Space{model, "", fingerprint, 0, false};
  return it->second;
}

}  // namespace kvtier
