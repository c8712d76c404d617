#include "cli/simulate/stack_distance.h"

#include <algorithm>
#include <numeric>

namespace kvtier::cli {
namespace {

constexpr size_t kLeastTimes = 1024;

}  // namespace

void StackDistance::Grow(EntryId end) { last_use_.resize(end, kNever); }

void StackDistance::Request(std::span<const EntryId> path) {
  blocks_ += path.size();
  if (now_ + path.size() > block_at_.size()) MakeTimes(path.size());
  for (EntryId block : path) {
    if (last_use_[block] == kNever) break;  // and so were all below it
    const uint64_t distance = distinct_ - CountUpTo(last_use_[block]) + 1;
    if (distance >= at_distance_.size()) at_distance_.resize(2 * distance);
    ++at_distance_[distance];
  }
  for (size_t i = path.size(); i-- > 0;) {
    uint32_t& time = last_use_[path[i]];
    if (time == kNever) {
      ++distinct_;
    } else {
      Add(time, -1);
      block_at_[time] = kNoEntry;
    }
    time = now_++;
    block_at_[time] = path[i];
    Add(time, 1);
  }
}

uint64_t StackDistance::Hits(uint64_t capacity) const {
  const auto end = static_cast<ptrdiff_t>(std::min<uint64_t>(capacity + 1, at_distance_.size()));
  return std::accumulate(at_distance_.begin(), at_distance_.begin() + end, uint64_t{0});
}

void StackDistance::Add(uint32_t time, int32_t change) {
  for (size_t i = time + 1; i < tree_.size(); i += i & -i) tree_[i] += change;
}

uint64_t StackDistance::CountUpTo(uint32_t time) const {
  int64_t count = 0;
  for (size_t i = time + 1; i > 0; i -= i & -i) count += tree_[i];
  return static_cast<uint64_t>(count);
}

// Room for `count` more: times without a block go, the order stays. At least half is free then, so
// that it is rarely done.
void StackDistance::MakeTimes(size_t count) {
  uint32_t to = 0;
  for (uint32_t from = 0; from < now_; ++from) {
    const EntryId block = block_at_[from];
    if (block == kNoEntry) continue;
    block_at_[to] = block;
    last_use_[block] = to++;
  }
  block_at_.resize(std::max({kLeastTimes, block_at_.size(), 2 * (to + count)}));
  std::fill(block_at_.begin() + to, block_at_.end(), kNoEntry);
  now_ = to;
  tree_.assign(block_at_.size() + 1, 0);
  for (size_t i = 1; i < tree_.size(); ++i) {
    tree_[i] += i <= to ? 1 : 0;
    const size_t above = i + (i & -i);
    if (above < tree_.size()) tree_[above] += tree_[i];
  }
}

}  // namespace kvtier::cli
