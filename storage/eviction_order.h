// The order in which blocks leave one memory tier: least recently used, leaf first, and optionally
// with a protected segment.
//
// A path is used root first, and each block is placed next to its parent, on the older side. So
// heads are newer than tails, whoever leaves is a leaf of what is there, and no block outlives its
// parent.
//
// Protected: a block that was used again since it came is newer than all that were not, as long as
// such blocks are no more than a share of those listed. The oldest above the share lose their
// protection where they stand: they become the newest of the others. A prompt that is seen once
// passes through the rest of the tier and leaves them alone. Ancestors are used whenever their
// descendants are, so they are protected at least as long.
//
// One list, oldest to newest: the others, then the protected. Its links lie elsewhere: in the
// daemon's index entries, or in an array of the simulator's. Both run this code.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "common/check.h"

namespace kvtier {

using EntryId = uint32_t;
inline constexpr EntryId kNoEntry = UINT32_MAX;

// What an operator chooses from; docs/CACHING.md has the figures.
enum class Eviction : uint8_t { kLru, kProtected };
inline constexpr std::string_view kEvictionNames[] = {"lru", "protected"};
// Percent of a tier's blocks that may be protected. Found by simulation: less protects too little
// of agents' prompts, more takes too much from chats.
constexpr uint32_t ProtectedPercent(Eviction eviction) {
  return eviction == Eviction::kProtected ? 30 : 0;
}
constexpr std::optional<Eviction> ParseEviction(std::string_view name) {
  for (Eviction eviction : {Eviction::kLru, Eviction::kProtected}) {
    if (name == kEvictionNames[static_cast<int>(eviction)]) return eviction;
  }
  return std::nullopt;
}

// One block's place in an order.
struct OrderLinks {
  EntryId older = kNoEntry;
  EntryId newer = kNoEntry;
  bool listed = false;
  bool used = false;  // since it came or lost its protection; protected, when listed
};

// `Links` gives the links of a block: OrderLinks& operator()(EntryId) const. Not thread-safe.
template <typename Links>
class EvictionOrder {
 public:
  // With 0 percent it is LRU.
  EvictionOrder(Links links, uint32_t protected_percent)
      : links_(links), protected_percent_(protected_percent) {}

  bool listed(EntryId id) const { return links_(id).listed; }
  uint64_t size() const { return size_; }
  uint64_t protected_size() const { return protected_size_; }
  EntryId oldest() const { return oldest_; }
  EntryId newest() const { return newest_; }
  // kNoEntry at the end. REQUIRES: listed.
  EntryId Newer(EntryId id) const { return links_(id).newer; }
  EntryId Older(EntryId id) const { return links_(id).older; }

  // Lists a block as the newest of its kind, or beside its parent when that is listed and of the
  // same kind. `parent` may be kNoEntry; then the block's ancestors are listed after it.
  // REQUIRES: not listed.
  void Place(EntryId id, EntryId parent) {
    OrderLinks& links = links_(id);
    KVTIER_CHECK(!links.listed);
    const OrderLinks* beside = Beside(parent);
    if (beside != nullptr && !beside->used) links.used = false;
    if (beside != nullptr && beside->used == links.used) {
      Link(id, beside->older, parent);
    } else {
      const EntryId newer = links.used ? kNoEntry : oldest_protected_;
      Link(id, newer == kNoEntry ? newest_ : links_(newer).older, newer);
    }
    if (links.used) Protect(id);
  }

  // A walk from the root uses the block; `parent` is the one before it, or kNoEntry. A listed block
  // moves; one that is not remembers it until it is placed.
  void Use(EntryId id, EntryId parent) {
    OrderLinks& links = links_(id);
    const OrderLinks* beside = links.listed ? Beside(parent) : nullptr;
    const bool used = protected_percent_ > 0 && (beside == nullptr || beside->used);
    // A line that is not written stays in every core's cache.
    if (!links.listed) {
      if (links.used != used) links.used = used;
      return;
    }
    if (links.used == used && links.newer == (beside == nullptr ? kNoEntry : parent)) return;
    Unlist(id);
    links.used = used;
    Place(id, parent);
  }

  // As Use, but for a walk that does not count as one: a listed block becomes the newest of its
  // kind.
  void Renew(EntryId id, EntryId parent) {
    if (!links_(id).listed) return;
    Unlist(id);
    Place(id, parent);
  }

  // While it is in use. No effect when it is not listed.
  void Unlist(EntryId id) {
    OrderLinks& links = links_(id);
    if (!links.listed) return;
    links.listed = false;
    --size_;
    protected_size_ -= links.used;
    if (id == oldest_protected_) oldest_protected_ = links.newer;
    (links.older == kNoEntry ? oldest_ : links_(links.older).newer) = links.newer;
    (links.newer == kNoEntry ? newest_ : links_(links.newer).older) = links.older;
  }

  // For good: if it comes again, it was not used yet.
  void Leave(EntryId id) {
    Unlist(id);
    links_(id).used = false;
  }

 private:
  const OrderLinks* Beside(EntryId parent) const {
    if (parent == kNoEntry) return nullptr;
    const OrderLinks& links = links_(parent);
    return links.listed ? &links : nullptr;
  }

  void Link(EntryId id, EntryId older, EntryId newer) {
    OrderLinks& links = links_(id);
    links.older = older;
    links.newer = newer;
    links.listed = true;
    ++size_;
    (older == kNoEntry ? oldest_ : links_(older).newer) = id;
    (newer == kNoEntry ? newest_ : links_(newer).older) = id;
  }

  void Protect(EntryId id) {
    if (links_(id).newer == oldest_protected_) oldest_protected_ = id;
    ++protected_size_;
    while (protected_size_ * 100 > size_ * protected_percent_) {
      OrderLinks& oldest = links_(oldest_protected_);
      oldest.used = false;
      oldest_protected_ = oldest.newer;
      --protected_size_;
    }
  }

  const Links links_;
  const uint32_t protected_percent_;
  EntryId oldest_ = kNoEntry;
  EntryId newest_ = kNoEntry;
  EntryId oldest_protected_ = kNoEntry;  // those from here to the newest are; kNoEntry: none
  uint64_t size_ = 0;
  uint64_t protected_size_ = 0;
};

}  // namespace kvtier
