// Which blocks exist, where their parts lie, and in which order they would leave.
//
// No lock, no I/O, no policy: TierManager owns one under its mutex. Sized for tens of millions of
// blocks: entries live in a slab, found through a flat hash map, and everything about one block but
// its identity is in one entry.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/block_key.h"
#include "common/prompt.h"
#include "storage/eviction_order.h"
#include "storage/identity_pool.h"
#include "storage/tier.h"

namespace kvtier {

inline constexpr Location kNoLocation = UINT64_MAX;
// The memory tiers, GPU and RAM, have an eviction order each; on SSD segments leave as they came.
inline constexpr int kOrders = 2;
inline constexpr TierKind kMemoryTiers[kOrders] = {TierKind::kGpu, TierKind::kRam};
// A namespace of one model. Ids are never used twice, so a reset namespace's blocks can match no
// more.
using SpaceId = uint32_t;

struct PartState {
  uint64_t checksum = 0;
  std::array<Location, kTiers> at = {kNoLocation, kNoLocation, kNoLocation};
  bool present() const;  // in some tier
};

// What the blocks of a prompt that was used before have in common, compared at once: no bit of it
// may be padding.
struct EntryMarks {
  uint32_t identity_bytes : 26 = 0;  // 0: the entry is free
  bool hit : 1 = false;              // Lookup has found it
  bool ssd_hit : 1 = false;          // used since it was written to SSD
  bool detached : 1 = false;         // reset while in use: not in the map, gone with its last user
  bool whole : 1 = false;            // all parts are there: the block is visible
  TierKind best : 2 = TierKind::kGpu;  // where it can be read from, when whole
  SpaceId space = 0;

  bool used() const { return hit && ssd_hit && whole && !detached; }
  bool SameMarks(const EntryMarks& other) const {
    return std::bit_cast<uint64_t>(*this) == std::bit_cast<uint64_t>(other);
  }
};

// One block, in two cache lines. Lookup's walk reads the first alone, and the identity.
struct alignas(64) Entry : EntryMarks {
  BlockKey key;
  BlockKey parent;                 // the root for block 0
  const char* identity = nullptr;  // null: the entry is free
  // The child that was inserted last: a guess that saves a walk the hash map. May be another block
  // by now; who follows it compares.
  EntryId child = kNoEntry;
  std::array<OrderLinks, kOrders> order;  // RAM's, which walks look at, and GPU's

  uint32_t model = 0;  // the manager's number for it
  uint32_t depth = 0;  // index from the prompt's first block
  uint32_t pins = 0;
  uint16_t part_count = 0;
  uint16_t parts_present = 0;
  // A payload copy is under way: may not leave, and no second copy may start.
  bool moving : 1 = false;
  // A promotion into RAM is under way; who wants the block there waits for it.
  bool filling : 1 = false;
  bool writing : 1 = false;  // in the batch that is being written to SSD
  uint8_t carried = 0;       // PartIdentity::carried
  union {
    PartState one;    // part_count == 1
    PartState* many;  // otherwise
  };
  Entry() : one() {}
  ~Entry() {}
  static constexpr int OrderOf(TierKind tier) { return tier == TierKind::kRam ? 0 : 1; }
  // Whether one more use, after `previous`, leaves the block where it is in RAM's order: next to
  // its parent, or the newest of all; and protected, where blocks are.
  bool IsBeside(EntryId previous, bool protects) const {
    const OrderLinks& links = order[OrderOf(TierKind::kRam)];
    return (!links.listed || links.newer == previous) && (links.used || !protects);
  }
  bool listed(TierKind tier) const { return order[OrderOf(tier)].listed; }
  bool complete() const { return whole; }
  bool in_use() const { return pins > 0 || moving || filling || writing; }
};
inline constexpr size_t kMostIdentityBytes = (size_t{1} << 26) - 1;

static_assert(sizeof(Entry) == 128);

// Not thread-safe.
class BlockIndex {
 public:
  explicit BlockIndex(Eviction eviction = Eviction::kLru);
  ~BlockIndex();
  BlockIndex(const BlockIndex&) = delete;
  BlockIndex& operator=(const BlockIndex&) = delete;

  // The block with this identity after `previous`, whose key is `parent`; kNoEntry for the first
  // block, whose parent is the root. Compared in full (parent key, identity, namespace); the key
  // itself is computed only when `previous` does not know this child. kNoEntry when there is none.
  EntryId FindChild(EntryId previous, const BlockKey& parent, std::string_view identity,
                    SpaceId space) const;
  // How many blocks, at most `limit`, go on from `*previous` with these identities, end to end, and
  // are as it is: whole, in the same tier, found before, and where one more use would leave them.
  // It moves `*previous` on to the last. A shortcut through long prompts: whatever ends it, a block
  // that is not so or none, is for FindChild to say.
  uint64_t FollowUsed(EntryId* previous, std::string_view identities, uint64_t limit,
                      bool protects) const;
  // Whoever has this key, whatever its identity.
  EntryId FindKey(const BlockKey& key) const;

  // REQUIRES: FindKey(block.key) == kNoEntry. The new entry has no parts yet and is in no order.
  // `previous` is the entry of its parent, or kNoEntry.
  EntryId Insert(const BlockIdentity& block, SpaceId space, uint32_t model, uint32_t depth,
                 uint16_t part_count, EntryId previous = kNoEntry);
  // REQUIRES: no part anywhere, in no order.
  void Remove(EntryId id);
  // Takes the block out of the map and all orders, so that nobody finds it; its parts stay.
  void Detach(EntryId id);

  Entry& entry(EntryId id) { return chunks_[id >> kChunkBits][id & (kChunk - 1)]; }
  const Entry& entry(EntryId id) const { return chunks_[id >> kChunkBits][id & (kChunk - 1)]; }
  std::span<PartState> parts(EntryId id);
  std::span<const PartState> parts(EntryId id) const;

  // Where a part lies in a tier, kept with the counts that depend on it.
  void SetLocation(EntryId id, uint16_t part, TierKind tier, Location location);
  // True when every part is in the tier.
  bool CompleteIn(EntryId id, TierKind tier) const;
  bool AnyIn(EntryId id, TierKind tier) const;

  // The order of one memory tier: see EvictionOrder. A block may be listed unless it is detached.
  // As the newest of its kind: whoever was in use with it, and is its ancestor, comes after it.
  void Enlist(EntryId id, TierKind tier);
  // A walk from the root has come to the block from `parent`, or kNoEntry: it is used, or only
  // renewed, in all memory tiers. In those where it is not listed it stays so.
  void Use(EntryId id, EntryId parent);
  void Renew(EntryId id, EntryId parent);
  // Before an ancestor comes back after a descendant: it is used where that is, though it may have
  // left a tier in which the descendant was not.
  void UseAsMuch(EntryId ancestor, EntryId descendant);
  // While it is in use / because it leaves the tier.
  void Unlist(EntryId id, TierKind tier) { order(tier).Unlist(id); }
  void Leave(EntryId id, TierKind tier) { order(tier).Leave(id); }
  EntryId oldest(TierKind tier) const { return order(tier).oldest(); }
  EntryId newest(TierKind tier) const { return order(tier).newest(); }
  EntryId NextNewer(EntryId id, TierKind tier) const { return order(tier).Newer(id); }
  EntryId NextOlder(EntryId id, TierKind tier) const { return order(tier).Older(id); }

  uint64_t size() const { return size_; }      // entries, detached ones included
  EntryId end() const { return next_fresh_; }  // every id is below; some are free
  bool live(EntryId id) const { return entry(id).identity != nullptr; }
  uint64_t complete_blocks() const { return complete_; }
  uint64_t complete_in(TierKind tier) const { return complete_in_[static_cast<int>(tier)]; }
  // Memory held, identities included / identities alone.
  uint64_t memory_bytes() const;
  uint64_t identity_bytes() const { return identity_bytes_; }

  // Aborts when a list, a count or the map disagrees with the entries. O(size); for tests.
  void CheckInvariants() const;

 private:
  static constexpr int kChunkBits = 12;
  static constexpr uint32_t kChunk = 1u << kChunkBits;
  using Chunks = std::vector<std::unique_ptr<Entry[]>>;
  // The links that entries hold, of one tier.
  struct EntryLinks {
    const Chunks* chunks;
    int order;
    OrderLinks& operator()(EntryId id) const {
      return (*chunks)[id >> kChunkBits][id & (kChunk - 1)].order[order];
    }
  };
  using Order = EvictionOrder<EntryLinks>;

  Order& order(TierKind tier) { return orders_[Entry::OrderOf(tier)]; }
  const Order& order(TierKind tier) const { return orders_[Entry::OrderOf(tier)]; }

  // How far ahead of a walk entries are fetched from memory: blocks stored in one go lie side by
  // side.
  static constexpr EntryId kAhead = 16;

  static bool SameBytes(const char* a, const char* b, size_t bytes);
  static bool Matches(const Entry& entry, const BlockKey& parent, std::string_view identity,
                      SpaceId space);
  EntryId FindByKey(const BlockKey& parent, std::string_view identity, SpaceId space) const;
  EntryId TakeId();
  // The slowest of the parts' best tiers.
  TierKind BestTier(EntryId id) const;

  IdentityPool identities_;
  absl::flat_hash_map<BlockKey, EntryId> ids_;
  Chunks chunks_;
  EntryId free_ = kNoEntry;  // chained through Entry::child
  EntryId next_fresh_ = 0;
  uint64_t size_ = 0;
  uint64_t complete_ = 0;
  std::array<uint64_t, kTiers> complete_in_{};
  uint64_t identity_bytes_ = 0;
  uint64_t part_array_bytes_ = 0;
  std::array<Order, kOrders> orders_;
};

// In line from here to the end: a Lookup does this for each of its blocks.

// 64 bytes are a block of 16 tokens, by far the most common.
inline bool BlockIndex::SameBytes(const char* a, const char* b, size_t bytes) {
  if (bytes != 64) return std::memcmp(a, b, bytes) == 0;
  uint64_t differ = 0;
  for (size_t at = 0; at < 64; at += sizeof(uint64_t)) {
    uint64_t left, right;
    std::memcpy(&left, a + at, sizeof(left));
    std::memcpy(&right, b + at, sizeof(right));
    differ |= left ^ right;
  }
  return differ == 0;
}

inline bool BlockIndex::Matches(const Entry& e, const BlockKey& parent, std::string_view identity,
                                SpaceId space) {
  return e.space == space && e.parent == parent && e.identity_bytes == identity.size() &&
         SameBytes(e.identity, identity.data(), identity.size());
}

inline EntryId BlockIndex::FindChild(EntryId previous, const BlockKey& parent,
                                     std::string_view identity, SpaceId space) const {
  if (previous != kNoEntry) {
    const EntryId guess = entry(previous).child;
    if (guess < next_fresh_) {
      if (guess + kAhead < next_fresh_) __builtin_prefetch(&entry(guess + kAhead));
      const Entry& e = entry(guess);
      if (live(guess) && !e.detached && Matches(e, parent, identity, space)) return guess;
    }
  }
  return FindByKey(parent, identity, space);
}

}  // namespace kvtier
