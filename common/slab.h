// Memory for many small things that a walk visits in any order.
#pragma once

#include <cstddef>
#include <memory>

namespace kvtier {

inline constexpr size_t kSlabBytes = size_t{2} << 20;

struct FreeSlab {
  void operator()(void* slab) const;
};

// kSlabBytes bytes, not initialized and never destroyed as Ts, aligned to as many: one huge page
// where the system gives one (transparent_hugepage: madvise or always). To find the page of each of
// thousands of small things costs a walk more than to read them.
template <typename T>
using Slab = std::unique_ptr<T[], FreeSlab>;

void* AllocateSlab();

template <typename T>
Slab<T> MakeSlab() {
  return Slab<T>(static_cast<T*>(AllocateSlab()));
}

}  // namespace kvtier
