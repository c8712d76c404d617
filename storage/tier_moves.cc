// The part of TierManager that moves payload: making room, demoting, filling, promoting, resizing.
// Copies run outside the lock; a block that is being copied is marked `moving` or `filling`, and
// the mark is what keeps it from leaving meanwhile.
#include <algorithm>

#include "common/check.h"
#include "storage/tier_manager.h"

namespace kvtier {
namespace {

// Blocks demoted together: enough to fill a batch of the SSD tier, but never more than a small
// share of the tier they leave.
constexpr uint64_t kDemotionBatch = 32;
constexpr uint64_t kDemotionShare = 64;
// Promotions that may wait for a thread; more are dropped, as they are only hints.
constexpr uint32_t kMaxPromotionsQueued = 64;
// How long a copy that no caller waits for may take.
constexpr Duration kBackgroundLimit = std::chrono::seconds(30);

// ToOwner's parts.
EntryId OwnerBlock(SlotPool::OwnerTag owner) { return static_cast<EntryId>(owner); }
uint16_t OwnerPart(SlotPool::OwnerTag owner) { return static_cast<uint16_t>(owner >> 32); }

}  // namespace

MemoryTier* TierManager::memory_tier(TierKind kind) const {
  return kind == TierKind::kGpu ? gpu_.get() : kind == TierKind::kRam ? ram_.get() : nullptr;
}

// --- Making room

// Empty when no room can be made.
Slot TierManager::AllocateInRam(uint64_t bytes, TimePoint deadline) {
  do {
    if (Slot slot = ram_->Allocate(bytes)) return slot;
  } while (MakeRoom(TierKind::kRam, bytes, deadline));
  return Slot();
}

// One step towards room for a part of `bytes`: memory that another size class does not use, else
// the least recent block. False when there was nothing to gain, and for a part that would not fit
// if everything left.
bool TierManager::MakeRoom(TierKind kind, uint64_t bytes, TimePoint deadline) {
  if (MemoryTier* memory = memory_tier(kind); memory != nullptr) {
    if (!memory->pool().CanHold(bytes)) return false;
    if (DrainExtent(kind, bytes)) return true;
  }
  return EvictOldest(kind, deadline);
}

// RAM is what the SSD is behind. The GPU tier holds copies only of what RAM or SSD holds too, so
// leaving it costs nothing.
bool TierManager::NeedsDemotionLocked(EntryId block, TierKind kind) const {
  return kind == TierKind::kRam && ssd_ != nullptr && index_.entry(block).complete() &&
         !index_.CompleteIn(block, TierKind::kSsd);
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

// The block and those after it in the order, as far as they too must be copied down.
std::vector<EntryId> TierManager::TakeForDemotionLocked(EntryId oldest) {
  const uint64_t most =
      std::clamp<uint64_t>(index_.complete_in(TierKind::kRam) / kDemotionShare, 1, kDemotionBatch);
  std::vector<EntryId> blocks;
  for (EntryId block = oldest; block != kNoEntry && blocks.size() < most;
       block = index_.NextNewer(block, TierKind::kRam)) {
    if (index_.entry(block).in_use() || !NeedsDemotionLocked(block, TierKind::kRam)) break;
    index_.entry(block).moving = true;
    blocks.push_back(block);
  }
  return blocks;
}

bool TierManager::EvictOldest(TierKind kind, TimePoint deadline) {
  std::vector<EntryId> demoted;
  Erasures erasures;
  {
    MutexLock lock(mutex_);
    EntryId block = index_.oldest(kind);
    while (block != kNoEntry && index_.entry(block).in_use()) block = index_.NextNewer(block, kind);
    if (block == kNoEntry) return false;
    if (NeedsDemotionLocked(block, kind)) {
      demoted = TakeForDemotionLocked(block);
    } else {
      LeaveTierLocked(block, kind, &erasures);
    }
  }
  Erase(erasures);
  if (!demoted.empty()) Demote(demoted, deadline);
  return true;
}

// --- Demotion

// One part's copy out of a tier that has it. The identity stays where it is while the block is in
// use.
TierManager::Move TierManager::MoveLocked(EntryId block, uint16_t part, TierKind from) const {
  const Entry& entry = index_.entry(block);
  const Model& model = *models_[entry.model];
  const PartState& state = index_.parts(block)[part];
  Move move;
  move.block = block;
  move.part = part;
  move.from = state.at[static_cast<int>(from)];
  move.bytes = model.part_bytes[part];
  move.checksum = state.checksum;
  move.id.model = model.id;
  move.id.key = entry.key;
  move.id.parent = entry.parent;
  move.id.identity = std::string_view(entry.identity, entry.identity_bytes);
  move.id.part = part;
  return move;
}

// The parts of a block that RAM has and the SSD lacks.
void TierManager::CollectDemotionsLocked(EntryId block, std::vector<Move>* moves) const {
  const std::span<const PartState> parts = index_.parts(block);
  for (uint16_t part = 0; part < parts.size(); ++part) {
    if (parts[part].at[static_cast<int>(TierKind::kRam)] == kNoLocation) continue;
    if (parts[part].at[static_cast<int>(TierKind::kSsd)] != kNoLocation) continue;
    moves->push_back(MoveLocked(block, part, TierKind::kRam));
  }
}

// Writes one part, making room in the target as often as that helps. kNoLocation when it did not
// work.
Location TierManager::WriteWithRoom(TierKind to, WriteOp op, TimePoint deadline) {
  do {
    op.status = absl::OkStatus();
    tier(to)->Write(std::span(&op, 1), deadline);
    if (op.status.ok()) return op.location;
  } while (absl::IsResourceExhausted(op.status) && MakeRoom(to, op.from.size(), deadline));
  return kNoLocation;
}

// RAM to SSD. The blocks are marked moving. Those that nobody pinned meanwhile leave RAM, copied or
// not: room is needed, and a cache may lose what it cannot write.
void TierManager::Demote(const std::vector<EntryId>& blocks, TimePoint deadline) {
  std::vector<Move> moves;
  {
    MutexLock lock(mutex_);
    for (EntryId block : blocks) CollectDemotionsLocked(block, &moves);
  }
  std::vector<Location> copies;
  for (const Move& move : moves) {
    WriteOp op;
    op.id = move.id;
    op.from = ram_->Bytes(move.from).first(move.bytes);
    op.checksum = move.checksum;
    op.owner = ToOwner(move.block, move.part);
    copies.push_back(WriteWithRoom(TierKind::kSsd, std::move(op), deadline));
  }
  Erasures erasures;
  {
    MutexLock lock(mutex_);
    TierStats& ssd = counts_.tiers[static_cast<int>(TierKind::kSsd)];
    for (size_t i = 0; i < moves.size(); ++i) {
      if (copies[i] == kNoLocation) continue;
      SetLocationLocked(moves[i].block, moves[i].part, TierKind::kSsd, copies[i]);
      ssd.bytes_written += moves[i].bytes;
      counts_.tiers[static_cast<int>(TierKind::kRam)].bytes_read += moves[i].bytes;
    }
    for (EntryId block : blocks) {
      index_.entry(block).moving = false;
      ssd.demotions += index_.CompleteIn(block, TierKind::kSsd);
      if (index_.entry(block).in_use()) continue;  // somebody wants it after all
      LeaveTierLocked(block, TierKind::kRam, &erasures);
    }
  }
  Erase(erasures);
}

// --- Filling RAM from another tier

absl::StatusOr<PartView> TierManager::ReadPart(EntryId block, uint16_t part,
                                               const std::shared_ptr<const PinSet>& pins,
                                               TimePoint deadline) {
  Move move;
  TierKind from = TierKind::kRam;
  {
    MutexLock lock(mutex_);
    const Entry& entry = index_.entry(block);
    const Model& model = *models_[entry.model];
    while (true) {
      const PartState& state = index_.parts(block)[part];
      if (!GroupPresentLocked(block, part / model.ranks)) {
        ++counts_.fetch_missed_blocks;
        return absl::NotFoundError("miss");
      }
      const Location in_ram = state.at[static_cast<int>(TierKind::kRam)];
      if (in_ram != kNoLocation) {
        ++counts_.fetched_blocks;
        counts_.tiers[static_cast<int>(TierKind::kRam)].bytes_read += model.part_bytes[part];
        return PartView{ram_->Bytes(in_ram).first(model.part_bytes[part]), state.checksum,
                        TierKind::kRam, pins};
      }
      if (!entry.filling) break;
      const Duration left = deadline - clock_->Now();
      if (left <= Duration::zero() || !fill_done_.WaitFor(mutex_, left)) {
        return absl::DeadlineExceededError("waiting for another caller's fill of this block");
      }
    }
    from = index_.parts(block)[part].at[0] != kNoLocation ? TierKind::kGpu : TierKind::kSsd;
    index_.entry(block).filling = true;
    move = MoveLocked(block, part, from);
  }
  absl::StatusOr<PartView> view = Fill(move, from, deadline);
  if (view.ok()) {
    if (view->hold == nullptr) view->hold = pins;
    return view;
  }
  if (absl::IsDeadlineExceeded(view.status())) return view.status();
  return ReadPart(block, part, pins,
                  deadline);  // the damaged copy is gone: another tier, or a miss
}

// Reads one part into RAM, or into a buffer of its own when nothing in RAM may leave. The block is
// pinned and marked filling; the mark ends here.
absl::StatusOr<PartView> TierManager::Fill(const Move& move, TierKind from, TimePoint deadline) {
  Slot slot = AllocateInRam(move.bytes, deadline);
  std::shared_ptr<std::byte[]> buffer;
  if (!slot) buffer = std::make_shared<std::byte[]>(move.bytes);
  const std::span<std::byte> to = slot ? slot.bytes() : std::span(buffer.get(), move.bytes);
  ReadOp op{move.id, move.from, move.checksum, to, absl::OkStatus()};
  tier(from)->Read(std::span(&op, 1), deadline);

  Erasures erasures;
  {
    MutexLock lock(mutex_);
    index_.entry(move.block).filling = false;
    if (op.status.ok()) {
      ++counts_.fetched_blocks;
      counts_.tiers[static_cast<int>(from)].bytes_read += move.bytes;
    } else if (!absl::IsDeadlineExceeded(op.status)) {
      counts_.checksum_failures += absl::IsDataLoss(op.status);
      SetLocationLocked(move.block, move.part, from, kNoLocation);
      erasures.at[static_cast<int>(from)].push_back(move.from);
    }
    if (op.status.ok() && slot) {
      TierStats& ram = counts_.tiers[static_cast<int>(TierKind::kRam)];
      ++ram.promotions;
      ram.bytes_written += move.bytes;
      const Location at = ram_->Commit(std::move(slot), ToOwner(move.block, move.part));
      SetLocationLocked(move.block, move.part, TierKind::kRam, at);
    }
  }
  fill_done_.NotifyAll();
  Erase(erasures);
  if (!op.status.ok()) return op.status;
  return PartView{to, move.checksum, from, buffer};
}

// --- Promotion on request

void TierManager::StartPromotion(std::shared_ptr<const PinSet> pins, uint32_t blocks, TierKind to) {
  if (to == TierKind::kSsd || tier(to) == nullptr) return;
  {
    MutexLock lock(mutex_);
    if (promotions_queued_ == kMaxPromotionsQueued) return;
    ++promotions_queued_;
  }
  executor_->Run([this, pins = std::move(pins), blocks, to] {
    Promote(pins, blocks, to);
    MutexLock lock(mutex_);
    --promotions_queued_;
  });
}

void TierManager::Promote(const std::shared_ptr<const PinSet>& pins, uint32_t blocks, TierKind to) {
  for (uint32_t i = 0; i < blocks; ++i) {
    const EntryId block = pins->blocks()[i];
    uint16_t parts = 0;
    {
      MutexLock lock(mutex_);
      if (index_.CompleteIn(block, to)) continue;
      parts = index_.entry(block).part_count;
    }
    for (uint16_t part = 0; part < parts; ++part) {
      const absl::StatusOr<PartView> view =
          ReadPart(block, part, pins, clock_->Now() + kBackgroundLimit);
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
  const Location at = WriteWithRoom(TierKind::kGpu, std::move(op), deadline);
  if (at == kNoLocation) return false;
  Erasures erasures;
  {
    MutexLock lock(mutex_);
    if (index_.parts(block)[part].at[static_cast<int>(TierKind::kGpu)] != kNoLocation) {
      erasures.at[static_cast<int>(TierKind::kGpu)].push_back(at);  // somebody was faster
    } else {
      TierStats& gpu = counts_.tiers[static_cast<int>(TierKind::kGpu)];
      ++gpu.promotions;
      gpu.bytes_written += view.bytes.size();
      SetLocationLocked(block, part, TierKind::kGpu, at);
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
bool TierManager::DrainExtent(TierKind kind, uint64_t wanted_bytes) {
  SlotPool& pool = memory_tier(kind)->pool();
  std::optional<SlotPool::Drain> drain = pool.BeginDrain(wanted_bytes);
  if (!drain.has_value()) return false;
  if (!MarkMoving(kind, &*drain)) {
    pool.EndDrain(drain->extent);
    return false;
  }
  std::vector<Slot> copies;
  for (const SlotPool::Drain::Live& live : drain->live) {
    Slot slot = pool.Allocate(live.bytes);
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
    if (DrainExtent(kind, 0)) continue;
    const SlotPool::Usage usage = pool.usage();
    {
      MutexLock lock(mutex_);
      const bool fits = usage.used_bytes <= usage.capacity_bytes;
      if (fits && counts_.pinned_blocks > 0) return;
    }
    if (!EvictOldest(kind, clock_->Now() + kBackgroundLimit)) return;
  }
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
  tier(kind)->SetCapacity(bytes);
  if (memory_tier(kind) != nullptr) {
    if (bytes > result.previous_bytes) {
      const absl::Status taken = memory_tier(kind)->pool().Prefault(nullptr);
      if (!taken.ok()) {
        tier(kind)->SetCapacity(result.previous_bytes);
        Shrink(kind);
        return Annotate(taken, absl::StrCat("capacity_bytes ", bytes));
      }
    }
    Shrink(kind);
  } else {
    const TimePoint deadline = clock_->Now() + kBackgroundLimit;
    while (tier(kind)->usage().used_bytes > bytes && EvictOldest(kind, deadline)) {
    }
  }
  result.evicted_blocks = evictions() - evicted_before;
  result.backed_bytes = tier(kind)->usage().backed_bytes;
  return result;
}

}  // namespace kvtier
