// One Fetch or one Store in progress, between the wire and the tiers.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "storage/tier_manager.h"

namespace kvtier {

// Blocks [first, last) of one part, in order. Keeps every block from the prompt's first pinned
// while it or one of its views lives. Not thread-safe: one caller at a time, any thread.
class FetchSession {
 public:
  // For TierManager::BeginFetch.
  FetchSession(TierManager* manager, std::shared_ptr<const PinSet> pins, uint32_t first,
               uint32_t last, uint16_t part, uint64_t part_bytes,
               std::shared_ptr<FetchClock> fetch_clock = nullptr)
      : manager_(manager),
        pins_(std::move(pins)),
        fetch_clock_(std::move(fetch_clock)),
        first_(first),
        last_(last),
        part_(part),
        part_bytes_(part_bytes) {}

  uint32_t first() const { return first_; }
  uint32_t last() const { return last_; }
  // The lease's, to be kept running for as long as the call takes; null for a Fetch by prompt.
  const std::shared_ptr<FetchClock>& fetch_clock() const { return fetch_clock_; }
  // From now on only bytes in this domain of RAM are of use: where it has no room for a block, or
  // the block lies in another domain, Next says RESOURCE_EXHAUSTED.
  void KeepToRam(MemoryDomain domain) {
    keep_to_ram_ = true;
    domain_ = domain;
  }
  // True when Next(block) would wait for another tier than RAM: call it where blocking is allowed.
  bool WouldBlock(uint32_t block) const;
  // The part's bytes; blocks after it are read ahead. NOT_FOUND is a miss; DEADLINE_EXCEEDED when a
  // slower tier took too long. REQUIRES: first <= block < last, ascending from call to call.
  absl::StatusOr<PartView> Next(uint32_t block, TimePoint deadline);

 private:
  friend class TierManager;
  struct AheadRead;

  absl::StatusOr<PartView> Read(uint32_t block, TimePoint deadline);
  void ReadAhead(uint32_t block, TimePoint deadline);
  // `else_to`: when nothing in RAM may leave, unless only RAM is of use.
  TierManager::ReadTo To(TierManager::WithoutRoom else_to) const {
    return {keep_to_ram_ ? TierManager::WithoutRoom::kGiveUp : else_to, domain_, keep_to_ram_};
  }
  absl::StatusOr<PartView> WaitFor(AheadRead* read, TimePoint deadline);

  TierManager* const manager_;
  const std::shared_ptr<const PinSet> pins_;
  const std::shared_ptr<FetchClock> fetch_clock_;
  const uint32_t first_;
  const uint32_t last_;
  const uint16_t part_;
  const uint64_t part_bytes_;
  bool keep_to_ram_ = false;
  MemoryDomain domain_;                           // of what is read into RAM
  uint32_t ahead_ = 0;                            // every block before it was looked at
  std::deque<std::shared_ptr<AheadRead>> reads_;  // ascending; shared with the reader's tasks
};

// One part of blocks [first, first + count). Block indices count from the prompt's first block;
// store them in ascending order. Keeps every block it names pinned. Not thread-safe. Destroying it
// gives up what was not committed.
class StoreSession {
 public:
  // For TierManager::BeginStore.
  struct Block {
    BlockKey key;
    BlockKey parent;
    std::string identity;
    StoreOutcome outcome = StoreOutcome::kPending;
    RejectReason reason = RejectReason::kNone;
    uint64_t present_checksum = 0;  // with kAlreadyPresent
    EntryId entry = kNoEntry;       // pinned by this session
    bool created = false;           // by this session: no tier had any of it
    Slot slot;
  };
  StoreSession(TierManager* manager, SpaceId space, uint32_t model, uint16_t part,
               uint64_t part_bytes, uint32_t first, std::vector<EntryId> ancestors,
               std::vector<Block> blocks, std::vector<SampledBlock> sampled)
      : manager_(manager),
        space_(space),
        model_(model),
        part_(part),
        part_bytes_(part_bytes),
        first_(first),
        path_(std::move(ancestors)),
        blocks_(std::move(blocks)),
        first_absent_(static_cast<uint32_t>(path_.size())),
        sampled_(std::move(sampled)) {}
  ~StoreSession();
  StoreSession(const StoreSession&) = delete;
  StoreSession& operator=(const StoreSession&) = delete;

  uint32_t first() const { return first_; }
  uint32_t count() const { return static_cast<uint32_t>(blocks_.size()); }
  uint64_t part_bytes() const { return part_bytes_; }
  // kPending: the block's payload is wanted.
  StoreOutcome outcome(uint32_t block) const { return blocks_[block - first_].outcome; }
  RejectReason reason(uint32_t block) const { return blocks_[block - first_].reason; }

  // Where the blocks shall lie, of those that Reserve is called for from now on.
  void PutInto(MemoryDomain domain) { domain_ = domain; }
  // True when Reserve may have to wait for a slower tier: call it where blocking is allowed.
  bool WouldBlock() const;
  // Takes a slot for a pending block; true when it has one already. False: it was rejected.
  bool Reserve(uint32_t block, TimePoint deadline);
  // The reserved block's slot, exactly part_bytes() long. Only until Commit or Reject.
  std::span<std::byte> Buffer(uint32_t block) { return blocks_[block - first_].slot.bytes(); }
  // All bytes are there and match the checksum. The outcome says what came of it.
  void Commit(uint32_t block, uint64_t checksum);
  // REQUIRES: the block is pending.
  void Reject(uint32_t block, RejectReason reason);
  // Returns when what this call has named and stored is on SSD, synced, with all blocks before it.
  // FAILED_PRECONDITION without an SSD tier; DEADLINE_EXCEEDED; or why it cannot be written.
  // Blocks.
  absl::Status MakeDurable(TimePoint deadline);
  // The sender's checksum of a block that was already present: true, and counted, when it differs
  // from what is stored.
  bool NotePresent(uint32_t block, uint64_t checksum);

 private:
  RejectReason CommitLocked(Block* block, uint32_t depth, uint64_t checksum,
                            TierManager::Erasures* erasures) KVTIER_REQUIRES(manager_->mutex_);
  bool Spill(uint32_t block, TimePoint deadline);
  bool WasReferredTo(const Block& block) const;
  void TellCurve(uint64_t block_bytes) const;
  std::span<const EntryId> held() const { return std::span(path_).subspan(held_from_); }

  TierManager* const manager_;
  const SpaceId space_;
  const uint32_t model_;
  const uint16_t part_;
  const uint64_t part_bytes_;
  const uint32_t first_;
  // From the prompt's first block, as far as it is unbroken. Pinned from held_from_ on: those
  // before it were spilled to SSD, and may not even be there any more.
  std::vector<EntryId> path_;
  uint32_t held_from_ = 0;
  MemoryDomain domain_;
  std::vector<Block> blocks_;
  const uint32_t first_absent_;              // of the prompt, when the session began
  const std::vector<SampledBlock> sampled_;  // of the prompt, up to the last block named
};

}  // namespace kvtier
