#include "cli/simulate/optimum.h"

#include <algorithm>
#include <vector>

namespace kvtier::cli {
namespace {

constexpr uint32_t kNever = UINT32_MAX;

// The request that uses each reference's block next, in the order of the references that count.
std::vector<uint32_t> NextUses(const References& references, Convention convention, EntryId end) {
  std::vector<uint32_t> next(references.blocks.size());
  std::vector<uint32_t> later(end, kNever);
  size_t last = references.blocks.size();
  for (size_t request = references.requests.size(); request-- > 0;) {
    const RequestLength& length = references.requests[request];
    const size_t first = last - length.all;
    for (size_t i = first; i < first + length.In(convention); ++i) {
      uint32_t& block_next = later[references.blocks[i]];
      next[i] = block_next;
      block_next = static_cast<uint32_t>(request);
    }
    last = first;
  }
  return next;
}

// A block that is kept, by when it is used next. The last in this order leaves first.
struct Kept {
  uint32_t next = 0;
  uint32_t depth = 0;
  EntryId block = 0;
  bool operator<(const Kept& other) const {
    return next != other.next ? next < other.next : depth < other.depth;
  }
};

class Optimum {
 public:
  Optimum(uint64_t capacity, EntryId end) : capacity_(capacity), next_(end, kNever) {}

  // `next` holds each block's next use. Returns the hits.
  uint32_t Request(std::span<const EntryId> path, const uint32_t* next) {
    uint32_t hits = 0;
    while (hits < path.size() && next_[path[hits]] != kNever) ++hits;
    kept_ -= hits;  // closed under ancestors: no other block of the path is there
    for (uint32_t depth = 0; depth < path.size(); ++depth) {
      next_[path[depth]] = next[depth];
      // Deeper blocks are used later still, or never.
      if (next[depth] == kNever) continue;
      heap_.push_back({next[depth], depth, path[depth]});
      std::push_heap(heap_.begin(), heap_.end());
      if (++kept_ > capacity_) Drop();
    }
    if (heap_.size() > 2 * capacity_ + path.size()) RemoveStale();
    return hits;
  }

 private:
  bool IsStale(const Kept& kept) const { return next_[kept.block] != kept.next; }

  // What was used since it was put into the heap has another next use: those are passed over.
  void Drop() {
    for (bool dropped = false; !dropped;) {
      std::pop_heap(heap_.begin(), heap_.end());
      const Kept last = heap_.back();
      heap_.pop_back();
      dropped = !IsStale(last);
      if (dropped) next_[last.block] = kNever;
    }
    --kept_;
  }

  void RemoveStale() {
    std::erase_if(heap_, [this](const Kept& kept) { return IsStale(kept); });
    std::make_heap(heap_.begin(), heap_.end());
  }

  const uint64_t capacity_;
  std::vector<uint32_t> next_;  // of blocks that are there; kNever for others
  std::vector<Kept> heap_;
  uint64_t kept_ = 0;
};

}  // namespace

uint64_t OptimumHits(const References& references, Convention convention, uint64_t capacity,
                     EntryId end) {
  const std::vector<uint32_t> next = NextUses(references, convention, end);
  Optimum optimum(capacity, end);
  uint64_t hits = 0;
  references.ForEach(convention, [&](std::span<const EntryId> path) {
    hits += optimum.Request(path, next.data() + (path.data() - references.blocks.data()));
  });
  return hits;
}

uint64_t OptimumMemoryBytes(uint64_t blocks, uint64_t requests, uint64_t distinct,
                            uint64_t capacity) {
  return blocks * (sizeof(EntryId) + sizeof(uint32_t)) + requests * sizeof(RequestLength) +
         distinct * 2 * sizeof(uint32_t) + 2 * std::min(capacity, distinct) * sizeof(Kept);
}

}  // namespace kvtier::cli
