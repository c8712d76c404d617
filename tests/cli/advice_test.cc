#include "cli/advice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_join.h"
#include "common/status.h"

namespace kvtier::cli {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr uint64_t kMiB = uint64_t{1} << 20;

// RAM of 100 MiB: each doubling from 25 MiB finds 10 points more, up to 60 %, then no more. A block
// of 1 MiB is 16 tokens; RAM gives 1 block in 1 ms. 10 blocks in each of 2,000 requests.
AdviceInput RamOnly() {
  AdviceInput input;
  input.ram.on = true;
  input.ram.capacity_bytes = 100 * kMiB;
  input.ram.bytes_per_second = 1000 * kMiB;
  input.ram.curve = {{25 * kMiB, 0.2},  {50 * kMiB, 0.3},  {100 * kMiB, 0.4},   {200 * kMiB, 0.5},
                     {400 * kMiB, 0.6}, {800 * kMiB, 0.6}, {1600 * kMiB, 0.602}};
  input.requests = 2000;
  input.blocks = 20000;
  input.hit_blocks = 8000;
  input.sampled_references = 5000;
  input.requests_per_hour = 3000;
  input.block_tokens = 16;
  input.block_bytes = kMiB;
  input.prefill_tokens_per_second = 1600;  // a block in 10 ms
  return input;
}

// The same with 400 MiB of SSD, which gives a block in 4 ms and 8 ms once; the two together find as
// RAM of their bytes would.
AdviceInput WithSsd() {
  AdviceInput input = RamOnly();
  input.ssd.on = true;
  input.ssd.capacity_bytes = 400 * kMiB;
  input.ssd.bytes_per_second = 250 * kMiB;
  input.ssd.first_byte_seconds = 8e-3;
  input.ssd.curve = {{100 * kMiB, 0.5}, {200 * kMiB, 0.55},  {400 * kMiB, 0.6},
                     {800 * kMiB, 0.7}, {1600 * kMiB, 0.75}, {3200 * kMiB, 0.76}};
  input.hit_blocks = 12000;
  return input;
}

const AdviceRow& Row(const Advice& advice, const std::string& what) {
  for (const AdviceRow& row : advice.rows) {
    if (row.what == what) return row;
  }
  ADD_FAILURE() << "no row " << what;
  return advice.rows.front();
}

std::string Sentences(const Advice& advice) { return absl::StrJoin(advice.sentences, "\n"); }
std::string Warnings(const Advice& advice) { return absl::StrJoin(advice.warnings, "\n"); }

TEST(AdviceTest, BetweenPointsTheCurveIsLinearInTheLogarithm) {
  const auto curve = RamOnly().ram.curve;
  EXPECT_DOUBLE_EQ(HitRatioAt(curve, 100 * kMiB), 0.4);
  EXPECT_NEAR(HitRatioAt(curve, 141 * kMiB), 0.45, 1e-3);
  EXPECT_DOUBLE_EQ(HitRatioAt(curve, 1 * kMiB), 0.2);
  EXPECT_DOUBLE_EQ(HitRatioAt(curve, 99999 * kMiB), 0.602);
  EXPECT_EQ(HitRatioAt({}, kMiB), 0);
}

TEST(AdviceTest, RamAlone) {
  const Advice advice = Advise(RamOnly());
  EXPECT_DOUBLE_EQ(advice.measured_hit_ratio, 0.4);
  EXPECT_DOUBLE_EQ(advice.estimated_hit_ratio, 0.4);
  EXPECT_THAT(advice.warnings, IsEmpty());
  ASSERT_EQ(advice.rows.size(), 4u);
  EXPECT_DOUBLE_EQ(Row(advice, "RAM /2").hit_ratio, 0.3);
  EXPECT_DOUBLE_EQ(Row(advice, "RAM x2").hit_ratio, 0.5);
  EXPECT_DOUBLE_EQ(Row(advice, "RAM x4").hit_ratio, 0.6);
  // 4 blocks a request: 40 ms to compute, 4 ms to load.
  EXPECT_NEAR(*Row(advice, "now").saved_seconds, 36, 1e-9);
  EXPECT_NEAR(*Row(advice, "RAM x2").saved_seconds, 45, 1e-9);
  EXPECT_THAT(Sentences(advice),
              AllOf(HasSubstr("RAM x2 (200MiB) finds 10.0 points more and saves 9.0 s more per "
                              "1,000 requests; x4 20.0 points more. kvtier set-capacity --tier ram "
                              "--bytes 209715200"),
                    HasSubstr("RAM is flat from 400MiB on"),
                    HasSubstr("Fetching from RAM takes 62.5 us a token, recomputing 625.0 us at "
                              "1,600 tokens/s: fetch. Recomputing wins above 16,000 tokens/s."),
                    Not(HasSubstr("SSD"))));
}

TEST(AdviceTest, WhereTheCurveIsFlatThereIsNothingToBuy) {
  AdviceInput input = RamOnly();
  input.ram.capacity_bytes = 800 * kMiB;
  const Advice flat = Advise(input);
  EXPECT_THAT(Sentences(flat),
              AllOf(HasSubstr("More RAM buys less than half a point, even at x4: leave it."),
                    HasSubstr("RAM could shrink to 400MiB and lose less than half a point. kvtier "
                              "set-capacity --tier ram --bytes 419430400")));
  EXPECT_EQ(flat.flat.front().enough_bytes, 400 * kMiB);
  // Where it rises there is nothing to spare.
  const Advice rising = Advise(RamOnly());
  EXPECT_THAT(Sentences(rising), Not(HasSubstr("could shrink")));
  EXPECT_EQ(rising.flat.front().spare_down_to_bytes, 100 * kMiB);
}

TEST(AdviceTest, AnSsdAddsItsRowsAndItsCost) {
  const Advice advice = Advise(WithSsd());
  ASSERT_EQ(advice.rows.size(), 7u);
  EXPECT_DOUBLE_EQ(advice.estimated_hit_ratio, 0.6);
  EXPECT_DOUBLE_EQ(Row(advice, "SSD /2").hit_ratio, 0.55);
  EXPECT_DOUBLE_EQ(Row(advice, "SSD x2").hit_ratio, 0.7);
  EXPECT_DOUBLE_EQ(Row(advice, "SSD x2").ram_hit_ratio, 0.4);
  // RAM x4 in front of the same SSD: 800 MiB in all, as 700 MiB of SSD behind the RAM of now.
  EXPECT_NEAR(Row(advice, "RAM x4").hit_ratio, 0.68, 2e-3);
  EXPECT_DOUBLE_EQ(Row(advice, "RAM x4").ram_hit_ratio, 0.6);
  // 4 blocks from RAM save 36 ms, 2 from SSD cost 16 ms instead of 20.
  EXPECT_NEAR(*Row(advice, "now").saved_seconds, 36 + 4, 1e-9);
  ASSERT_EQ(advice.costs.size(), 2u);
  AdviceInput tiny = WithSsd();
  tiny.block_bytes = 1024;
  EXPECT_THAT(Sentences(Advise(tiny)), HasSubstr("Fetching from RAM takes 61.0 ns a token"));
  EXPECT_DOUBLE_EQ(advice.costs[1].seconds_per_token, 16e-3 / 32);
  EXPECT_FALSE(*advice.costs[1].slower_than_recomputing);
  EXPECT_THAT(Sentences(advice), HasSubstr("Fetching from SSD takes 500.0 us a token, recomputing "
                                           "625.0 us at 1,600 tokens/s: fetch. Recomputing wins "
                                           "above 2,000 tokens/s."));
}

// RAM's own curve rises, but what it would take over the SSD finds already.
TEST(AdviceTest, RamThatOnlyTakesOverFromTheSsdIsNotAdvised) {
  AdviceInput input = WithSsd();
  for (AdviceInput::Point& point : input.ssd.curve) point.hit_ratio = 0.602;
  EXPECT_THAT(Sentences(Advise(input)),
              AllOf(HasSubstr("More RAM buys less than half a point, even at x4: leave it."),
                    Not(HasSubstr("RAM is flat from"))));
  EXPECT_THAT(Sentences(Advise(WithSsd())), HasSubstr("RAM is flat from 400MiB on"));
}

TEST(AdviceTest, ATierSlowerThanRecomputingSavesNothing) {
  AdviceInput input = WithSsd();
  input.prefill_tokens_per_second = 4000;  // a block in 4 ms
  const Advice advice = Advise(input);
  EXPECT_TRUE(*advice.costs[1].slower_than_recomputing);
  EXPECT_FALSE(*advice.costs[0].slower_than_recomputing);
  EXPECT_NEAR(*Row(advice, "now").saved_seconds, 16 - 4, 1e-9);
  EXPECT_THAT(
      Sentences(advice),
      HasSubstr("Fetching from SSD takes 500.0 us a token, recomputing 250.0 us at 4,000 "
                "tokens/s: recompute. Above 2,000 tokens/s fetching from SSD is the slower"));
}

TEST(AdviceTest, SaysWhatItDoesNotKnow) {
  EXPECT_THAT(Warnings(Advise(RamOnly())), IsEmpty());
  AdviceInput few = RamOnly();
  few.sampled_references = 999;
  EXPECT_THAT(Warnings(Advise(few)), HasSubstr("only 999 sampled references, 1,000 are needed"));
  AdviceInput off = RamOnly();
  off.hit_blocks = 6900;
  EXPECT_THAT(Warnings(Advise(off)), HasSubstr("differ by more than 5 points"));
  AdviceInput unmeasured = WithSsd();
  unmeasured.ssd.bytes_per_second = 0;
  EXPECT_THAT(Warnings(Advise(unmeasured)), HasSubstr("not fetched from yet"));
  EXPECT_EQ(Row(Advise(unmeasured), "now").saved_seconds, std::nullopt);
  AdviceInput no_rate = RamOnly();
  no_rate.prefill_tokens_per_second = 0;
  const Advice advice = Advise(no_rate);
  EXPECT_THAT(Warnings(advice), HasSubstr("--prefill-rate"));
  EXPECT_EQ(Row(advice, "now").saved_seconds, std::nullopt);
  EXPECT_THAT(
      Sentences(advice),
      HasSubstr("Fetching from RAM takes 62.5 us a token: worth it for engines that compute "
                "less than 16,000 tokens/s."));
}

TEST(AdviceTest, TextIsShortAndTheDocumentHasAll) {
  const Advice advice = Advise(WithSsd());
  const std::string text = AdviceText(advice);
  EXPECT_THAT(text, AllOf(HasSubstr("Of the blocks looked up 60.0 % were found; estimated 60.0 %"),
                          HasSubstr("SSD x2  100MiB    800MiB  70.0 %   +10.0")));
  EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 20);
  const Json json = AdviceJson(advice);
  EXPECT_EQ(json["sizes"].size(), 7u);
  EXPECT_EQ(json["sizes"][5]["what"], "SSD x2");
  EXPECT_NEAR(json["sizes"][5]["points"], 10, 1e-9);
  EXPECT_NEAR(json["sizes"][0]["saved_seconds_per_hour"], 40 * 3, 1e-6);
  EXPECT_EQ(json["ram"]["curve"].size(), 7u);
  EXPECT_EQ(json["costs"][1]["slower_than_recomputing"], false);
  EXPECT_EQ(AdviceText(Advise(AdviceInput())), "no lookups yet: nothing to advise on\n");
}

}  // namespace
}  // namespace kvtier::cli
