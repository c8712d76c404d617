#include <gtest/gtest.h>

#include "kvtier/client.h"

namespace kvtier {
namespace {

using std::chrono::milliseconds;

constexpr uint32_t kBlockTokens = 16;
constexpr double kRate = 16'000;  // a block takes 1 ms

PrefixMatch Match(std::vector<TierSpan> runs) {
  PrefixMatch match;
  for (const TierSpan& run : runs) match.blocks += run.blocks;
  match.tokens = match.blocks * kBlockTokens;
  match.runs = std::move(runs);
  return match;
}

TEST(BlocksWorthFetchingTest, AFastTierIsASlowOneIsNot) {
  EXPECT_EQ(BlocksWorthFetching(Match({{CacheTier::kRam, 10, milliseconds(2)}}), kRate), 10u);
  EXPECT_EQ(BlocksWorthFetching(Match({{CacheTier::kSsd, 10, milliseconds(30)}}), kRate), 0u);
  EXPECT_EQ(BlocksWorthFetching(Match({{CacheTier::kRam, 10, milliseconds(2)},
                                       {CacheTier::kSsd, 10, milliseconds(30)}}),
                                kRate),
            10u);
  // An engine that computes ten times slower is glad of the SSD too.
  EXPECT_EQ(BlocksWorthFetching(Match({{CacheTier::kRam, 10, milliseconds(2)},
                                       {CacheTier::kSsd, 10, milliseconds(30)}}),
                                kRate / 10),
            20u);
}

// A slow run may be worth it for what lies behind it: blocks are of use only from the first on.
TEST(BlocksWorthFetchingTest, WhatLiesBehindASlowRunCanPayForIt) {
  const TierSpan slow{CacheTier::kSsd, 10, milliseconds(30)};
  EXPECT_EQ(BlocksWorthFetching(Match({slow, {CacheTier::kRam, 21, milliseconds(2)}}), kRate), 0u);
  EXPECT_EQ(BlocksWorthFetching(Match({slow, {CacheTier::kRam, 23, milliseconds(2)}}), kRate), 33u);
}

TEST(BlocksWorthFetchingTest, NothingIsLeftOutForWantOfMeasurement) {
  const TierSpan unmeasured{CacheTier::kSsd, 5, Duration::zero()};
  EXPECT_EQ(BlocksWorthFetching(Match({unmeasured}), kRate), 5u);
  const PrefixMatch slow = Match({{CacheTier::kSsd, 10, milliseconds(30)}});
  EXPECT_EQ(BlocksWorthFetching(slow, 0), 10u);
  EXPECT_EQ(BlocksWorthFetching(slow, kRate), 0u);
  EXPECT_EQ(BlocksWorthFetching(PrefixMatch(), kRate), 0u);
}

}  // namespace
}  // namespace kvtier
