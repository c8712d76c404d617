#include "storage/sessions.h"

#include <algorithm>

#include "common/check.h"

namespace kvtier {
namespace {

// How far a Fetch reads ahead of what it sends: twice the large parts that the reader's threads
// have at a time, so that none is idle while the one whose turn it is takes longer.
constexpr uint64_t kAheadBytes = uint64_t{32} << 20;
constexpr uint64_t kAheadParts = 16;
// How often a Store that is longer than RAM makes room on SSD for its next block: others may be
// faster to take it.
constexpr int kSpillTries = 32;

}  // namespace

// A read on its way, on one of the reader's threads.
struct FetchSession::AheadRead {
  uint32_t block = 0;
  Mutex mutex;
  CondVar changed;
  bool done KVTIER_GUARDED_BY(mutex) = false;
  absl::StatusOr<PartView> view KVTIER_GUARDED_BY(mutex) = absl::UnknownError("not read");
};

bool FetchSession::WouldBlock(uint32_t block) const {
  if (block >= pins_->blocks().size()) return false;
  const EntryId entry = pins_->blocks()[block];
  MutexLock lock(manager_->mutex_);
  const PartState& state = manager_->index_.parts(entry)[part_];
  return state.present() && state.at[static_cast<int>(TierKind::kRam)] == kNoLocation;
}

absl::StatusOr<PartView> FetchSession::Next(uint32_t block, TimePoint deadline) {
  KVTIER_CHECK(block >= first_ && block < last_);
  absl::StatusOr<PartView> view = Read(block, deadline);
  MutexLock lock(manager_->mutex_);
  manager_->counts_.fetched_blocks += view.ok();
  if (view.ok()) {
    TierStats& from = manager_->counts_.tiers[static_cast<int>(view->tier)];
    from.fetched_blocks += part_ == 0;
    from.fetched_bytes += part_bytes_;
  }
  manager_->counts_.fetch_missed_blocks += absl::IsNotFound(view.status());
  return view;
}

absl::StatusOr<PartView> FetchSession::Read(uint32_t block, TimePoint deadline) {
  if (block >= pins_->blocks().size()) return absl::NotFoundError("miss");
  ReadAhead(block, deadline);
  while (!reads_.empty() && reads_.front()->block < block) reads_.pop_front();
  absl::StatusOr<PartView> view = absl::ResourceExhaustedError("not read ahead");
  if (!reads_.empty() && reads_.front()->block == block) {
    view = WaitFor(reads_.front().get(), deadline);
    reads_.pop_front();
  }
  if (absl::IsResourceExhausted(view.status())) {
    view = manager_->ReadPart(pins_->blocks()[block], part_, pins_,
                              To(TierManager::WithoutRoom::kBuffer), deadline);
  }
  // The tier is busy getting well: what it holds is a miss meanwhile.
  if (absl::IsUnavailable(view.status())) return absl::NotFoundError("miss");
  if (absl::IsResourceExhausted(view.status()) && !keep_to_ram_) {
    return absl::DeadlineExceededError("no memory to read this block into came free in time");
  }
  return view;
}

// Starts reading `block` and those after it, as far as RAM does not have them: without an SSD it
// has all that there is.
void FetchSession::ReadAhead(uint32_t block, TimePoint deadline) {
  if (manager_->ssd_ == nullptr) return;
  const uint64_t parts = std::clamp<uint64_t>(kAheadBytes / part_bytes_, 1, kAheadParts);
  const uint64_t end = std::min({block + parts, uint64_t{last_}, uint64_t{pins_->blocks().size()}});
  for (ahead_ = std::max(ahead_, block); ahead_ < end; ++ahead_) {
    if (!WouldBlock(ahead_)) continue;
    auto read = std::make_shared<AheadRead>();
    read->block = ahead_;
    reads_.push_back(read);
    const TierManager::ReadTo to = To(TierManager::WithoutRoom::kSpareBuffer);
    manager_->executors_.ssd_reader->Run(
        [read, manager = manager_, pins = pins_, part = part_, to, deadline] {
          absl::StatusOr<PartView> view =
              manager->ReadPart(pins->blocks()[read->block], part, pins, to, deadline);
          MutexLock lock(read->mutex);
          read->view = std::move(view);
          read->done = true;
          read->changed.NotifyAll();
        });
  }
}

absl::StatusOr<PartView> FetchSession::WaitFor(AheadRead* read, TimePoint deadline) {
  while (manager_->executors_.ssd_reader->RunOne()) {
  }
  MutexLock lock(read->mutex);
  while (!read->done) {
    const Duration left = deadline - manager_->clock_->Now();
    if (left <= Duration::zero() || !read->changed.WaitFor(read->mutex, left)) {
      return absl::DeadlineExceededError("the SSD tier did not answer in time");
    }
  }
  return std::move(read->view);
}

StoreSession::~StoreSession() {
  TierManager::Erasures erasures;
  uint64_t block_bytes = 0;
  {
    MutexLock lock(manager_->mutex_);
    block_bytes = manager_->models_[model_]->block_bytes;
    manager_->UnpinLocked(held(), &erasures);
    manager_->DropSpaceRefLocked(space_);
  }
  manager_->Erase(erasures);
  TellCurve(block_bytes);
}

// Blocks that found no room would be there in a larger cache. Of several parts the first counts.
bool StoreSession::WasReferredTo(const Block& block) const {
  return block.created ||
         (block.entry == kNoEntry && block.reason == RejectReason::kNoSpace && part_ == 0);
}

void StoreSession::TellCurve(uint64_t block_bytes) const {
  const auto stored = std::count_if(blocks_.begin(), blocks_.end(),
                                    [this](const Block& block) { return WasReferredTo(block); });
  if (stored == 0) return;
  std::vector<SampledBlock> before;
  std::vector<SampledBlock> referred;
  for (const SampledBlock& block : sampled_) {
    if (block.depth < first_absent_) {
      before.push_back(block);
    } else if (block.depth >= first_ && WasReferredTo(blocks_[block.depth - first_])) {
      referred.push_back(block);
    }
  }
  manager_->curve_.AddStore({model_, block_bytes, referred}, static_cast<uint64_t>(stored), before);
}

bool StoreSession::WouldBlock() const { return manager_->ssd_ != nullptr; }

bool StoreSession::Reserve(uint32_t index, TimePoint deadline) {
  Block& block = blocks_[index - first_];
  KVTIER_CHECK(block.outcome == StoreOutcome::kPending);
  if (block.slot) return true;
  if (index > path_.size()) {
    // The block before it is not held: because it did not fit just now, or because it never was.
    const bool no_space = index > first_ && reason(index - 1) == RejectReason::kNoSpace;
    Reject(index, no_space ? RejectReason::kNoSpace : RejectReason::kNoParent);
    return false;
  }
  block.slot = manager_->AllocateInRam(part_bytes_, domain_, deadline);
  for (int i = 0; !block.slot && manager_->ssd_ != nullptr && i < kSpillTries; ++i) {
    // When there is nothing to spill here, others may be about to spill theirs.
    const uint64_t progress = manager_->WriterProgress();
    if (!Spill(index, deadline)) manager_->WaitForWriter(progress, deadline);
    block.slot = manager_->AllocateInRam(part_bytes_, domain_, deadline);
  }
  if (!block.slot) Reject(index, RejectReason::kNoSpace);
  return static_cast<bool>(block.slot);
}

// A call that is longer than RAM goes on on SSD: its blocks before this one are written, and may
// then leave RAM like any other. False when there are none, or they cannot be written.
bool StoreSession::Spill(uint32_t index, TimePoint deadline) {
  if (path_.empty()) return false;
  // The last is kept: the next is its child.
  const uint32_t end = std::min<uint32_t>(index, static_cast<uint32_t>(path_.size()) - 1);
  if (end <= held_from_) return false;
  if (!manager_->MakeDurable(held(), deadline).ok()) return false;
  manager_->Unpin(held().first(end - held_from_));
  held_from_ = end;
  return true;
}

absl::Status StoreSession::MakeDurable(TimePoint deadline) {
  if (manager_->ssd_ == nullptr) {
    return absl::FailedPreconditionError("DURABLE needs the SSD tier: it is off");
  }
  return manager_->MakeDurable(held(), deadline);
}

void StoreSession::Commit(uint32_t index, uint64_t checksum) {
  Block& block = blocks_[index - first_];
  KVTIER_CHECK(block.outcome == StoreOutcome::kPending && block.slot);
  RejectReason reason = RejectReason::kNone;
  TierManager::Erasures erasures;
  {
    MutexLock lock(manager_->mutex_);
    reason = CommitLocked(&block, index, checksum, &erasures);
  }
  manager_->Erase(erasures);
  if (reason != RejectReason::kNone) Reject(index, reason);
  block.slot = Slot();  // what was not committed is free again
}

// The part becomes the block's, unless another store was faster: then that one's bytes stay.
RejectReason StoreSession::CommitLocked(Block* block, uint32_t depth, uint64_t checksum,
                                        TierManager::Erasures* erasures) {
  if (manager_->spaces_.at(space_).reset) return RejectReason::kReset;
  const BlockIdentity identity{block->key, block->parent, block->identity};
  if (block->entry == kNoEntry) {
    KVTIER_CHECK(depth == path_.size());
    const EntryId previous = path_.empty() ? kNoEntry : path_.back();
    EntryId entry = manager_->index_.FindChild(previous, block->parent, block->identity, space_);
    if (entry == kNoEntry) {
      manager_->DetachResetLocked(block->key, erasures);
      if (manager_->index_.FindKey(block->key) != kNoEntry) return RejectReason::kCollision;
      const auto parts = static_cast<uint16_t>(manager_->models_[model_]->part_bytes.size());
      entry = manager_->index_.Insert(identity, space_, model_, depth, parts, previous);
      ++manager_->spaces_.at(space_).refs;
      block->created = true;
    }
    manager_->AddPinLocked(entry);
    block->entry = entry;
    path_.push_back(entry);
  }
  PartState& state = manager_->index_.parts(block->entry)[part_];
  if (state.present()) {
    block->outcome = StoreOutcome::kAlreadyPresent;
    block->present_checksum = state.checksum;
    ++manager_->counts_.already_present_blocks;
    manager_->counts_.checksum_mismatches += state.checksum != checksum;
    return RejectReason::kNone;
  }
  state.checksum = checksum;
  const SlotPool::OwnerTag owner = TierManager::ToOwner(block->entry, part_);
  const Location at = manager_->ram_->Commit(std::move(block->slot), owner);
  manager_->SetLocationLocked(block->entry, part_, TierKind::kRam, at);
  block->outcome = StoreOutcome::kStored;
  ++manager_->counts_.stored_blocks;
  manager_->counts_.tiers[static_cast<int>(TierKind::kRam)].bytes_written += part_bytes_;
  return RejectReason::kNone;
}

void StoreSession::Reject(uint32_t index, RejectReason reason) {
  Block& block = blocks_[index - first_];
  KVTIER_CHECK(block.outcome == StoreOutcome::kPending);
  block.outcome = StoreOutcome::kRejected;
  block.reason = reason;
  block.slot = Slot();
  MutexLock lock(manager_->mutex_);
  ++manager_->counts_.rejected_blocks;
  manager_->counts_.checksum_failures += reason == RejectReason::kChecksum;
}

bool StoreSession::NotePresent(uint32_t index, uint64_t checksum) {
  const Block& block = blocks_[index - first_];
  KVTIER_CHECK(block.outcome == StoreOutcome::kAlreadyPresent);
  if (block.present_checksum == checksum) return false;
  MutexLock lock(manager_->mutex_);
  ++manager_->counts_.checksum_mismatches;
  return true;
}

}  // namespace kvtier
