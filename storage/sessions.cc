#include "storage/sessions.h"

#include "common/check.h"

namespace kvtier {

bool FetchSession::WouldBlock(uint32_t block) const {
  if (block >= pins_->blocks().size()) return false;
  const EntryId entry = pins_->blocks()[block];
  MutexLock lock(manager_->mutex_);
  const PartState& state = manager_->index_.parts(entry)[part_];
  return state.present() && state.at[static_cast<int>(TierKind::kRam)] == kNoLocation;
}

absl::StatusOr<PartView> FetchSession::Next(uint32_t block, TimePoint deadline) {
  KVTIER_CHECK(block >= first_ && block < last_);
  if (block < pins_->blocks().size()) {
    return manager_->ReadPart(pins_->blocks()[block], part_, pins_, deadline);
  }
  MutexLock lock(manager_->mutex_);
  ++manager_->counts_.fetch_missed_blocks;
  return absl::NotFoundError("miss");
}

StoreSession::~StoreSession() {
  TierManager::Erasures erasures;
  {
    MutexLock lock(manager_->mutex_);
    manager_->UnpinLocked(path_, &erasures);
    manager_->DropSpaceRefLocked(space_);
  }
  manager_->Erase(erasures);
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
  block.slot = manager_->AllocateInRam(part_bytes_, deadline);
  if (!block.slot) Reject(index, RejectReason::kNoSpace);
  return static_cast<bool>(block.slot);
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
