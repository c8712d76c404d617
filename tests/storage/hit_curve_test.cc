#include "storage/hit_curve.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>

#include "tests/support/seed.h"

namespace kvtier {
namespace {

constexpr uint64_t kBlock = 4096;  // bytes

// A key for each pair of numbers, uniform.
BlockKey KeyOf(uint64_t family, uint64_t number) {
  const uint64_t pair[] = {family, number};
  return BlockKey::Of({reinterpret_cast<const char*>(pair), sizeof(pair)});
}

std::vector<BlockKey> Path(uint64_t family, uint64_t blocks) {
  std::vector<BlockKey> path;
  for (uint64_t i = 0; i < blocks; ++i) path.push_back(KeyOf(family, i));
  return path;
}

// What a server does: looks a prompt up of which the first `hits` blocks are there, and stores the
// rest.
void Request(HitCurve* curve, const std::vector<BlockKey>& path, uint64_t hits,
             uint32_t model = 0) {
  PathSampler sampler = curve->Sampler();
  std::vector<SampledBlock> found, stored;
  for (uint32_t depth = 0; depth < path.size(); ++depth) sampler.Take(depth, path[depth]);
  for (const SampledBlock& block : sampler.sampled()) {
    (block.depth < hits ? found : stored).push_back(block);
  }
  curve->AddLookup({model, kBlock, found}, path.size(), hits);
  if (hits < path.size()) curve->AddStore({model, kBlock, stored}, path.size() - hits, found);
}

TEST(RecencyStackTest, SumsAgreeWithAPlainList) {
  std::mt19937_64 random(TestSeed());
  constexpr uint32_t kPlaces = 5000;  // more than one sum of sums
  RecencyStack stack(kPlaces);
  std::map<RecencyStack::Place, std::pair<uint32_t, uint64_t>> plain;
  uint32_t next_id = 0;
  for (int step = 0; step < 20000; ++step) {
    if (stack.full()) {
      std::map<RecencyStack::Place, std::pair<uint32_t, uint64_t>> moved;
      auto was = plain.begin();
      stack.Compact([&](uint32_t id, RecencyStack::Place place) {
        ASSERT_EQ(id, was->second.first);  // in the same order
        moved[place] = (was++)->second;
      });
      ASSERT_EQ(was, plain.end());
      plain = std::move(moved);
    }
    const uint64_t bytes = 1 + random() % 1000;
    plain[stack.Push(next_id, bytes)] = {next_id, bytes};
    ++next_id;
    while (plain.size() > 3000) {
      const auto victim = std::next(plain.begin(), static_cast<ptrdiff_t>(random() % 100));
      stack.Remove(victim->first);
      plain.erase(victim);
    }
    if (step % 50 != 0) continue;
    const auto asked = std::next(plain.begin(), static_cast<ptrdiff_t>(random() % plain.size()));
    uint64_t expected = 0;
    for (auto it = asked; it != plain.end(); ++it) expected += it->second.second;
    ASSERT_EQ(stack.BytesFrom(asked->first), expected);
    const RecencyStack::Place after = std::min(asked->first + 10, stack.end());
    const uint64_t bytes_after = after == stack.end() ? 0 : stack.BytesFrom(after);
    ASSERT_EQ(stack.BytesFrom(asked->first, after, bytes_after), expected);
  }
}

TEST(PathSamplerTest, OneOfEachRunAndAllAlike) {
  std::mt19937_64 random(TestSeed());
  for (const int level : {0, 1, 3, 5}) {
    const uint32_t run = uint32_t{1} << level;
    constexpr int kPaths = 4000;
    constexpr uint32_t kBlocks = 128;
    std::vector<int> at(kBlocks);
    for (int i = 0; i < kPaths; ++i) {
      PathSampler sampler(level, 0);
      const std::vector<BlockKey> path = Path(random(), kBlocks);
      for (uint32_t depth = 0; depth < kBlocks; ++depth) sampler.Take(depth, path[depth]);
      std::vector<int> of_run(kBlocks / run);
      for (const SampledBlock& block : sampler.sampled()) {
        ASSERT_EQ(block.key, path[block.depth].high);
        ++at[block.depth];
        ++of_run[block.depth / run];
      }
      for (size_t j = 1; j < of_run.size(); ++j) ASSERT_EQ(of_run[j], 1) << "run " << j;
    }
    const double expected = static_cast<double>(kPaths) / run;
    for (uint32_t depth = 0; depth < kBlocks; ++depth) {
      ASSERT_NEAR(at[depth], expected, 6 * std::sqrt(expected))
          << "level " << level << ", " << depth;
    }
  }
}

TEST(PathSamplerTest, ALowerRateFollowsPartOfWhatAHigherOneDoes) {
  std::mt19937_64 random(TestSeed());
  for (int i = 0; i < 200; ++i) {
    const uint64_t salt = random();
    const std::vector<BlockKey> path = Path(random(), 300);
    std::map<uint32_t, int> levels;  // by depth, as told at the full rate
    for (int level = 0; level <= 6; ++level) {
      PathSampler sampler(level, salt);
      for (uint32_t depth = 0; depth < path.size(); ++depth) sampler.Take(depth, path[depth]);
      if (level == 0) {
        for (const SampledBlock& block : sampler.sampled()) levels[block.depth] = block.level;
        ASSERT_EQ(levels.size(), path.size());
      }
      std::map<uint32_t, int> expected;
      for (const auto& [depth, own] : levels) {
        if (own >= level) expected[depth] = own;
      }
      std::map<uint32_t, int> got;
      for (const SampledBlock& block : sampler.sampled()) got[block.depth] = block.level;
      ASSERT_EQ(got, expected) << "level " << level;
    }
  }
}

TEST(HitCurveTest, AnswersNothingBeforeTheFirstLookup) {
  const HitRatioCurve curve = HitCurve().Curve(std::nullopt, false);
  EXPECT_EQ(curve.blocks, 0u);
  EXPECT_EQ(curve.HitRatio(uint64_t{1} << 40), 0);
}

// Prompts of one block in a circle: found by a cache that holds them all, by none that does not.
TEST(HitCurveTest, ACircleIsAllOrNothing) {
  constexpr uint64_t kBlocks = 100;
  constexpr uint64_t kRounds = 10;
  HitCurve curve;
  for (uint64_t i = 0; i < kRounds * kBlocks; ++i) Request(&curve, Path(i % kBlocks, 1), 0);
  const HitRatioCurve found = curve.Curve(std::nullopt, false);
  EXPECT_EQ(found.lookups, kRounds * kBlocks);
  EXPECT_EQ(found.hits, 0u);  // none was there, as the cache was small
  EXPECT_NEAR(found.HitRatio(kBlocks * kBlock * 90 / 100), 0, 1e-9);
  EXPECT_NEAR(found.HitRatio(kBlocks * kBlock * 110 / 100), .9, 1e-9);
}

// A prompt's distances are those before it: a long prompt that comes back does not push itself out.
TEST(HitCurveTest, APromptThatFitsIsFoundWhole) {
  HitCurve curve;
  for (int i = 0; i < 11; ++i) {
    Request(&curve, Path(1, 64), i == 0 ? 0 : 64);
    Request(&curve, Path(2, 36), i == 0 ? 0 : 36);
  }
  const HitRatioCurve found = curve.Curve(std::nullopt, false);
  EXPECT_NEAR(found.HitRatio(100 * kBlock * 108 / 100), 10. / 11, 1e-9);
  // With 50 blocks: heads are the most recent, so what is found is the first 14 of 64 behind 36.
  EXPECT_NEAR(found.HitRatio(50 * kBlock), 10. / 11 * 14 / 100, .02);
}

TEST(HitCurveTest, WhatIsNeverStoredIsAMissAtAnySize) {
  HitCurve curve;
  for (int i = 0; i < 100; ++i) curve.AddLookup({0, kBlock, {}}, 50, 0);
  Request(&curve, Path(1, 50), 0);
  Request(&curve, Path(1, 50), 50);
  const HitRatioCurve found = curve.Curve(std::nullopt, false);
  EXPECT_NEAR(found.HitRatio(uint64_t{1} << 50), 50. / (102 * 50), 1e-9);
}

// After a restart blocks on SSD are found that are not remembered: they fitted the present size.
TEST(HitCurveTest, FoundBeforeItWasSeenIsAsOldAsCanBe) {
  HitCurve curve;
  curve.SetCapacity(1000 * kBlock);
  for (uint64_t i = 0; i < 50; ++i) Request(&curve, Path(i, 10), 10);
  const HitRatioCurve found = curve.Curve(std::nullopt, false);
  EXPECT_NEAR(found.HitRatio(900 * kBlock), 0, 1e-9);
  EXPECT_NEAR(found.HitRatio(1100 * kBlock), 1, 1e-9);
}

TEST(HitCurveTest, ModelsHaveTheirOwnAndShareTheTiers) {
  HitCurve curve;
  for (int i = 0; i < 10; ++i) {
    Request(&curve, Path(1, 40), 0, 0);
    Request(&curve, Path(1000 + i, 40), 0, 1);  // never again
  }
  const HitRatioCurve first = curve.Curve(0, false);
  EXPECT_NEAR(first.HitRatio(38 * kBlock), 0, 1e-9);  // behind the other's 40 blocks
  EXPECT_NEAR(first.HitRatio(90 * kBlock), .9, 1e-9);
  EXPECT_NEAR(curve.Curve(1, false).HitRatio(1000 * kBlock), 0, 1e-9);
  EXPECT_NEAR(curve.Curve(std::nullopt, false).HitRatio(90 * kBlock), .45, 1e-9);
  for (uint32_t model = 2; model < 200; ++model) Request(&curve, Path(model, 4), 0, model);
  EXPECT_EQ(curve.Curve(10, false).blocks, 4u);
  EXPECT_EQ(curve.Curve(150, false).blocks, 0u);
  EXPECT_EQ(curve.Curve(std::nullopt, false).lookups, 20u + 198u);
}

// A workload of `family` in a circle of `blocks`, none of it in the tiers.
void RunCircle(HitCurve* curve, uint64_t family, uint64_t blocks, uint64_t lookups) {
  for (uint64_t i = 0; i < lookups; ++i) Request(curve, Path(family + i % blocks, 1), 0);
}

TEST(HitCurveTest, TheWindowFollowsAChangeOfWorkload) {
  HitCurve curve;
  RunCircle(&curve, 0, 100, HitCurve::kWindowLookups);
  EXPECT_GT(curve.Curve(std::nullopt, false).HitRatio(200 * kBlock), .99);
  RunCircle(&curve, 1'000'000, 1000, HitCurve::kWindowLookups);  // needs ten times as much
  const HitRatioCurve window = curve.Curve(std::nullopt, false);
  EXPECT_LE(window.lookups, HitCurve::kWindowLookups);
  EXPECT_GT(window.lookups, HitCurve::kWindowLookups - HitCurve::kEpochLookups);
  EXPECT_NEAR(window.HitRatio(200 * kBlock), 0, 1e-9);
  EXPECT_GT(window.HitRatio(1100 * kBlock), .96);  // all but the first of each
  const HitRatioCurve all = curve.Curve(std::nullopt, true);
  EXPECT_EQ(all.lookups, 2 * HitCurve::kWindowLookups);
  EXPECT_NEAR(all.HitRatio(200 * kBlock), .5, .01);
}

// Far more blocks than it may remember: the rate falls, the memory does not grow, and the answer
// stays the same.
TEST(HitCurveTest, MemoryIsBounded) {
  const uint64_t salt = TestSeed();
  HitCurve curve({.most_samples = 2000, .salt = salt});
  constexpr uint64_t kPrompts = 1000;
  for (uint64_t i = 0; i < 5 * kPrompts; ++i) Request(&curve, Path(i % kPrompts, 40), 0);
  const HitCurveStats stats = curve.stats();
  EXPECT_LE(stats.ghost_blocks, 2000u);
  EXPECT_LE(stats.rate, 2000. / (40 * kPrompts));
  EXPECT_GE(stats.rate, 500. / (40 * kPrompts));
  EXPECT_LE(stats.memory_bytes, uint64_t{1} << 20);
  const HitRatioCurve found = curve.Curve(std::nullopt, false);
  EXPECT_NEAR(found.HitRatio(40 * kPrompts * kBlock * 7 / 10), 0, .03);
  EXPECT_NEAR(found.HitRatio(40 * kPrompts * kBlock * 14 / 10), .8, .03);
}

TEST(HitCurveTest, TheDefaultStaysBelow64MiB) {
  HitCurve curve;
  for (uint64_t i = 0; i < 400; ++i) {
    Request(&curve, Path(i, 2000), 0, static_cast<uint32_t>(i));
  }
  EXPECT_LT(curve.stats().rate, 1);
  EXPECT_GT(curve.stats().ghost_blocks, 40'000u);
  EXPECT_LE(curve.stats().memory_bytes, uint64_t{64} << 20);
}

// Blocks too old for any size that is asked about make way before the rate falls.
TEST(HitCurveTest, WhatIsTooOldIsForgottenFirst) {
  HitCurve curve({.most_samples = 4000, .salt = 0});
  curve.SetCapacity(20 * kBlock);  // 16 times that is 320 blocks
  for (uint64_t i = 0; i < 50'000; ++i) Request(&curve, Path(i / 2, 1), 0);
  EXPECT_EQ(curve.stats().rate, 1);
  EXPECT_LE(curve.stats().ghost_blocks, 4000u);
  EXPECT_NEAR(curve.Curve(std::nullopt, false).HitRatio(20 * kBlock), .5, 1e-3);
}

// Lookups pay for what is followed: long prompts, found whole, lower the rate.
TEST(HitCurveTest, CostIsBoundedByWhatLookupsPayFor) {
  HitCurve short_prompts;
  HitCurve long_prompts;
  uint64_t followed = 0;
  for (uint64_t i = 0; i < 3000; ++i) {
    Request(&short_prompts, Path(i % 7, 4), i < 7 ? 0 : 4);
    Request(&long_prompts, Path(i % 7, 1024), i < 7 ? 0 : 1024);
    if (i == 2999) {
      PathSampler sampler = long_prompts.Sampler();
      const std::vector<BlockKey> path = Path(3, 1024);
      for (uint32_t depth = 0; depth < path.size(); ++depth) sampler.Take(depth, path[depth]);
      followed = sampler.sampled().size();
    }
  }
  EXPECT_EQ(short_prompts.stats().rate, 1);
  EXPECT_LE(followed, HitCurve::kFreePerLookup + 1024 / HitCurve::kFreePerBlock + 4);
  EXPECT_GE(followed, 4u);
}

}  // namespace
}  // namespace kvtier
