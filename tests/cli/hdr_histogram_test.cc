#include "cli/hdr_histogram.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "tests/support/seed.h"

namespace kvtier::cli {
namespace {

// At every scale a quantile is at least the exact one, and at most a thousandth above it.
TEST(HdrHistogramTest, QuantilesHaveThreeDigitsAtEveryScale) {
  const uint64_t seed = TestSeed();
  std::mt19937_64 random(seed);
  HdrHistogram histogram;
  std::vector<int64_t> exact;
  std::uniform_real_distribution<double> exponent(0, 12.5);  // 1 ns to 53 minutes
  for (int i = 0; i < 20'000; ++i) {
    exact.push_back(static_cast<int64_t>(std::pow(10, exponent(random))));
    histogram.Record(Duration(exact.back()));
  }
  std::sort(exact.begin(), exact.end());
  EXPECT_EQ(histogram.count(), exact.size());
  EXPECT_EQ(histogram.max().count(), exact.back());
  for (const double share : {0.0001, 0.01, 0.1, 0.5, 0.9, 0.99, 0.999, 0.9999, 1.0}) {
    const auto rank = static_cast<size_t>(std::ceil(share * static_cast<double>(exact.size())));
    const int64_t want = exact[rank - 1];
    const int64_t got = histogram.Quantile(share).count();
    EXPECT_GE(got, want) << share << " seed " << seed;
    EXPECT_LE(static_cast<double>(got), static_cast<double>(want) * 1.001) << share;
  }
}

TEST(HdrHistogramTest, SmallOnesAreExactAndLongOnesAreKept) {
  HdrHistogram histogram;
  EXPECT_EQ(histogram.Quantile(0.5).count(), 0);
  EXPECT_EQ(histogram.count(), 0u);
  for (int i = 0; i <= 2047; ++i) histogram.Record(Duration(i));
  EXPECT_EQ(histogram.Quantile(0.5).count(), 1023);
  EXPECT_EQ(histogram.Quantile(1).count(), 2047);
  histogram.Record(Duration(-5));
  EXPECT_EQ(histogram.Quantile(0).count(), 0);
  histogram.Record(std::chrono::hours(5));
  EXPECT_EQ(histogram.max(), std::chrono::hours(5));
  EXPECT_GE(histogram.Quantile(1), std::chrono::minutes(73));
}

TEST(HdrHistogramTest, MergedIsAsIfRecordedInOne) {
  HdrHistogram one, other, both;
  for (int i = 1; i < 3000; ++i) {
    const Duration latency(int64_t{i} * i * i);
    (i % 3 == 0 ? one : other).Record(latency);
    both.Record(latency);
  }
  one.Merge(other);
  EXPECT_EQ(one.count(), both.count());
  EXPECT_EQ(one.max(), both.max());
  for (double share = 0; share <= 1; share += 0.01) {
    EXPECT_EQ(one.Quantile(share), both.Quantile(share));
  }
}

}  // namespace
}  // namespace kvtier::cli
