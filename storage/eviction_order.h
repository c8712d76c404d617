// The order in which blocks leave one memory tier: least recently used, leaf first.
//
// A path is used root first, and each block is placed next to its parent, on the older side. So
// heads are newer than tails, whoever leaves is a leaf of what is there, and no block outlives its
// parent.
//
// A list through links that lie elsewhere: in the daemon's index entries, or in an array of the
// simulator's. Both run this code.
#pragma once

#include <cstdint>

#include "common/check.h"

namespace kvtier {

using EntryId = uint32_t;
inline constexpr EntryId kNoEntry = UINT32_MAX;

// One block's place in an order.
struct OrderLinks {
  EntryId older = kNoEntry;
  EntryId newer = kNoEntry;
  bool listed = false;
};

// `Links` gives the links of a block: OrderLinks& operator()(EntryId) const. Not thread-safe.
template <typename Links>
class EvictionOrder {
 public:
  explicit EvictionOrder(Links links) : links_(links) {}

  bool listed(EntryId id) const { return links_(id).listed; }
  uint64_t size() const { return size_; }
  EntryId oldest() const { return oldest_; }
  EntryId newest() const { return newest_; }
  // kNoEntry at the end. REQUIRES: listed.
  EntryId Newer(EntryId id) const { return links_(id).newer; }
  EntryId Older(EntryId id) const { return links_(id).older; }

  // REQUIRES: not listed.
  void PushNewest(EntryId id) { Link(id, newest_, kNoEntry); }
  // Next to `newer`, on its older side. REQUIRES: `newer` is listed, `id` is not.
  void PushOlderThan(EntryId newer, EntryId id) {
    KVTIER_CHECK(links_(newer).listed);
    Link(id, links_(newer).older, newer);
  }
  // As part of a walk from the root that came from `parent`, or kNoEntry. Listed ones move.
  void Use(EntryId id, EntryId parent) {
    const EntryId place = parent != kNoEntry && links_(parent).listed ? parent : kNoEntry;
    const OrderLinks& links = links_(id);
    if (links.listed) {
      if (links.newer == place) return;  // it is there
      Unlist(id);
    }
    if (place == kNoEntry) {
      PushNewest(id);
    } else {
      PushOlderThan(place, id);
    }
  }
  // No effect when it is not listed.
  void Unlist(EntryId id) {
    OrderLinks& links = links_(id);
    if (!links.listed) return;
    links.listed = false;
    --size_;
    (links.older == kNoEntry ? oldest_ : links_(links.older).newer) = links.newer;
    (links.newer == kNoEntry ? newest_ : links_(links.newer).older) = links.older;
  }

 private:
  void Link(EntryId id, EntryId older, EntryId newer) {
    OrderLinks& links = links_(id);
    KVTIER_CHECK(!links.listed);
    links = {older, newer, true};
    ++size_;
    (older == kNoEntry ? oldest_ : links_(older).newer) = id;
    (newer == kNoEntry ? newest_ : links_(newer).older) = id;
  }

  const Links links_;
  EntryId oldest_ = kNoEntry;
  EntryId newest_ = kNoEntry;
  uint64_t size_ = 0;
};

}  // namespace kvtier
