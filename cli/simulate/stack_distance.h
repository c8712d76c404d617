// The hit ratio of leaf-first LRU at every size, in one pass.
//
// A cache of C blocks holds the C that were used last, so whether a block is there depends only on
// its stack distance: how many distinct blocks were used since, itself counted (Mattson et al.,
// "Evaluation techniques for storage hierarchies", IBM Systems Journal 1970). A request's distances
// are those at its start, and it uses its blocks deepest first; so distances grow along a path, and
// the blocks within C are a prefix.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "storage/eviction_order.h"

namespace kvtier::cli {

// Not thread-safe. Memory: 16 bytes for each distinct block, about.
class StackDistance {
 public:
  // Every block number from now on is below `end`; never descends.
  void Grow(EntryId end);
  // One request, root first.
  void Request(std::span<const EntryId> path);

  // Of all requests so far: what a cache of `capacity` blocks would have hit.
  uint64_t Hits(uint64_t capacity) const;
  uint64_t blocks() const { return blocks_; }      // references
  uint64_t distinct() const { return distinct_; }  // the size from which hits grow no more

 private:
  static constexpr uint32_t kNever = UINT32_MAX;

  void Add(uint32_t time, int32_t change);
  uint64_t CountUpTo(uint32_t time) const;
  void MakeTimes(size_t count);

  std::vector<uint32_t> last_use_;     // of each block
  std::vector<EntryId> block_at_;      // of each time; kNoEntry: it was used again since
  std::vector<int32_t> tree_;          // Fenwick: how many blocks have their last use at a time
  uint32_t now_ = 0;                   // the next time
  std::vector<uint64_t> at_distance_;  // references by distance
  uint64_t blocks_ = 0;
  uint64_t distinct_ = 0;
};

}  // namespace kvtier::cli
