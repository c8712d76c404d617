#include "cli/simulate/comparisons.h"

#include <algorithm>

#include "common/check.h"

namespace kvtier::cli {
namespace {

// How many leading blocks of a path are there.
template <typename There>
uint32_t LeadingBlocks(std::span<const EntryId> path, const There& there) {
  const auto missing =
      std::find_if(path.begin(), path.end(), [&](EntryId block) { return !there(block); });
  return static_cast<uint32_t>(missing - path.begin());
}

// Which of a policy's lists a block is in, and its neighbours there.
struct ListNode {
  EntryId older = kNoEntry;
  EntryId newer = kNoEntry;
  uint8_t list = 0;  // 0: none
  uint8_t uses = 0;  // S3-FIFO's count
};

// Lists 1 to kLists over one array of nodes; a block is in one at most. The oldest leaves first.
template <int kLists>
class Lists {
 public:
  void Grow(EntryId end) { nodes_.resize(end); }
  ListNode& node(EntryId block) { return nodes_[block]; }
  int ListOf(EntryId block) const { return nodes_[block].list; }
  uint64_t size(int list) const { return ends_[list].size; }
  EntryId oldest(int list) const { return ends_[list].oldest; }

  void Remove(EntryId block) {
    ListNode& node = nodes_[block];
    if (node.list == 0) return;
    Ends& ends = ends_[node.list];
    (node.older == kNoEntry ? ends.oldest : nodes_[node.older].newer) = node.newer;
    (node.newer == kNoEntry ? ends.newest : nodes_[node.newer].older) = node.older;
    node.list = 0;
    --ends.size;
  }
  // Takes the block out of the list it is in.
  void Push(int list, EntryId block) {
    Remove(block);
    Ends& ends = ends_[list];
    ListNode& node = nodes_[block];
    node.older = ends.newest;
    node.newer = kNoEntry;
    node.list = static_cast<uint8_t>(list);
    (ends.newest == kNoEntry ? ends.oldest : nodes_[ends.newest].newer) = block;
    ends.newest = block;
    ++ends.size;
  }

 private:
  struct Ends {
    EntryId oldest = kNoEntry;
    EntryId newest = kNoEntry;
    uint64_t size = 0;
  };
  std::vector<ListNode> nodes_;
  std::array<Ends, kLists + 1> ends_;
};

class RootFirstLru final : public SimulatedCache {
 public:
  explicit RootFirstLru(uint64_t capacity) : capacity_(capacity) {}
  void Grow(EntryId end) override { lists_.Grow(end); }
  uint32_t Request(std::span<const EntryId> path) override {
    const uint32_t hits =
        LeadingBlocks(path, [this](EntryId block) { return lists_.ListOf(block) != 0; });
    for (EntryId block : path) {
      lists_.Push(1, block);
      if (lists_.size(1) > capacity_) lists_.Remove(lists_.oldest(1));
    }
    return hits;
  }

 private:
  const uint64_t capacity_;
  Lists<1> lists_;
};

class Arc final : public SimulatedCache {
 public:
  explicit Arc(uint64_t capacity) : capacity_(capacity) {}
  void Grow(EntryId end) override { lists_.Grow(end); }
  uint32_t Request(std::span<const EntryId> path) override {
    const uint32_t hits = LeadingBlocks(path, [this](EntryId block) {
      return lists_.ListOf(block) == kOnce || lists_.ListOf(block) == kOften;
    });
    for (size_t i = path.size(); i-- > 0;) Use(path[i]);
    return hits;
  }

 private:
  // T1, T2, and what has left them: B1, B2.
  enum List { kOnce = 1, kOften, kOnceGone, kOftenGone };

  void Use(EntryId block) {
    const int list = lists_.ListOf(block);
    if (list == kOnceGone || list == kOftenGone) {
      Adapt(list);
      Replace(list == kOftenGone);
    } else if (list == 0) {
      MakeRoom();
    }
    lists_.Push(list == 0 ? kOnce : kOften, block);
  }

  // What would have been a hit with a larger list makes that one larger.
  void Adapt(int list) {
    const uint64_t once = lists_.size(kOnceGone), often = lists_.size(kOftenGone);
    if (list == kOnceGone) {
      once_target_ = std::min(capacity_, once_target_ + std::max<uint64_t>(1, often / once));
    } else {
      once_target_ -= std::min(once_target_, std::max<uint64_t>(1, once / often));
    }
  }

  void MakeRoom() {
    const uint64_t once = lists_.size(kOnce) + lists_.size(kOnceGone);
    const uint64_t all = once + lists_.size(kOften) + lists_.size(kOftenGone);
    if (once == capacity_) {
      const bool ghosts = lists_.size(kOnce) < capacity_;
      lists_.Remove(lists_.oldest(ghosts ? kOnceGone : kOnce));
      if (ghosts) Replace(false);
    } else if (all >= capacity_) {
      if (all == 2 * capacity_) lists_.Remove(lists_.oldest(kOftenGone));
      Replace(false);
    }
  }

  void Replace(bool for_often_gone) {
    if (lists_.size(kOnce) + lists_.size(kOften) < capacity_) return;
    const uint64_t once = lists_.size(kOnce);
    const bool from_once =
        once > 0 && (once > once_target_ || (for_often_gone && once == once_target_) ||
                     lists_.size(kOften) == 0);
    lists_.Push(from_once ? kOnceGone : kOftenGone, lists_.oldest(from_once ? kOnce : kOften));
  }

  const uint64_t capacity_;
  uint64_t once_target_ = 0;  // the paper's p
  Lists<4> lists_;
};

class S3Fifo final : public SimulatedCache {
 public:
  explicit S3Fifo(uint64_t capacity)
      : capacity_(capacity), small_(std::max<uint64_t>(1, capacity / 10)) {}
  void Grow(EntryId end) override { lists_.Grow(end); }
  uint32_t Request(std::span<const EntryId> path) override {
    const uint32_t hits = LeadingBlocks(path, [this](EntryId block) { return Has(block); });
    for (size_t i = path.size(); i-- > 0;) Use(path[i]);
    return hits;
  }

 private:
  enum List { kSmall = 1, kMain, kGhost };
  static constexpr uint8_t kMostUses = 3;

  bool Has(EntryId block) const {
    return lists_.ListOf(block) == kSmall || lists_.ListOf(block) == kMain;
  }

  void Use(EntryId block) {
    ListNode& node = lists_.node(block);
    if (Has(block)) {
      node.uses = std::min<uint8_t>(kMostUses, node.uses + 1);
      return;
    }
    while (lists_.size(kSmall) + lists_.size(kMain) >= capacity_) Evict();
    lists_.Push(lists_.ListOf(block) == kGhost ? kMain : kSmall, block);
    node.uses = 0;
  }

  // One block onwards: out, or into another queue.
  void Evict() {
    if (lists_.size(kSmall) >= small_ || lists_.size(kMain) == 0) {
      EvictFromSmall();
    } else {
      EvictFromMain();
    }
  }

  void EvictFromSmall() {
    const EntryId block = lists_.oldest(kSmall);
    ListNode& node = lists_.node(block);
    if (node.uses > 1) {
      lists_.Push(kMain, block);
      node.uses = 0;
      return;
    }
    lists_.Push(kGhost, block);
    if (lists_.size(kGhost) > capacity_ - small_) lists_.Remove(lists_.oldest(kGhost));
  }

  void EvictFromMain() {
    const EntryId block = lists_.oldest(kMain);
    ListNode& node = lists_.node(block);
    if (node.uses == 0) return lists_.Remove(block);
    --node.uses;
    lists_.Push(kMain, block);
  }

  const uint64_t capacity_;
  const uint64_t small_;
  Lists<3> lists_;
};

}  // namespace

std::unique_ptr<SimulatedCache> MakeRootFirstLru(uint64_t capacity) {
  return std::make_unique<RootFirstLru>(capacity);
}

std::unique_ptr<SimulatedCache> MakeArc(uint64_t capacity) {
  return std::make_unique<Arc>(capacity);
}

std::unique_ptr<SimulatedCache> MakeS3Fifo(uint64_t capacity) {
  return std::make_unique<S3Fifo>(capacity);
}

}  // namespace kvtier::cli
