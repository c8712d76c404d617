#include "cli/simulate/tiers.h"

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <random>

#include "cli/simulate/log_tiers.h"
#include "cli/simulate/simulation.h"
#include "gtest/gtest.h"
#include "tests/support/seed.h"

namespace kvtier::cli {
namespace {

using Path = std::vector<EntryId>;

TEST(TierModeTest, NamesAreReadAndOthersTold) {
  for (const TierMode mode : kTierModes) {
    EXPECT_EQ(ParseTierMode(std::string(TierModeName(mode))).value(), mode);
  }
  const absl::Status status = ParseTierMode("eager").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "tiers is 'eager', must be of: exclusive, inclusive, lazy, log");
}

// Feeds paths to two tiers and says what came of each.
class Tiers {
 public:
  Tiers(TierMode mode, const TierSizes& sizes) : tiers_(MakeTiers(mode, sizes)) {
    tiers_->Grow(1000);
  }
  uint32_t Request(const Path& path) { return tiers_->Request(path); }
  TierCounts counts() const { return tiers_->counts(); }

 private:
  const std::unique_ptr<SimulatedTiers> tiers_;
};

TEST(BlockTiersTest, LazyWritesOnceAndKeepsTheCopy) {
  Tiers tiers(TierMode::kLazy, {.ram = 2, .ssd = 4});
  EXPECT_EQ(tiers.Request({1, 2}), 0u);
  EXPECT_EQ(tiers.counts().ssd_writes, 0u);
  EXPECT_EQ(tiers.Request({3, 4}), 0u);  // 1 and 2 leave RAM
  EXPECT_EQ(tiers.counts().ssd_writes, 2u);
  EXPECT_EQ(tiers.Request({1, 2}), 2u);  // from SSD; 3 and 4 leave RAM
  EXPECT_EQ(tiers.counts().ssd_hits, 2u);
  EXPECT_EQ(tiers.counts().ssd_writes, 4u);
  EXPECT_EQ(tiers.Request({3, 4}), 2u);  // 1 and 2 leave RAM and are on SSD
  EXPECT_EQ(tiers.counts().ssd_writes, 4u);
  EXPECT_EQ(tiers.Request({3, 4}), 2u);
  EXPECT_EQ(tiers.counts().ram_hits, 2u);
}

TEST(BlockTiersTest, ExclusiveWritesAtEachDemotionAndHoldsMore) {
  Tiers exclusive(TierMode::kExclusive, {.ram = 2, .ssd = 2});
  Tiers lazy(TierMode::kLazy, {.ram = 2, .ssd = 2});
  for (const Path& path : {Path{1, 2}, Path{3, 4}, Path{1, 2}}) {
    exclusive.Request(path);
    lazy.Request(path);
  }
  EXPECT_EQ(exclusive.counts().ssd_writes, 4u);  // 1, 2 and then 3, 4 into their place
  EXPECT_EQ(exclusive.Request({3, 4}), 2u);
  EXPECT_EQ(exclusive.counts().ssd_writes, 6u);  // 1, 2 again
  EXPECT_EQ(lazy.Request({3, 4}), 2u);
}

TEST(BlockTiersTest, InclusiveWritesWhatIsStored) {
  Tiers tiers(TierMode::kInclusive, {.ram = 2, .ssd = 3});
  EXPECT_EQ(tiers.Request({1, 2}), 0u);
  EXPECT_EQ(tiers.counts().ssd_writes, 2u);
  EXPECT_EQ(tiers.Request({1, 2}), 2u);
  EXPECT_EQ(tiers.counts().ssd_writes, 2u);
  EXPECT_EQ(tiers.Request({3}), 0u);  // one more than RAM has room for, none more than the SSD
  EXPECT_EQ(tiers.counts().ssd_writes, 3u);
  EXPECT_EQ(tiers.Request({4}), 0u);  // into the place of 2, the leaf
  EXPECT_EQ(tiers.Request({1, 2}), 1u);
}

TEST(BlockTiersTest, WhatRamHasNoRoomForGoesToSsd) {
  for (const TierMode mode : {TierMode::kExclusive, TierMode::kInclusive, TierMode::kLazy}) {
    Tiers tiers(mode, {.ram = 2, .ssd = 8});
    EXPECT_EQ(tiers.Request({1, 2, 3, 4}), 0u);
    EXPECT_EQ(tiers.Request({1, 2, 3, 4}), 4u) << TierModeName(mode);
    EXPECT_EQ(tiers.counts().ram_hits, 2u);
    EXPECT_EQ(tiers.counts().ssd_hits, 2u);
  }
}

TEST(LogTiersTest, HoldsWhatItHasRoomForAndNoMore) {
  LogTiers tiers({.ram = 4, .ssd = 8, .segment = 2});
  for (EntryId first = 0; first < 40; first += 4) {
    EXPECT_EQ(tiers.Request(Path{first, first + 1, first + 2, first + 3}), 0u);
    tiers.manager().CheckInvariants();
  }
  EXPECT_EQ(tiers.Request(Path{36, 37, 38, 39}), 4u);  // in RAM
  EXPECT_EQ(tiers.counts().ram_hits, 4u);
  EXPECT_EQ(tiers.Request(Path{32, 33, 34, 35}), 4u);  // on SSD
  EXPECT_EQ(tiers.counts().ssd_hits, 4u);
  EXPECT_EQ(tiers.Request(Path{0, 1, 2, 3}), 0u);  // the first to go
}

// RAM and SSD hold as many blocks as they are said to, whatever a block's bytes.
TEST(LogTiersTest, CapacityIsInBlocks) {
  LogTiers tiers({.ram = 48, .ssd = 640, .segment = 10});
  const ModelInfo model = tiers.manager().ListModels().front();
  EXPECT_EQ(model.capacity_blocks[static_cast<int>(TierKind::kRam)], 48u);
  EXPECT_EQ(model.capacity_blocks[static_cast<int>(TierKind::kSsd)], 640u);
  for (EntryId block = 0; block < 4000; ++block) tiers.Request(Path{block});
  const ManagerStats stats = tiers.manager().stats();
  EXPECT_EQ(stats.tiers[static_cast<int>(TierKind::kRam)].blocks, 48u);
  EXPECT_LE(stats.tiers[static_cast<int>(TierKind::kSsd)].blocks, 640u);
  EXPECT_GE(stats.tiers[static_cast<int>(TierKind::kSsd)].blocks, 640u - 2 * 10);
  EXPECT_GE(stats.ssd_segments, 60u);  // of 10, or a few smaller ones
}

// Requests that grow from prompts in use, with fresh ones between.
class Requests {
 public:
  explicit Requests(uint64_t seed) : random_(seed) {}
  Path Next() {
    if (prompts_.size() < 8 || random_() % 4 == 0) prompts_.emplace_back();
    if (prompts_.size() > 40) prompts_.pop_front();
    Path& prompt = prompts_[random_() % prompts_.size()];
    for (uint64_t i = random_() % 4; i > 0; --i) prompt.push_back(end_++);
    return prompt;
  }
  EntryId end() const { return end_; }

 private:
  std::mt19937_64 random_;
  std::deque<Path> prompts_;
  EntryId end_ = 0;
};

// Nothing is found that was not stored; with room for all nothing is lost; and the manager's books
// stay whole.
TEST(LogTiersTest, RandomRequestsKeepTheManagerWhole) {
  Requests requests(TestSeed());
  LogTiers small({.ram = 64, .ssd = 128}), large({.ram = 64, .ssd = 100000});
  std::vector<bool> stored(100000);
  uint64_t blocks = 0, possible = 0, small_hits = 0, large_hits = 0;
  for (int i = 0; i < 3000; ++i) {
    const Path path = requests.Next();
    const auto known = static_cast<uint32_t>(
        std::find_if(path.begin(), path.end(), [&](EntryId id) { return !stored[id]; }) -
        path.begin());
    const uint32_t hits = small.Request(path);
    ASSERT_LE(hits, known);
    small_hits += hits;
    large_hits += large.Request(path);
    for (const EntryId id : path) stored[id] = true;
    blocks += path.size();
    possible += known;
    if (i % 100 == 0) small.manager().CheckInvariants();
  }
  EXPECT_EQ(large_hits, possible);  // everything is kept
  EXPECT_LT(small_hits, large_hits);
  EXPECT_GT(small_hits, blocks / 50);
  const TierCounts counts = large.counts();
  EXPECT_EQ(counts.ram_hits + counts.ssd_hits, large_hits);
  EXPECT_LE(counts.ssd_writes, requests.end());  // each once
}

TEST(LogTiersTest, TheSameRequestsGiveTheSameFigures) {
  const uint64_t seed = TestSeed();
  TierCounts counts[2];
  for (TierCounts& each : counts) {
    Requests requests(seed);
    LogTiers tiers({.ram = 16, .ssd = 64});
    for (int i = 0; i < 1000; ++i) tiers.Request(requests.Next());
    each = tiers.counts();
  }
  EXPECT_EQ(counts[0].ram_hits, counts[1].ram_hits);
  EXPECT_EQ(counts[0].ssd_hits, counts[1].ssd_hits);
  EXPECT_EQ(counts[0].ssd_writes, counts[1].ssd_writes);
}

// The three references done the slow way: lists searched from end to end.
class SlowTiers {
 public:
  SlowTiers(TierMode mode, const TierSizes& sizes) : mode_(mode), sizes_(sizes) {}

  uint32_t Request(const Path& path) {
    uint32_t hits = 0;
    while (hits < path.size() && (Has(ram_, path[hits]) || Has(ssd_, path[hits]))) ++hits;
    const size_t m = std::min<size_t>(path.size(), sizes_.ram);
    const Path deepest_first(path.rbegin(), path.rend());
    const auto shallow = deepest_first.end() - static_cast<ptrdiff_t>(m);
    if (mode_ == TierMode::kInclusive) {
      for (const EntryId block : deepest_first) ToSsd(block);
    }
    for (auto block = shallow; block != deepest_first.end(); ++block) {
      if (Has(ram_, *block)) ToRam(*block);
    }
    for (auto block = shallow; block != deepest_first.end(); ++block) {
      if (!Has(ram_, *block)) Enter(*block);
    }
    for (auto block = shallow; block != deepest_first.end(); ++block) ToRam(*block);
    for (auto block = deepest_first.begin(); block != shallow; ++block) {
      if (!Has(ssd_, *block)) ToSsd(*block);
    }
    return hits;
  }
  uint64_t writes() const { return writes_; }

 private:
  using Order = std::deque<EntryId>;  // least recent first
  static bool Has(const Order& order, EntryId block) {
    return std::find(order.begin(), order.end(), block) != order.end();
  }
  static void Take(Order* order, EntryId block) {
    order->erase(std::remove(order->begin(), order->end(), block), order->end());
  }
  void ToRam(EntryId block) {
    Take(&ram_, block);
    ram_.push_back(block);
  }
  void Enter(EntryId block) {
    if (Has(ssd_, block) && mode_ != TierMode::kExclusive) ToSsd(block);
    if (mode_ == TierMode::kExclusive) Take(&ssd_, block);
    ToRam(block);
    if (ram_.size() <= sizes_.ram) return;
    const EntryId left = ram_.front();
    ram_.pop_front();
    if (mode_ != TierMode::kInclusive || !Has(ssd_, left)) ToSsd(left);
  }
  void ToSsd(EntryId block) {
    const bool there = Has(ssd_, block);
    writes_ += !there;
    if (!there && ssd_.size() == sizes_.ssd) ssd_.pop_front();
    Take(&ssd_, block);
    ssd_.push_back(block);
  }

  const TierMode mode_;
  const TierSizes sizes_;
  Order ram_, ssd_;
  uint64_t writes_ = 0;
};

TEST(BlockTiersTest, AreWhatTheirWordsSay) {
  const uint64_t seed = TestSeed();
  for (const TierMode mode : {TierMode::kExclusive, TierMode::kInclusive, TierMode::kLazy}) {
    for (const TierSizes& sizes :
         {TierSizes{.ram = 3, .ssd = 5}, TierSizes{.ram = 12, .ssd = 60}}) {
      Requests requests(seed);
      const auto tiers = MakeTiers(mode, sizes);
      SlowTiers slow(mode, sizes);
      uint64_t hits = 0;
      for (int i = 0; i < 2000; ++i) {
        const Path path = requests.Next();
        tiers->Grow(requests.end());
        const uint32_t found = tiers->Request(path);
        ASSERT_EQ(found, slow.Request(path)) << TierModeName(mode) << " request " << i;
        hits += found;
      }
      EXPECT_GT(hits, 0u);
      EXPECT_EQ(tiers->counts().ram_hits + tiers->counts().ssd_hits, hits);
      EXPECT_EQ(tiers->counts().ssd_writes, slow.writes());
    }
  }
}

struct RecordedCase {
  const char* file;
  TierMode mode;
  TierSizes sizes;
  double hit_ratio, ram, writes;
  double tolerance;
};

class RecordedTiersTest : public ::testing::TestWithParam<RecordedCase> {};

// The figures that independent simulation gives for the recorded traces; of the log, those that
// this one gave when a live kvtierd agreed with it (docs/TRACES.md).
TEST_P(RecordedTiersTest, GivesTheFigures) {
  const RecordedCase& c = GetParam();
  const char* folder = std::getenv("KVTIER_TRACES");
  const std::string traces = folder != nullptr ? folder : KVTIER_SOURCE_DIR "/../shared/traces";
  SimulateOptions options;
  options.trace = traces + "/" + c.file;
  if (!std::filesystem::exists(options.trace)) GTEST_SKIP() << "no trace " << options.trace;
  const auto blocks = [](uint64_t count) {
    return CapacitySpec{CapacitySpec::Unit::kBlocks, static_cast<double>(count)};
  };
  options.capacities = {blocks(c.sizes.ram)};
  options.tiers = {c.mode};
  options.ssd_capacities = {blocks(c.sizes.ssd)};
  options.conventions = {Convention::kAll};
  const absl::StatusOr<SimulationReport> report = Simulate(options, [](std::string_view) {});
  ASSERT_TRUE(report.ok()) << report.status();
  ASSERT_EQ(report->rows.size(), 1u);
  const SimulationRow& row = report->rows.front();
  EXPECT_NEAR(row.hit_ratio_all.value(), c.hit_ratio, c.tolerance);
  EXPECT_NEAR(row.tiers_all.value().ram, c.ram, c.tolerance);
  EXPECT_NEAR(row.tiers_all.value().writes_per_block, c.writes, c.tolerance);
  EXPECT_NEAR(row.tiers_all.value().ram + row.tiers_all.value().ssd, *row.hit_ratio_all, 1e-9);
  EXPECT_FALSE(row.hit_ratio_full.has_value());
}

constexpr char kConversation[] = "mooncake_conversation.jsonl.zst";
constexpr char kWeka[] = "weka_A_merged_b512.jsonl.zst";
constexpr TierSizes kChat{.ram = 1828, .ssd = 14624, .segment = 0};
constexpr TierSizes kAgents{.ram = 2844, .ssd = 22752, .segment = 0};

INSTANTIATE_TEST_SUITE_P(
    Traces, RecordedTiersTest,
    ::testing::Values(
        RecordedCase{kConversation, TierMode::kExclusive, kChat, .2660, .0525, .941, .0005},
        RecordedCase{kConversation, TierMode::kInclusive, kChat, .253, .0525, .747, .0005},
        RecordedCase{kConversation, TierMode::kLazy, kChat, .264, .0525, .732, .0005},
        RecordedCase{kConversation, TierMode::kLog, kChat, .2656, .0525, .8894, .0005},
        RecordedCase{kWeka, TierMode::kExclusive, kAgents, .950, .323, .677, .0005},
        RecordedCase{kWeka, TierMode::kInclusive, kAgents, .946, .323, .054, .0005},
        RecordedCase{kWeka, TierMode::kLazy, kAgents, .947, .323, .053, .0005}),
    [](const auto& info) {
      const bool chat = std::string(info.param.file) == kConversation;
      return std::string(TierModeName(info.param.mode)) + (chat ? "_conversation" : "_weka_A");
    });

}  // namespace
}  // namespace kvtier::cli
