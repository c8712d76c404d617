#include "cli/simulate/ordered_cache.h"

namespace kvtier::cli {

uint32_t OrderedCache::Request(std::span<const EntryId> path) {
  uint32_t used = 0;
  EntryId parent = kNoEntry;
  while (used < path.size() && order_.listed(path[used])) {
    order_.Use(path[used], parent);
    parent = path[used++];
  }
  const uint32_t hits = used;
  for (; used < path.size(); ++used) {
    if (order_.size() == capacity_ && !MakeRoom(path.first(used))) break;
    order_.Place(path[used], parent);
    parent = path[used];
  }
  return hits;
}

// The daemon pins the path. In the order its blocks come up deepest first.
bool OrderedCache::MakeRoom(std::span<const EntryId> used) {
  EntryId oldest = order_.oldest();
  while (!used.empty() && oldest == used.back()) {
    oldest = order_.Newer(oldest);
    used = used.first(used.size() - 1);
  }
  if (oldest == kNoEntry) return false;
  order_.Leave(oldest);
  return true;
}

}  // namespace kvtier::cli
