// The eviction order by itself: what a protected segment keeps, its share, and that no block
// outlives its parent, whatever is pinned and in which order pins end.
#include "storage/eviction_order.h"

#include <random>
#include <set>
#include <vector>

#include "gtest/gtest.h"

namespace kvtier {
namespace {

struct ArrayLinks {
  std::vector<OrderLinks>* links;
  OrderLinks& operator()(EntryId id) const { return (*links)[id]; }
};

class EvictionOrderTest : public ::testing::Test {
 protected:
  using Order = EvictionOrder<ArrayLinks>;
  Order Make(Eviction eviction) { return Order(ArrayLinks{&links_}, ProtectedPercent(eviction)); }
  static std::vector<EntryId> Listed(const Order& order) {
    std::vector<EntryId> out;
    for (EntryId id = order.oldest(); id != kNoEntry; id = order.Newer(id)) out.push_back(id);
    return out;
  }

  std::vector<OrderLinks> links_ = std::vector<OrderLinks>(1000);
};

using Ids = std::vector<EntryId>;

TEST_F(EvictionOrderTest, LruPutsWhatIsUsedLast) {
  Order order = Make(Eviction::kLru);
  for (EntryId id : {0, 1, 2, 3}) order.Place(id, kNoEntry);
  order.Use(1, kNoEntry);
  EXPECT_EQ(Listed(order), (Ids{0, 2, 3, 1}));
  order.Use(0, 1);  // 1 is its parent
  EXPECT_EQ(Listed(order), (Ids{2, 3, 0, 1}));
  order.Place(9, kNoEntry);
  EXPECT_EQ(Listed(order), (Ids{2, 3, 0, 1, 9}));
}

TEST_F(EvictionOrderTest, WhatIsSeenOncePassesBelowWhatWasUsedAgain) {
  Order order = Make(Eviction::kProtected);
  for (EntryId id = 0; id < 10; ++id) order.Place(id, kNoEntry);
  for (EntryId id : {0, 1, 2}) order.Use(id, kNoEntry);
  EXPECT_EQ(order.protected_size(), 3u);
  order.Place(10, kNoEntry);
  EXPECT_EQ(Listed(order), (Ids{3, 4, 5, 6, 7, 8, 9, 10, 0, 1, 2}));
  order.Use(10, kNoEntry);  // one above the share: 0 stands where it stood, as the newest other
  EXPECT_EQ(order.protected_size(), 3u);
  order.Place(11, kNoEntry);
  EXPECT_EQ(Listed(order), (Ids{3, 4, 5, 6, 7, 8, 9, 0, 11, 1, 2, 10}));
  order.Renew(3, kNoEntry);  // no use: the newest of its kind
  EXPECT_EQ(Listed(order), (Ids{4, 5, 6, 7, 8, 9, 0, 11, 3, 1, 2, 10}));
}

TEST_F(EvictionOrderTest, WhoLeavesAndComesAgainWasNotUsed) {
  Order order = Make(Eviction::kProtected);
  for (EntryId id = 0; id < 10; ++id) order.Place(id, kNoEntry);
  order.Use(0, kNoEntry);
  order.Use(1, kNoEntry);
  order.Leave(0);
  order.Unlist(1);  // pinned: it remembers
  order.Place(0, kNoEntry);
  order.Place(1, kNoEntry);
  EXPECT_EQ(order.protected_size(), 1u);
  EXPECT_EQ(order.newest(), 1u);
}

// A tree whose blocks are walked, pinned and evicted at random, as a tier manager would.
class RandomTree {
 public:
  RandomTree(EvictionOrder<ArrayLinks>* order, uint64_t seed) : order_(*order), random_(seed) {}

  void Step() {
    const uint64_t choice = random_() % 10;
    if (choice < 4) return Walk();
    if (choice < 8) return Unpin();
    Evict();
  }

  // Newest to oldest, no block before its parent; and none is there without it.
  void Check() const {
    std::set<EntryId> newer;
    for (EntryId id = order_.newest(); id != kNoEntry; id = order_.Older(id)) {
      newer.insert(id);
      ASSERT_TRUE(id == 0 || pins_[Parent(id)] > 0 || newer.contains(Parent(id)));
    }
    for (EntryId id = 1; id < kBlocks; ++id) ASSERT_TRUE(!there_[id] || there_[Parent(id)]);
  }
  uint64_t evicted() const { return evicted_; }

 private:
  static constexpr EntryId kBlocks = 200;
  static EntryId Parent(EntryId id) { return (id - 1) / 2; }

  // Finds what is there and uses, renews or pins it; may store the rest, pinned.
  void Walk() {
    std::vector<EntryId> path;
    for (EntryId id = random_() % kBlocks;; id = Parent(id)) {
      path.insert(path.begin(), id);
      if (id == 0) break;
    }
    const bool is_use = random_() % 3 != 0, pin = random_() % 2 == 0, store = random_() % 2 == 0;
    std::vector<EntryId> pinned;
    EntryId parent = kNoEntry;
    for (EntryId id : path) {
      if (!there_[id] && !(store && pin)) break;
      const bool fresh = !there_[id];
      there_[id] = true;
      if (pin && pins_[id]++ == 0) order_.Unlist(id);
      if (pin) pinned.push_back(id);
      if (is_use && !fresh) order_.Use(id, parent);
      if (!is_use) order_.Renew(id, parent);
      parent = id;
    }
    if (!pinned.empty()) pinned_paths_.push_back(pinned);
  }

  void Unpin() {
    if (pinned_paths_.empty()) return;
    const size_t which = random_() % pinned_paths_.size();
    const std::vector<EntryId> path = pinned_paths_[which];
    pinned_paths_.erase(pinned_paths_.begin() + static_cast<ptrdiff_t>(which));
    for (size_t i = path.size(); i-- > 0;) {
      if (--pins_[path[i]] == 0) order_.Place(path[i], kNoEntry);
    }
  }

  void Evict() {
    for (int i = 0; i < 4 && order_.oldest() != kNoEntry; ++i) {
      const EntryId id = order_.oldest();
      order_.Leave(id);
      there_[id] = false;
      ++evicted_;
    }
  }

  EvictionOrder<ArrayLinks>& order_;
  std::mt19937_64 random_;
  std::vector<int> pins_ = std::vector<int>(kBlocks, 0);
  std::vector<bool> there_ = std::vector<bool>(kBlocks, false);
  std::vector<std::vector<EntryId>> pinned_paths_;
  uint64_t evicted_ = 0;
};

TEST_F(EvictionOrderTest, NoBlockOutlivesItsParent) {
  for (Eviction eviction : {Eviction::kLru, Eviction::kProtected}) {
    const uint64_t seed = 20261130;
    SCOPED_TRACE(seed);
    links_.assign(1000, OrderLinks());
    Order order = Make(eviction);
    RandomTree tree(&order, seed);
    uint64_t most_protected = 0;
    for (int step = 0; step < 20000; ++step) {
      tree.Step();
      ASSERT_NO_FATAL_FAILURE(tree.Check());
      most_protected = std::max(most_protected, order.protected_size());
    }
    EXPECT_GT(tree.evicted(), 1000u);
    EXPECT_EQ(most_protected > 10, eviction == Eviction::kProtected);
  }
}

}  // namespace
}  // namespace kvtier
