#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <prometheus/text_serializer.h>

#include <chrono>
#include <fstream>
#include <set>
#include <sstream>

#include "service/metrics_http.h"

namespace kvtier {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string Text(const MetricsSnapshot& snapshot) {
  return prometheus::TextSerializer().Serialize(ToFamilies(snapshot));
}

MetricsSnapshot Example() {
  MetricsSnapshot snapshot;
  ManagerStats& stats = snapshot.manager;
  stats.lookups = 10;
  stats.lookup_blocks = 80;
  stats.hit_blocks = 36;
  TierStats& ram = stats.tiers[static_cast<size_t>(TierKind::kRam)];
  ram.on = true;
  ram.usage = {1000, 600, 1000};
  ram.hits = 30;
  ram.bytes_read = 12345678901;
  TierStats& gpu = stats.tiers[static_cast<size_t>(TierKind::kGpu)];
  gpu.on = true;
  gpu.hits = 6;
  SsdTierStats& ssd = snapshot.ssd.emplace();
  ssd.state = SsdState::kReadOnly;
  ssd.file_bytes_written = 1100;
  ssd.payload_bytes_written = 1000;
  ssd.read_latency.counts[1] = 2;
  ssd.read_latency.count = 2;
  SharedMemoryStats& shared = snapshot.shared_memory.emplace();
  shared.sessions = 3;
  shared.retired_bytes = 4096;
  shared.stored_blocks = 17;
  snapshot.shared_pools = {{MemoryDomain(), 8192, 4096}, {MemoryDomain::OfUid(1000), 16384, 512}};
  stats.ssd_waiting_blocks = 7;
  stats.ssd_limited_blocks = 3;
  return snapshot;
}

TEST(MetricsTest, CountsAreExact) {
  const std::string text = Text(Example());
  EXPECT_THAT(text, AllOf(HasSubstr("kvtier_lookups_total 10\n"),
                          HasSubstr("kvtier_lookup_blocks_total 80\n"),
                          HasSubstr("kvtier_hit_blocks_total 36\n"),
                          HasSubstr("kvtier_tier_capacity_bytes{tier=\"ram\"} 1000\n"),
                          HasSubstr("kvtier_tier_used_bytes{tier=\"ram\"} 600\n"),
                          HasSubstr("kvtier_tier_read_bytes_total{tier=\"ram\"} 12345678901\n"),
                          HasSubstr("kvtier_tier_capacity_bytes{tier=\"ssd\"} 0\n")));
}

TEST(MetricsTest, SharedMemoryIsThereWhenItIsOffered) {
  MetricsSnapshot snapshot = Example();
  EXPECT_THAT(Text(snapshot), AllOf(HasSubstr("kvtier_shared_sessions 3\n"),
                                    HasSubstr("kvtier_shared_retired_bytes 4096\n"),
                                    HasSubstr("kvtier_shared_stored_blocks_total 17\n")));
  EXPECT_THAT(Text(snapshot),
              AllOf(HasSubstr("kvtier_shared_pool_bytes{uid=\"none\"} 8192\n"),
                    HasSubstr("kvtier_shared_pool_bytes{uid=\"1000\"} 16384\n"),
                    HasSubstr("kvtier_shared_pool_used_bytes{uid=\"1000\"} 512\n")));
  snapshot.shared_pools.clear();
  EXPECT_THAT(Text(snapshot), Not(HasSubstr("kvtier_shared_pool_")));
  snapshot.shared_memory.reset();
  EXPECT_THAT(Text(snapshot), Not(HasSubstr("kvtier_shared_")));
}

TEST(MetricsTest, CurvesHaveAPointForEachPowerOfTwo) {
  MetricsSnapshot snapshot = Example();
  snapshot.curves.push_back({"all", TierCurves(HitRatioCurve(), snapshot.manager)});
  snapshot.curve_stats.memory_bytes = 77;
  const std::string text = Text(snapshot);
  const std::string ram = "kvtier_estimated_hit_ratio{tier=\"ram\",scale=\"";
  for (const char* scale : {"0.25", "0.5", "1", "2", "4", "8", "16"}) {
    EXPECT_THAT(text, HasSubstr(ram + scale + "\",model=\"all\"} 0\n"));
  }
  EXPECT_THAT(text, AllOf(Not(HasSubstr(ram + "1.4")), Not(HasSubstr("ratio{tier=\"ssd\"")),
                          HasSubstr("kvtier_hit_curve_bytes 77\n")));
}

TEST(MetricsTest, HitsAndMissesOfATierAreWhatItWasAskedFor) {
  const std::string text = Text(Example());
  EXPECT_THAT(text, AllOf(HasSubstr("kvtier_tier_hits_total{tier=\"gpu\"} 6\n"),
                          HasSubstr("kvtier_tier_misses_total{tier=\"gpu\"} 74\n"),
                          HasSubstr("kvtier_tier_hits_total{tier=\"ram\"} 30\n"),
                          HasSubstr("kvtier_tier_misses_total{tier=\"ram\"} 44\n"),
                          HasSubstr("kvtier_tier_misses_total{tier=\"ssd\"} 0\n")));
}

TEST(MetricsTest, RpcsHaveCumulativeBucketsAndErrorsByCode) {
  LatencyHistogram latency;
  latency.Record(std::chrono::microseconds(5));
  latency.Record(std::chrono::microseconds(12));
  latency.Record(std::chrono::hours(10));
  MetricsSnapshot snapshot;
  snapshot.rpcs = {{"Lookup", latency.snapshot(), {{"NOT_FOUND", 2}}}, {"Fetch", {}, {}}};
  const std::string text = Text(snapshot);
  EXPECT_THAT(text, AllOf(HasSubstr("kvtier_rpc_seconds_count{rpc=\"Lookup\"} 3\n"),
                          HasSubstr("kvtier_rpc_seconds_bucket{rpc=\"Lookup\",le=\"8e-06\"} 1\n"),
                          HasSubstr("kvtier_rpc_seconds_bucket{rpc=\"Lookup\",le=\"1.6e-05\"} 2\n"),
                          HasSubstr("kvtier_rpc_seconds_bucket{rpc=\"Lookup\",le=\"+Inf\"} 3\n"),
                          HasSubstr("kvtier_rpc_seconds_count{rpc=\"Fetch\"} 0\n")));
  EXPECT_THAT(text, HasSubstr("kvtier_rpc_errors_total{rpc=\"Lookup\",code=\"NOT_FOUND\"} 2\n"));
  EXPECT_THAT(text, Not(HasSubstr("kvtier_rpc_errors_total{rpc=\"Fetch\"")));
}

TEST(MetricsTest, SsdSaysItsStateAndWhatItWrote) {
  const std::string text = Text(Example());
  EXPECT_THAT(text, AllOf(HasSubstr("kvtier_ssd_state{state=\"serving\"} 0\n"),
                          HasSubstr("kvtier_ssd_state{state=\"read-only\"} 1\n"),
                          HasSubstr("kvtier_ssd_state{state=\"reopening\"} 0\n"),
                          HasSubstr("kvtier_ssd_file_written_bytes_total 1100\n"),
                          HasSubstr("kvtier_ssd_payload_written_bytes_total 1000\n"),
                          HasSubstr("kvtier_ssd_waiting_blocks 7\n"),
                          HasSubstr("kvtier_ssd_limited_blocks_total 3\n"),
                          HasSubstr("kvtier_ssd_skipped_blocks_total 0\n")));
  EXPECT_THAT(text, AllOf(HasSubstr("kvtier_ssd_read_seconds_count 2\n"),
                          HasSubstr("kvtier_ssd_read_seconds_bucket{le=\"8e-06\"} 0\n"),
                          HasSubstr("kvtier_ssd_read_seconds_bucket{le=\"1.6e-05\"} 2\n")));
}

TEST(MetricsTest, WithoutAnSsdThereIsNoneToWatch) {
  MetricsSnapshot snapshot = Example();
  snapshot.ssd.reset();
  EXPECT_THAT(Text(snapshot), Not(HasSubstr("kvtier_ssd_")));
}

TEST(MetricsTest, NamesAreUniqueAndSayWhatToExpect) {
  std::set<std::string> names;
  for (const prometheus::MetricFamily& family : ToFamilies(Example())) {
    EXPECT_TRUE(names.insert(family.name).second) << family.name;
    EXPECT_EQ(family.name.rfind("kvtier_", 0), 0u) << family.name;
    EXPECT_EQ(family.name.ends_with("_total"), family.type == prometheus::MetricType::Counter)
        << family.name;
    EXPECT_FALSE(family.help.empty());
  }
}

TEST(MetricsTest, EveryFamilyIsInTheOperatorsManual) {
  std::ostringstream manual;
  manual << std::ifstream(KVTIER_SOURCE_DIR "/docs/OPERATIONS.md").rdbuf();
  ASSERT_FALSE(manual.str().empty());
  for (const prometheus::MetricFamily& family : ToFamilies(Example())) {
    EXPECT_THAT(manual.str(), HasSubstr("`" + family.name + "`"));
  }
}

TEST(MetricsTest, PortInUseIsAnErrorThatNamesIt) {
  const auto first = MetricsHttp::Start("127.0.0.1:0", [] { return Example(); });
  ASSERT_TRUE(first.ok()) << first.status();
  const std::string address = absl::StrCat("127.0.0.1:", (*first)->port());
  const auto second = MetricsHttp::Start(address, [] { return Example(); });
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(address));
}

}  // namespace
}  // namespace kvtier
