#include "cli/bench_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvtier::cli {
namespace {

using testing::HasSubstr;

TEST(MedianTest, MiddleOfOddAndEvenCounts) {
  EXPECT_EQ(Median({5}), 5);
  EXPECT_EQ(Median({9, 1, 5}), 5);
  EXPECT_EQ(Median({9, 1, 5, 6}), 5.5);
}

TEST(BenchReportTest, RatioIsTheMedianOfTheRoundsRatios) {
  BenchReport report("fetch");
  // The machine was half as fast in the second round, for both.
  report.AddRate("fetch", {4, 2, 4.4}, "bare stream", {5, 2.5, 5}, 0.85);
  const BenchRow& row = report.rows()[0];
  EXPECT_EQ(row.value, 4);
  EXPECT_EQ(row.limit, 5);
  EXPECT_DOUBLE_EQ(row.ratio, 0.8);
  EXPECT_THAT(report.ToText(), HasSubstr(">= 0.85 MISSED"));
  EXPECT_EQ(report.ToJson()["rows"][0]["meets_target"], false);
  EXPECT_TRUE(report.Check().ok());
}

TEST(BenchReportTest, RateAboveItsLimitFails) {
  BenchReport good("fetch");
  good.AddRate("fetch", {1.04}, "bare stream", {1}, 0);
  EXPECT_TRUE(good.Check().ok());
  BenchReport bad("fetch");
  bad.AddRate("fetch", {1.06}, "bare stream", {1}, 0);
  EXPECT_EQ(bad.Check().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(bad.Check().message()),
              HasSubstr("the ceiling is wrong: fetch is 1.060"));
}

TEST(BenchReportTest, LatencyBelowItsLimitFails) {
  BenchReport good("lookup");
  good.AddLatency("lookup", {96}, "bare call", {100}, 1.3);
  EXPECT_TRUE(good.Check().ok());
  EXPECT_EQ(good.ToJson()["rows"][0]["meets_target"], true);
  BenchReport bad("lookup");
  bad.AddLatency("lookup", {94}, "bare call", {100}, 1.3);
  EXPECT_FALSE(bad.Check().ok());
}

TEST(BenchReportTest, FactsAreNotChecked) {
  BenchReport report("lookup");
  report.AddFact("index_bytes_per_block", 300, "B", "256 B", 100);
  report.AddFact("memcpy", 9, "GB/s");
  EXPECT_TRUE(report.Check().ok());
  EXPECT_EQ(report.ToJson()["rows"][0]["ratio"], 3);
  EXPECT_FALSE(report.ToJson()["rows"][1].contains("limit"));
}

}  // namespace
}  // namespace kvtier::cli
