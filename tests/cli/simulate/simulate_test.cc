// The policies of `kvtier simulate`, each against what it must equal: the optimum against trying
// everything, the curve against simulated caches.
#include <algorithm>
#include <fstream>
#include <map>
#include <random>

#include "cli/simulate/comparisons.h"
#include "cli/simulate/optimum.h"
#include "cli/simulate/options.h"
#include "cli/simulate/ordered_cache.h"
#include "cli/simulate/simulation.h"
#include "cli/simulate/stack_distance.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_folder.h"

namespace kvtier::cli {
namespace {

constexpr uint64_t kSeed = 20261130;

// Requests for paths of a random tree.
References RandomReferences(std::mt19937_64* random, EntryId blocks, uint32_t requests) {
  std::vector<EntryId> parents(blocks, kNoEntry);
  for (EntryId id = 1; id < blocks; ++id) {
    const EntryId parent = (*random)() % (id + 1);
    parents[id] = parent == id ? kNoEntry : parent;  // some are roots
  }
  References out;
  for (uint32_t i = 0; i < requests; ++i) {
    std::vector<EntryId> path;
    for (EntryId id = (*random)() % blocks; id != kNoEntry; id = parents[id]) path.push_back(id);
    out.blocks.insert(out.blocks.end(), path.rbegin(), path.rend());
    const auto length = static_cast<uint32_t>(path.size());
    const auto partial = static_cast<uint32_t>(length > 1 ? (*random)() % 2 : 0);
    out.requests.push_back({length, length - partial});
  }
  return out;
}

uint64_t Hits(const References& references, Convention convention, EntryId end,
              std::unique_ptr<SimulatedCache> cache) {
  uint64_t hits = 0;
  cache->Grow(end);
  references.ForEach(convention,
                     [&](std::span<const EntryId> path) { hits += cache->Request(path); });
  return hits;
}

// The most hits from here on, over every set that may be kept after each request.
class Exhaustive {
 public:
  Exhaustive(const References& references, Convention convention, uint64_t capacity)
      : capacity_(capacity) {
    references.ForEach(convention, [this](std::span<const EntryId> path) {
      paths_.emplace_back(path.begin(), path.end());
    });
  }

  uint64_t Most(size_t request = 0, uint32_t there = 0) {
    if (request == paths_.size()) return 0;
    const auto known = known_.find({request, there});
    if (known != known_.end()) return known->second;
    uint64_t hits = 0;
    uint32_t brought = there;
    bool prefix = true;
    for (EntryId block : paths_[request]) {
      prefix = prefix && (there >> block & 1) != 0;
      hits += prefix;
      brought |= 1u << block;
    }
    uint64_t most = 0;
    for (uint32_t kept = brought;; kept = (kept - 1) & brought) {  // every subset
      if (static_cast<uint64_t>(__builtin_popcount(kept)) <= capacity_) {
        most = std::max(most, Most(request + 1, kept));
      }
      if (kept == 0) break;
    }
    return known_[{request, there}] = hits + most;
  }

 private:
  const uint64_t capacity_;
  std::vector<std::vector<EntryId>> paths_;
  std::map<std::pair<size_t, uint32_t>, uint64_t> known_;
};

TEST(OptimumTest, EqualsTryingEverything) {
  std::mt19937_64 random(kSeed);
  SCOPED_TRACE(kSeed);
  uint64_t trees_with_a_choice = 0;
  for (int tree = 0; tree < 400; ++tree) {
    const auto blocks = static_cast<EntryId>(3 + random() % 5);
    const References references = RandomReferences(&random, blocks, 4 + random() % 6);
    const uint64_t capacity = 1 + random() % 3;
    for (Convention convention : kConventions) {
      const uint64_t most = Exhaustive(references, convention, capacity).Most();
      ASSERT_EQ(OptimumHits(references, convention, capacity, blocks), most) << "tree " << tree;
      trees_with_a_choice += most > 0 && most < Exhaustive(references, convention, blocks).Most();
    }
  }
  EXPECT_GT(trees_with_a_choice, 300u);
}

TEST(OptimumTest, NoPolicyHitsMore) {
  std::mt19937_64 random(kSeed);
  SCOPED_TRACE(kSeed);
  uint64_t below = 0;
  for (int tree = 0; tree < 60; ++tree) {
    const References references = RandomReferences(&random, 200, 400);
    const uint64_t capacity = 1 + random() % 60;
    for (Convention convention : kConventions) {
      const uint64_t most = OptimumHits(references, convention, capacity, 200);
      const auto check = [&](std::unique_ptr<SimulatedCache> cache) {
        const uint64_t hits = Hits(references, convention, 200, std::move(cache));
        EXPECT_LE(hits, most);
        EXPECT_TRUE(hits > 0 || capacity < 3);
        below += hits < most;
      };
      check(std::make_unique<OrderedCache>(capacity, 0));
      check(std::make_unique<OrderedCache>(capacity, 30));
      check(MakeRootFirstLru(capacity));
      check(MakeArc(capacity));
      check(MakeS3Fifo(capacity));
    }
  }
  EXPECT_GT(below, 300u);
}

TEST(StackDistanceTest, EqualsSimulatedLruAtEverySize) {
  std::mt19937_64 random(kSeed);
  SCOPED_TRACE(kSeed);
  for (Convention convention : kConventions) {
    const References references = RandomReferences(&random, 3000, 4000);
    StackDistance distance;
    distance.Grow(3000);
    references.ForEach(convention, [&](std::span<const EntryId> path) { distance.Request(path); });
    uint64_t last = 0;
    for (uint64_t capacity = 1; capacity <= 3000; capacity += 1 + capacity / 20) {
      const uint64_t hits =
          Hits(references, convention, 3000, std::make_unique<OrderedCache>(capacity, 0));
      ASSERT_EQ(distance.Hits(capacity), hits) << "capacity " << capacity;
      last = hits;
    }
    EXPECT_GT(last, 0u);
    EXPECT_EQ(distance.Hits(distance.distinct()), distance.Hits(UINT64_MAX - 1));
  }
}

TEST(OrderedCacheTest, APathLongerThanTheCacheKeepsItsHead) {
  for (uint32_t percent : {0u, 30u}) {
    OrderedCache cache(3, percent);
    cache.Grow(10);
    EXPECT_EQ(cache.Request(std::vector<EntryId>{0, 1, 2, 3, 4}), 0u);
    EXPECT_EQ(cache.Request(std::vector<EntryId>{0, 1, 2, 3, 4}), 3u);
    for (EntryId block : {0, 1, 2}) EXPECT_TRUE(cache.Has(block));
    EXPECT_FALSE(cache.Has(3));
  }
}

TEST(SimulateOptionsTest, CapacitiesAreBlocksSharesOrBytes) {
  EXPECT_EQ(CapacityBlocks(*ParseCapacity("1828"), 0, 0).value(), 1828u);
  EXPECT_EQ(CapacityBlocks(*ParseCapacity("5%"), 284358, 0).value(), 14218u);  // nearest
  EXPECT_EQ(CapacityBlocks(*ParseCapacity("0.5%"), 1000, 0).value(), 5u);
  EXPECT_EQ(CapacityBlocks(*ParseCapacity("64MiB"), 0, 1 << 20).value(), 64u);
  EXPECT_FALSE(CapacityBlocks(*ParseCapacity("64MiB"), 0, 0).ok());
  EXPECT_FALSE(CapacityBlocks(*ParseCapacity("1%"), 10, 0).ok());  // less than a block
  for (const char* bad : {"", "0", "-1", "0%", "5%%", "many", "nan%", "99999999999"}) {
    EXPECT_FALSE(ParseCapacity(bad).ok()) << bad;
  }
  EXPECT_NE(ParseCapacity("many").status().message().find("'many'"), std::string::npos);
}

// Passes so many seconds whenever somebody looks.
class SlowClock final : public Clock {
 public:
  explicit SlowClock(int64_t seconds) : step_(seconds) {}
  TimePoint Now() const override {
    clock_.Advance(step_);
    return clock_.Now();
  }

 private:
  const std::chrono::seconds step_;
  mutable ManualClock clock_;
};

TEST(SimulationTest, TellsHowFarItIsEveryTwoSeconds) {
  const TempFolder folder;
  SimulateOptions options;
  options.trace = folder / "trace.jsonl";
  std::ofstream(options.trace)
      << R"({"timestamp": 0, "input_length": 1024, "output_length": 1, "hash_ids": [1, 2]})";
  options.capacities = {{CapacitySpec::Unit::kPercent, 100}};
  const auto lines = [&](int64_t seconds) {
    std::vector<std::string> out;
    const auto keep = [&](std::string_view line) { out.emplace_back(line); };
    EXPECT_TRUE(Simulate(options, keep, SlowClock(seconds)).ok());
    return out;
  };
  const std::string first = "simulate: a first pass over the trace counts its blocks";
  EXPECT_THAT(lines(3), testing::ElementsAre(first, "simulate: 2 blocks after 3.0 s",
                                             "simulate: 2 of 2 blocks after 6.0 s"));
  EXPECT_THAT(lines(0), testing::ElementsAre(first));
}

}  // namespace
}  // namespace kvtier::cli
