// What of the replay needs no daemon; the whole is tested end to end.
#include "cli/replay.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace kvtier::cli {
namespace {

using ::testing::HasSubstr;

TEST(Summarize, TakesTheSmallestValueThatIsEnough) {
  std::vector<float> values;
  for (int i = 100; i >= 1; --i) values.push_back(static_cast<float>(i));
  const LatencySummary summary = Summarize(&values);
  EXPECT_EQ(summary.count, 100u);
  EXPECT_EQ(summary.p50, 50);
  EXPECT_EQ(summary.p90, 90);
  EXPECT_EQ(summary.p99, 99);
  EXPECT_EQ(summary.max, 100);
  std::vector<float> one = {7};
  EXPECT_EQ(Summarize(&one).p50, 7);
  std::vector<float> none;
  EXPECT_EQ(Summarize(&none).count, 0u);
}

TEST(BlockTokens, DependOnTheIdAlone) {
  std::vector<uint32_t> a(512);
  std::vector<uint32_t> b(512);
  BlockTokens(3, a);
  BlockTokens(3, b);
  EXPECT_EQ(a, b);
  std::set<std::vector<uint32_t>> seen;
  for (uint64_t id = 0; id < 1000; ++id) {
    BlockTokens(id, a);
    seen.insert(a);
  }
  EXPECT_EQ(seen.size(), 1000u);
  std::vector<uint32_t> first(1);  // one-token blocks too
  std::set<uint32_t> tokens;
  for (uint64_t id = 0; id < 1000; ++id) {
    BlockTokens(id, first);
    tokens.insert(first[0]);
  }
  EXPECT_EQ(tokens.size(), 1000u);
}

ReplayReport GoodReport() {
  ReplayReport report;
  report.requests = 10;
  report.blocks = 200;
  report.hit_blocks = 50;
  report.verified_blocks = 50;
  report.hit_blocks_by_tier = {0, 0, 40, 10};
  return report;
}

TEST(CheckReplay, FailsOnAWrongByteAndOnABlockThatIsGone) {
  EXPECT_TRUE(CheckReplay(GoodReport()).ok());
  ReplayReport wrong = GoodReport();
  wrong.verified_blocks = 49;
  wrong.wrong_blocks = 1;
  EXPECT_THAT(std::string(CheckReplay(wrong).message()), HasSubstr("1 had wrong bytes"));
  ReplayReport gone = GoodReport();
  gone.verified_blocks = 48;
  gone.missed_blocks = 2;
  EXPECT_THAT(std::string(CheckReplay(gone).message()), HasSubstr("2 were gone"));
}

TEST(ReplayJson, NamesTheConvention) {
  ReplayOptions options;
  options.block_bytes = 1024;
  const Json all = ReplayJson(options, GoodReport(), std::nullopt);
  EXPECT_EQ(all.at("hit_ratio_all"), 0.25);
  EXPECT_EQ(all.at("hit_ratio_full"), Json(nullptr));
  EXPECT_EQ(all.at("hit_ratio_ram"), 0.2);
  EXPECT_EQ(all.at("hit_ratio_ssd"), 0.05);
  EXPECT_EQ(all.at("hit_ratio_gpu"), 0.0);
  EXPECT_EQ(all.at("ssd_writes_per_block"), 0.0);
  options.full_only = true;
  const Json full = ReplayJson(options, GoodReport(), std::nullopt);
  EXPECT_EQ(full.at("hit_ratio_full"), 0.25);
  EXPECT_EQ(full.at("hit_ratio_all"), Json(nullptr));
}

TEST(ReplayJson, SsdWritesAreUnknownRatherThanWrong) {
  ReplayOptions options;
  options.block_bytes = 1024;
  ReplayReport report = GoodReport();
  report.ssd_tier = true;
  EXPECT_EQ(ReplayJson(options, report, std::nullopt).at("ssd_writes_per_block"), Json(nullptr));
  EXPECT_EQ(ReplayJson(options, report, 100).at("ssd_writes_per_block"), 0.5);
}

TEST(ReplayText, LastLineIsTheHitRatio) {
  ReplayOptions options;
  options.block_bytes = 1024;
  const std::string text = ReplayText(options, GoodReport(), std::nullopt);
  EXPECT_THAT(text.substr(text.rfind('\n', text.size() - 2) + 1),
              ::testing::MatchesRegex("hit ratio, all blocks +0.2500\n"));
  EXPECT_THAT(text, HasSubstr("1024 bytes here"));
}

TEST(Replay, RefusesOptionsOutOfRange) {
  const auto error = [](const ReplayOptions& options) {
    const auto source = MakeGenerator({});
    const absl::Status status = Replay(options, *source, [](const std::string&) {}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  ReplayOptions options;
  options.server = "unix:/no/such/socket";
  options.block_bytes = 31;
  EXPECT_THAT(error(options), HasSubstr("block-bytes is 31"));
  options.block_bytes = (64 << 20) + 1;
  EXPECT_THAT(error(options), HasSubstr("67108865"));
  options.block_bytes = 64;
  options.clients = 0;
  EXPECT_THAT(error(options), HasSubstr("clients is 0"));
  options.clients = 1;
  options.block_tokens = 5000;
  EXPECT_THAT(error(options), HasSubstr("block_tokens is 5000"));
}

}  // namespace
}  // namespace kvtier::cli
