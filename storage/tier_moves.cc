// The part of TierManager that moves payload in and into memory: making room, filling, promoting,
// resizing. What goes to SSD is in ssd_writer.cc.
// Copies run outside the lock; a block that is being copied is marked `moving` or `filling`, and
// the mark is what keeps it from leaving meanwhile.
#include <algorithm>

#include "common/check.h"
#include "storage/sessions.h"
#include "storage/tier_manager.h"

namespace kvtier {
namespace {

// Promotions that may wait for a thread; more are dropped, as they are only hints.
constexpr uint32_t kMaxPromotionsQueued = 64;
// How long a copy that no caller waits for may take.
constexpr Duration kBackgroundLimit = std::chrono::seconds(30);
// Payload in buffers outside the tiers, all fetches together; one part may be larger.
constexpr uint64_t kBufferLimit = uint64_t{64} << 20;

}  // namespace

MemoryTier* TierManager::memory_tier(TierKind kind) const {
  return kind == TierKind::kGpu ? gpu_.get() : kind == TierKind::kRam ? ram_.get() : nullptr;
}

// --- Making room

// Empty when no room can be made.
Slot TierManager::AllocateInRam(uint64_t bytes, MemoryDomain domain, TimePoint deadline) {
  do {
    if (Slot slot = ram_->Allocate(bytes, domain)) return slot;
  } while (MakeRoom(TierKind::kRam, bytes, domain, deadline));
  return Slot();
}

// One step towards room for a part of `bytes`: memory that another size class or domain does not
// use, else the least recent block. False when there was nothing to gain, and for a part that would
// not fit if everything left.
bool TierManager::MakeRoom(TierKind kind, uint64_t bytes, MemoryDomain domain, TimePoint deadline) {
  if (MemoryTier* memory = memory_tier(kind); memory != nullptr) {
    if (!memory->pool().CanHold(bytes)) return false;
    if (DrainExtent(kind, bytes, domain)) return true;
  }
  return EvictOldest(kind, deadline);
}

// A block that leaves RAM and is not on SSD leaves the GPU tier with it: what is left would be the
// only copy, in an order that knows nothing of its ancestors.
void TierManager::LeaveTierLocked(EntryId block, TierKind kind, Erasures* erasures) {
  DropFromTierLocked(block, kind, erasures);
  ++counts_.tiers[static_cast<int>(kind)].evictions;
  if (kind != TierKind::kGpu && !index_.AnyIn(block, TierKind::kRam) &&
      !index_.CompleteIn(block, TierKind::kSsd)) {
    DropFromTierLocked(block, TierKind::kGpu, erasures);
  }
  SettleLocked(block, erasures);
}

// The GPU tier holds copies only of what RAM or SSD holds too, so leaving it costs nothing.
bool TierManager::EvictOldest(TierKind kind, TimePoint deadline) {
  if (kind == TierKind::kRam) return EvictOldestFromRam(deadline);
  Erasures erasures;
  {
    MutexLock lock(mutex_);
    const EntryId block = OldestUnusedLocked(kind);
    if (block == kNoEntry) return false;
    LeaveTierLocked(block, kind, &erasures);
  }
  Erase(erasures);
  return true;
}

EntryId TierManager::OldestUnusedLocked(TierKind kind) const {
  EntryId block = index_.oldest(kind);
  while (block != kNoEntry && index_.entry(block).in_use()) block = index_.NextNewer(block, kind);
  return block;
}

// A block that the SSD lacks waits for the writer, or leaves unwritten when nothing can be written
// now: room is needed, and a cache may lose what it cannot write.
bool TierManager::EvictOldestFromRam(TimePoint deadline) {
  Erasures erasures;
  uint64_t progress = 0;
  bool wait = false;
  {
    MutexLock lock(mutex_);
    progress = writer_progress_;
    const bool in_time = clock_->Now() < deadline;
    const EntryId block = OldestUnusedLocked(TierKind::kRam);
    if (block == kNoEntry) {
      if (!writer_runs_ || writer_stuck_ || !in_time) return false;
      wait = true;  // what it holds comes free
    } else if (NeedsWritingLocked(block) && in_time && MayWriteLocked()) {
      room_wanted_ = true;
      KickWriterLocked();
      wait = true;
    } else {
      EvictFromRamLocked(block, &erasures);
    }
  }
  Erase(erasures);
  if (wait) WaitForWriter(progress, deadline);
  return true;
}

void TierManager::EvictFromRamLocked(EntryId block, Erasures* erasures) {
  const uint64_t bytes = models_[index_.entry(block).model]->block_bytes;
  if (NeedsWritingLocked(block)) {
    const bool limited = !write_tokens_.HasTokens(clock_->Now());
    ++(limited ? counts_.ssd_limited_blocks : counts_.ssd_skipped_blocks);
    unwritten_credit_ -= std::min(unwritten_credit_, bytes);
  }
  evicted_since_pick_ += bytes;
  LeaveTierLocked(block, TierKind::kRam, erasures);
  if (ssd_ != nullptr && evicted_since_pick_ >= WriteUnit() && MayWriteLocked()) {
    KickWriterLocked();  // so that the next ones need not wait
  }
}

// --- Moves

// One part's copy out of a tier that has it. The identity stays where it is while the block is in
// use.
TierManager::Move TierManager::MoveLocked(EntryId block, uint16_t part, TierKind from) const {
  const Entry& entry = index_.entry(block);
  const Model& model = *models_[entry.model];
  const PartState& state = index_.parts(block)[part];
  Move move;
  move.block = block;
  move.part = part;
  move.tier = from;
  move.from = state.at[static_cast<int>(from)];
  move.bytes = model.part_bytes[part];
  move.checksum = state.checksum;
  move.id.model = model.id;
  move.id.root = spaces_.at(entry.space).fingerprint;
  move.id.key = entry.key;
  move.id.parent = entry.parent;
  move.id.identity = std::string_view(entry.identity, entry.identity_bytes);
  move.id.depth = entry.depth;
  move.id.part = part;
  move.id.part_count = entry.part_count;
  move.id.carried = entry.carried;
  return move;
}

// --- Filling RAM from another tier

absl::StatusOr<PartView> TierManager::ReadPart(EntryId block, uint16_t part,
                                               const std::shared_ptr<const PinSet>& pins,
                                               const ReadTo& to, TimePoint deadline) {
  for (;;) {
    Move move;
    {
      MutexLock lock(mutex_);
      const Entry& entry = index_.entry(block);
      const Model& model = *models_[entry.model];
      const PartState& state = index_.parts(block)[part];
      if (!GroupPresentLocked(block, part / model.ranks)) return absl::NotFoundError("miss");
      if (state.at[static_cast<int>(TierKind::kRam)] != kNoLocation) {
        return ViewInRamLocked(block, part, pins, to);
      }
      if (entry.filling) {
        const Duration left = deadline - clock_->Now();
        if (left <= Duration::zero() || !fill_done_.WaitFor(mutex_, left)) {
          return absl::DeadlineExceededError("waiting for another caller's fill of this block");
        }
        continue;
      }
      const bool on_gpu = state.at[static_cast<int>(TierKind::kGpu)] != kNoLocation;
      index_.entry(block).filling = true;
      move = MoveLocked(block, part, on_gpu ? TierKind::kGpu : TierKind::kSsd);
    }
    absl::StatusOr<PartView> view = Fill(move, to, deadline);
    if (view.ok() && view->hold == nullptr) view->hold = pins;
    // A copy that is damaged is gone now: another tier has the block, or it is a miss.
    if (absl::IsNotFound(view.status()) || absl::IsDataLoss(view.status())) continue;
    return view;
  }
}

absl::StatusOr<PartView> TierManager::ViewInRamLocked(EntryId block, uint16_t part,
                                                      const std::shared_ptr<const PinSet>& pins,
                                                      const ReadTo& to) {
  const uint64_t bytes = models_[index_.entry(block).model]->part_bytes[part];
  const PartState& state = index_.parts(block)[part];
  const SlotPool::Place at = ram_->Locate(state.at[static_cast<int>(TierKind::kRam)]);
  if (to.keep_to_domain && at.domain != to.domain) {
    return absl::ResourceExhaustedError("this block lies in another domain of RAM");
  }
  counts_.tiers[static_cast<int>(TierKind::kRam)].bytes_read += bytes;
  return PartView{
      at.bytes.first(bytes), state.checksum, TierKind::kRam, pins, at.region, at.offset};
}

// Reads one part into RAM, or, unless that is no use, into a buffer of its own when nothing in RAM
// may leave. The block is pinned and marked filling; the mark ends here.
absl::StatusOr<PartView> TierManager::Fill(const Move& move, const ReadTo& read_to,
                                           TimePoint deadline) {
  Slot slot = AllocateInRam(move.bytes, read_to.domain, deadline);
  std::shared_ptr<std::byte[]> buffer;
  if (!slot && read_to.without_room != WithoutRoom::kGiveUp) {
    buffer = TakeBuffer(move.bytes, read_to.without_room, deadline);
  }
  SlotPool::Place at;
  if (slot) at = ram_->pool().Locate(slot.id());
  const std::span<std::byte> to =
      slot ? slot.bytes().first(move.bytes) : std::span(buffer.get(), buffer ? move.bytes : 0);
  ReadOp op{move.id, move.from, move.checksum, to, absl::OkStatus()};
  if (to.empty()) {
    op.status = absl::ResourceExhaustedError("no room in RAM to read this block into");
  } else {
    tier(move.tier)->Read(std::span(&op, 1), deadline);
  }
  EndFill(move, op.status, std::move(slot));
  if (!op.status.ok()) return op.status;
  return PartView{to, move.checksum, move.tier, buffer, at.region, at.offset};
}

void TierManager::EndFill(const Move& move, const absl::Status& status, Slot slot) {
  Erasures erasures;
  {
    MutexLock lock(mutex_);
    const int from = static_cast<int>(move.tier);
    index_.entry(move.block).filling = false;
    if (status.ok()) counts_.tiers[from].bytes_read += move.bytes;
    counts_.checksum_failures += absl::IsDataLoss(status);
    // Unless it was moved meanwhile: then the copy in its new place counts.
    const bool still_there = index_.parts(move.block)[move.part].at[from] == move.from;
    if ((absl::IsDataLoss(status) || absl::IsNotFound(status)) && still_there) {
      SetLocationLocked(move.block, move.part, move.tier, kNoLocation);
      erasures.at[from].push_back(move.from);
    }
    if (status.ok() && slot) {
      TierStats& ram = counts_.tiers[static_cast<int>(TierKind::kRam)];
      ++ram.promotions;
      ram.bytes_written += move.bytes;
      const Location at = ram_->Commit(std::move(slot), ToOwner(move.block, move.part));
      SetLocationLocked(move.block, move.part, TierKind::kRam, at);
    }
  }
  fill_done_.NotifyAll();
  Erase(erasures);
}

// Null when none came free in time. Who reads ahead takes what is spare, and does not wait: the
// other half is for those whose stream cannot go on without.
std::shared_ptr<std::byte[]> TierManager::TakeBuffer(uint64_t bytes, WithoutRoom kind,
                                                     TimePoint deadline) {
  {
    MutexLock lock(mutex_);
    const bool spare = kind == WithoutRoom::kSpareBuffer;
    if (spare && buffer_bytes_ + bytes > kBufferLimit / 2) return nullptr;
    while (buffer_bytes_ > 0 && buffer_bytes_ + bytes > kBufferLimit) {
      const Duration left = deadline - clock_->Now();
      if (left <= Duration::zero() || !buffer_back_.WaitFor(mutex_, left)) return nullptr;
    }
    buffer_bytes_ += bytes;
  }
  const auto give_back = [this, bytes](std::byte* buffer) {
    delete[] buffer;
    {
      MutexLock lock(mutex_);
      buffer_bytes_ -= bytes;
    }
    buffer_back_.NotifyAll();
  };
  return std::shared_ptr<std::byte[]>(new std::byte[bytes], give_back);
}

// --- Promotion on request

void TierManager::StartPromotion(std::shared_ptr<const PinSet> pins, uint32_t blocks, TierKind to) {
  if (to == TierKind::kSsd || tier(to) == nullptr) return;
  {
    MutexLock lock(mutex_);
    if (promotions_queued_ == kMaxPromotionsQueued) return;
    ++promotions_queued_;
  }
  executors_.general->Run([this, pins = std::move(pins), blocks, to] {
    Promote(pins, blocks, to);
    MutexLock lock(mutex_);
    --promotions_queued_;
  });
}

void TierManager::Promote(const std::shared_ptr<const PinSet>& pins, uint32_t blocks, TierKind to) {
  if (blocks == 0) return;
  std::vector<std::unique_ptr<FetchSession>> sessions;
  {
    MutexLock lock(mutex_);
    for (uint64_t bytes : models_[index_.entry(pins->blocks().front()).model]->part_bytes) {
      const auto part = static_cast<uint16_t>(sessions.size());
      sessions.push_back(std::make_unique<FetchSession>(this, pins, 0, blocks, part, bytes));
    }
  }
  const TimePoint deadline = clock_->Now() + kBackgroundLimit;
  for (uint32_t i = 0; i < blocks; ++i) {
    const EntryId block = pins->blocks()[i];
    {
      MutexLock lock(mutex_);
      if (index_.CompleteIn(block, to)) continue;
    }
    for (uint16_t part = 0; part < sessions.size(); ++part) {
      const absl::StatusOr<PartView> view = sessions[part]->Read(i, deadline);
      if (!view.ok()) return;
      // Not past a block that found no room: a child must not outlive its parent up there.
      if (to == TierKind::kGpu && !PromoteToGpu(block, part, *view)) return;
    }
  }
}

bool TierManager::PromoteToGpu(EntryId block, uint16_t part, const PartView& view) {
  WriteOp op;
  op.from = view.bytes;
  op.checksum = view.checksum;
  op.owner = ToOwner(block, part);
  const TimePoint deadline = clock_->Now() + kBackgroundLimit;
  do {
    op.status = absl::OkStatus();
    gpu_->Write(std::span(&op, 1), deadline);
  } while (absl::IsResourceExhausted(op.status) &&
           MakeRoom(TierKind::kGpu, op.from.size(), /*domain=*/{}, deadline));
  if (!op.status.ok()) return false;
  Erasures erasures;
  {
    MutexLock lock(mutex_);
    if (index_.parts(block)[part].at[static_cast<int>(TierKind::kGpu)] != kNoLocation) {
      erasures.at[static_cast<int>(TierKind::kGpu)].push_back(op.location);  // another was faster
    } else {
      TierStats& gpu = counts_.tiers[static_cast<int>(TierKind::kGpu)];
      ++gpu.promotions;
      gpu.bytes_written += view.bytes.size();
      SetLocationLocked(block, part, TierKind::kGpu, op.location);
    }
  }
  Erase(erasures);
  return true;
}

// --- Extents: moving live blocks together so that memory comes free

// Marks the blocks of a drain, leaving out of it those that have left their slot since it began.
// False, and nothing marked, when one is in use: pinned bytes stay where they are.
bool TierManager::MarkMoving(TierKind kind, SlotPool::Drain* drain) {
  MutexLock lock(mutex_);
  std::vector<SlotPool::Drain::Live> here;
  for (const SlotPool::Drain::Live& live : drain->live) {
    const EntryId block = OwnerBlock(live.owner);
    if (!index_.live(block) || OwnerPart(live.owner) >= index_.parts(block).size()) continue;
    const PartState& state = index_.parts(block)[OwnerPart(live.owner)];
    if (state.at[static_cast<int>(kind)] != MemoryTier::ToLocation(live.slot)) continue;
    if (index_.entry(block).in_use()) return false;
    here.push_back(live);
  }
  for (const SlotPool::Drain::Live& live : here) {
    index_.entry(OwnerBlock(live.owner)).moving = true;
  }
  drain->live = std::move(here);
  return true;
}

// Moves the live blocks of one extent into free slots elsewhere. True when the extent came free.
bool TierManager::DrainExtent(TierKind kind, uint64_t wanted_bytes, MemoryDomain domain) {
  SlotPool& pool = memory_tier(kind)->pool();
  std::optional<SlotPool::Drain> drain = pool.BeginDrain(wanted_bytes, domain);
  if (!drain.has_value()) return false;
  if (!MarkMoving(kind, &*drain)) {
    pool.EndDrain(drain->extent);
    return false;
  }
  std::vector<Slot> copies;
  for (const SlotPool::Drain::Live& live : drain->live) {
    Slot slot = pool.Allocate(live.bytes, drain->domain);
    if (!slot) break;
    const CopyOp op{slot.bytes().data(), pool.Bytes(live.slot).data(), live.bytes};
    if (!pool.device()->Copy(std::span(&op, 1)).ok()) break;
    copies.push_back(std::move(slot));
  }
  bool emptied = copies.size() == drain->live.size();
  Erasures erasures;
  {
    MutexLock lock(mutex_);
    for (const SlotPool::Drain::Live& live : drain->live) {
      index_.entry(OwnerBlock(live.owner)).moving = false;
    }
    for (size_t i = 0; i < copies.size(); ++i) {
      const SlotPool::Drain::Live& live = drain->live[i];
      if (index_.entry(OwnerBlock(live.owner)).in_use()) {  // pinned meanwhile: its bytes stay put
        emptied = false;
        continue;
      }
      const Location to = memory_tier(kind)->Commit(std::move(copies[i]), live.owner);
      SetLocationLocked(OwnerBlock(live.owner), OwnerPart(live.owner), kind, to);
      erasures.at[static_cast<int>(kind)].push_back(MemoryTier::ToLocation(live.slot));
    }
    for (const SlotPool::Drain::Live& live : drain->live) {
      const EntryId block = OwnerBlock(live.owner);
      if (index_.live(block)) SettleLocked(block, &erasures);
    }
  }
  copies.clear();
  Erase(erasures);
  pool.EndDrain(drain->extent);
  return emptied;
}

// Gives back memory above the capacity: whole extents, after moving what lives in them; and the
// least recent blocks, as many as do not fit. Stops where pinned blocks are in the way; Tick goes
// on later.
void TierManager::Shrink(TierKind kind) {
  SlotPool& pool = memory_tier(kind)->pool();
  while (pool.OverCapacity()) {
    if (DrainExtent(kind, 0, {})) continue;
    const SlotPool::Usage usage = pool.usage();
    {
      MutexLock lock(mutex_);
      const bool fits = usage.used_bytes <= usage.capacity_bytes;
      if (fits && counts_.pinned_blocks > 0) return;
    }
    if (!EvictOldest(kind, clock_->Now() + kBackgroundLimit)) return;
  }
}

absl::Status TierManager::ResizeMemory(TierKind kind, uint64_t bytes) {
  const uint64_t previous = tier(kind)->usage().capacity_bytes;
  tier(kind)->SetCapacity(bytes);
  if (bytes > previous) {
    const absl::Status taken = memory_tier(kind)->pool().Prefault(nullptr);
    if (!taken.ok()) {
      tier(kind)->SetCapacity(previous);
      Shrink(kind);
      return Annotate(taken, absl::StrCat("capacity_bytes ", bytes));
    }
  }
  Shrink(kind);
  return absl::OkStatus();
}

absl::StatusOr<ResizeResult> TierManager::SetCapacity(TierKind kind, uint64_t bytes) {
  if (tier(kind) == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat("tier ", std::string(TierName(kind)),
                                                      " is off: it must be switched on at start"));
  }
  MutexLock resizing(resize_mutex_);
  const auto evictions = [this, kind] { return stats().tiers[static_cast<int>(kind)].evictions; };
  const uint64_t evicted_before = evictions();
  ResizeResult result;
  result.previous_bytes = tier(kind)->usage().capacity_bytes;
  if (kind == TierKind::kSsd) {
    KVTIER_RETURN_IF_ERROR(Annotate(ResizeSsd(bytes), absl::StrCat("capacity_bytes ", bytes)));
  } else {
    KVTIER_RETURN_IF_ERROR(ResizeMemory(kind, bytes));
  }
  TellCurveOfCapacity();
  result.evicted_blocks = evictions() - evicted_before;
  result.backed_bytes = tier(kind)->usage().backed_bytes;
  return result;
}

}  // namespace kvtier
