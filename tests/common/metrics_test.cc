#include "common/metrics.h"

#include <gtest/gtest.h>

#include "common/executor.h"

namespace kvtier {
namespace {

using std::chrono::microseconds;
using std::chrono::nanoseconds;

int BucketOf(Duration latency) {
  LatencyHistogram histogram;
  histogram.Record(latency);
  const LatencyHistogram::Snapshot snapshot = histogram.snapshot();
  for (int i = 0; i < LatencyHistogram::kBuckets; ++i) {
    if (snapshot.counts[i] == 1) return i;
  }
  return -1;
}

TEST(LatencyHistogram, BoundsAreInclusiveAndDouble) {
  EXPECT_EQ(BucketOf(nanoseconds(-5)), 0);
  EXPECT_EQ(BucketOf(nanoseconds(0)), 0);
  EXPECT_EQ(BucketOf(microseconds(8)), 0);
  EXPECT_EQ(BucketOf(nanoseconds(8001)), 1);
  EXPECT_EQ(BucketOf(microseconds(16)), 1);
  EXPECT_EQ(BucketOf(nanoseconds(16001)), 2);
  EXPECT_EQ(BucketOf(std::chrono::hours(1)), LatencyHistogram::kBuckets - 1);
  EXPECT_DOUBLE_EQ(LatencyHistogram::UpperBound(0), 8e-6);
  EXPECT_DOUBLE_EQ(LatencyHistogram::UpperBound(10), 8e-6 * 1024);
}

TEST(LatencyHistogram, SumsUp) {
  LatencyHistogram histogram;
  for (int i = 0; i < 10; ++i) histogram.Record(microseconds(100));
  EXPECT_EQ(histogram.snapshot().count, 10u);
  EXPECT_NEAR(histogram.snapshot().sum_seconds, 1e-3, 1e-9);
}

TEST(Counter, LosesNothingBetweenThreads) {
  Counter counter;
  {
    ThreadPool pool(4);
    for (int i = 0; i < 4; ++i) {
      pool.Run([&] {
        for (int j = 0; j < 10000; ++j) counter.Add();
      });
    }
  }
  counter.Add(5);
  EXPECT_EQ(counter.value(), 40005u);
}

}  // namespace
}  // namespace kvtier
