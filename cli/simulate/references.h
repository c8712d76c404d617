// Requests as paths of block numbers.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cli/simulate/options.h"
#include "storage/eviction_order.h"

namespace kvtier::cli {

struct RequestLength {
  uint32_t all = 0;   // blocks
  uint32_t full = 0;  // of them, leading full ones
  uint32_t In(Convention convention) const { return convention == Convention::kAll ? all : full; }
};

// Some requests of a trace, in order; or all, for who must know the future.
struct References {
  std::vector<EntryId> blocks;  // one request's after another's, each root first
  std::vector<RequestLength> requests;

  void Append(const References& more) {
    blocks.insert(blocks.end(), more.blocks.begin(), more.blocks.end());
    requests.insert(requests.end(), more.requests.begin(), more.requests.end());
  }
  // Calls take(path) for each request.
  template <typename Take>
  void ForEach(Convention convention, const Take& take) const {
    const EntryId* path = blocks.data();
    for (const RequestLength& length : requests) {
      take(std::span<const EntryId>(path, length.In(convention)));
      path += length.all;
    }
  }
};

}  // namespace kvtier::cli
