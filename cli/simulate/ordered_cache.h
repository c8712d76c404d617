// A memory tier of kvtierd without payload: the daemon's own eviction order.
#pragma once

#include <vector>

#include "cli/simulate/simulated_cache.h"

namespace kvtier::cli {

class OrderedCache final : public SimulatedCache {
 public:
  OrderedCache(uint64_t capacity, uint32_t protected_percent)
      : capacity_(capacity), order_(ArrayLinks{&links_}, protected_percent) {}

  void Grow(EntryId end) override { links_.resize(end); }
  uint32_t Request(std::span<const EntryId> path) override;
  bool Has(EntryId block) const { return order_.listed(block); }

 private:
  struct ArrayLinks {
    std::vector<OrderLinks>* links;
    OrderLinks& operator()(EntryId id) const { return (*links)[id]; }
  };

  // Evicts the oldest block that is not of path[0, used), which are there. False when all are.
  bool MakeRoom(std::span<const EntryId> used);

  const uint64_t capacity_;
  std::vector<OrderLinks> links_;
  EvictionOrder<ArrayLinks> order_;
};

}  // namespace kvtier::cli
