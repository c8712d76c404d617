// One cache of unit blocks under a policy.
#pragma once

#include <cstdint>
#include <span>

#include "storage/eviction_order.h"

namespace kvtier::cli {

// Not thread-safe.
class SimulatedCache {
 public:
  virtual ~SimulatedCache() = default;
  // Every block number from now on is below `end`; never descends.
  virtual void Grow(EntryId end) = 0;
  // One request for a path, root first. Returns how many leading blocks are there (its hits), then
  // uses those and stores the rest.
  virtual uint32_t Request(std::span<const EntryId> path) = 0;
};

}  // namespace kvtier::cli
