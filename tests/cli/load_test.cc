// The load generator against a cache that is made up, in a time that is made up.
#include "cli/load.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace kvtier::cli {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

class ManualPacer final : public Pacer {
 public:
  TimePoint Now() override { return clock_.Now(); }
  void WaitUntil(TimePoint due) override {
    if (due > clock_.Now()) clock_.Advance(due - clock_.Now());
  }
  void Advance(Duration by) { clock_.Advance(by); }

 private:
  ManualClock clock_;
};

// Answers in 1 ms, but for one request.
class StallingTarget final : public LoadTarget {
 public:
  StallingTarget(ManualPacer* pacer, uint64_t stalled, Duration stall)
      : pacer_(pacer), stalled_(stalled), stall_(stall) {}
  void Prepare(LoadOp op, const TraceRequest&) override { ++prepared_[static_cast<size_t>(op)]; }
  absl::StatusOr<LoadOutcome> Run() override {
    pacer_->Advance(run_++ == stalled_ ? stall_ : milliseconds(1));
    if (run_ == failing_ || run_ % good_every_ != 0) return absl::UnavailableError("gone");
    return LoadOutcome{.asked_blocks = 2, .blocks = 1, .bytes = 1000, .wrong_blocks = wrong_};
  }

  std::array<uint64_t, kLoadOps> prepared_ = {};
  uint64_t failing_ = 0;     // from 1
  uint64_t good_every_ = 1;  // the others fail
  uint64_t wrong_ = 0;

 private:
  ManualPacer* const pacer_;
  const uint64_t stalled_;
  const Duration stall_;
  uint64_t run_ = 0;
};

constexpr uint64_t kStalled = 100;
constexpr Duration kStall = seconds(1);

struct Result {
  LoadReport report;
  std::array<uint64_t, kLoadOps> prepared;
};

Result RunStalling(const LoadOptions& options, uint64_t failing = 0, uint64_t wrong = 0,
                   uint64_t good_every = 1) {
  ManualPacer pacer;
  auto target = std::make_unique<StallingTarget>(&pacer, kStalled, kStall);
  target->failing_ = failing;
  target->wrong_ = wrong;
  target->good_every_ = good_every;
  StallingTarget* const seen = target.get();
  std::vector<std::unique_ptr<LoadTarget>> targets;
  targets.push_back(std::move(target));
  GeneratorOptions generator;
  generator.requests = UINT64_MAX;
  const std::unique_ptr<TraceSource> trace = MakeGenerator(generator);
  absl::StatusOr<LoadReport> report =
      RunLoad(options, *trace, targets, pacer, [](const std::string&) {});
  EXPECT_TRUE(report.ok()) << report.status();
  return {std::move(report).value(), seen->prepared_};
}

const LoadRow& Lookups(const LoadReport& report) { return report.rows[0]; }

// How many of the latencies are at least this long.
uint64_t AtLeast(const HdrHistogram& latency, Duration limit) {
  uint64_t below = 0;
  while (below < latency.count() &&
         latency.Quantile((static_cast<double>(below) + 0.5) /
                          static_cast<double>(latency.count())) < limit) {
    ++below;
  }
  return latency.count() - below;
}

// Requests are due every 10 ms and take 1 ms, so the 100 that were due during the stall of 1 s wait
// for what is left of it, and the backlog shrinks by 9 ms with each answer.
TEST(LoadTest, AStallShowsInAllRequestsThatWereDueMeanwhile) {
  const LoadReport report = RunStalling({.rate = 100, .requests = 1000, .mix = {1, 0, 0}}).report;
  std::vector<double> want;  // ms
  double free_at = 0;
  for (int i = 0; i < 1000; ++i) {
    const double due = i * 10.0;
    free_at = std::max(free_at, due) + (i == int{kStalled} ? 1000 : 1);
    want.push_back(free_at - due);
  }
  const auto waited = std::count_if(want.begin(), want.end(), [](double ms) { return ms > 1.5; });
  EXPECT_EQ(waited, 111);
  const HdrHistogram& latency = Lookups(report).latency;
  EXPECT_EQ(latency.count(), 1000u);
  EXPECT_EQ(AtLeast(latency, milliseconds(2)), static_cast<uint64_t>(waited));
  EXPECT_EQ(AtLeast(latency, milliseconds(500)),
            static_cast<uint64_t>(
                std::count_if(want.begin(), want.end(), [](double ms) { return ms >= 500; })));
  EXPECT_EQ(latency.max(), kStall);
  std::sort(want.begin(), want.end());
  for (const double share : {0.5, 0.9, 0.95, 0.99}) {
    const double exact = want[static_cast<size_t>(std::ceil(share * 1000)) - 1];
    EXPECT_NEAR(static_cast<double>(latency.Quantile(share).count()) * 1e-6, exact, exact * 0.001)
        << share;
  }
  EXPECT_EQ(AtLeast(report.sent_late, milliseconds(1)), static_cast<uint64_t>(waited) - 1);
  EXPECT_NEAR(report.seconds, 9.991, 0.001);
}

// The same cache and the same stall: a closed loop asks nothing meanwhile, so it is one slow
// request.
TEST(LoadTest, AClosedLoopShowsAStallOnce) {
  const LoadReport report = RunStalling({.requests = 1000, .mix = {1, 0, 0}}).report;
  const HdrHistogram& latency = Lookups(report).latency;
  EXPECT_EQ(latency.count(), 1000u);
  EXPECT_EQ(AtLeast(latency, milliseconds(2)), 1u);
  EXPECT_EQ(latency.max(), kStall);
  EXPECT_EQ(report.sent_late.count(), 0u);
  EXPECT_NEAR(report.seconds, 1.999, 0.001);
}

// All that is due within the duration is sent, late or not; nothing else.
TEST(LoadTest, DurationBoundsWhatIsDue) {
  EXPECT_EQ(
      Lookups(RunStalling({.rate = 100, .duration = seconds(2), .mix = {1, 0, 0}}).report).count,
      200u);
  EXPECT_EQ(
      Lookups(RunStalling({.rate = 100, .duration = milliseconds(1500), .mix = {1, 0, 0}}).report)
          .count,
      150u);
  // Closed: 100 of 1 ms, then the stall goes over the end.
  EXPECT_EQ(Lookups(RunStalling({.duration = milliseconds(1050), .mix = {1, 0, 0}}).report).count,
            101u);
}

TEST(LoadTest, TheMixIsKeptAndCanBeRepeated) {
  const LoadOptions options{.requests = 10'000, .mix = {60, 30, 10}, .seed = 7};
  const Result result = RunStalling(options);
  const double want[] = {6000, 3000, 1000};
  for (size_t i = 0; i < kLoadOps; ++i) {
    EXPECT_NEAR(static_cast<double>(result.prepared[i]), want[i], 200) << i;
    EXPECT_EQ(result.report.rows[i].count, result.prepared[i]);
    EXPECT_EQ(result.report.rows[i].sum.bytes, result.prepared[i] * 1000);
  }
  EXPECT_EQ(RunStalling(options).prepared, result.prepared);
  LoadOptions other = options;
  other.seed = 8;
  EXPECT_NE(RunStalling(other).prepared, result.prepared);
}

TEST(LoadTest, ErrorsAndWrongBytesFailTheRun) {
  const LoadOptions options{.requests = 50, .mix = {0, 1, 0}};
  EXPECT_TRUE(CheckLoad(RunStalling(options).report).ok());
  const LoadReport failed = RunStalling(options, 3).report;
  EXPECT_EQ(failed.rows[1].errors, 1u);
  EXPECT_EQ(failed.rows[1].count, 50u);
  EXPECT_THAT(std::string(CheckLoad(failed).message()),
              AllOf(HasSubstr("1 of 50 operations failed"), HasSubstr("fetch: UNAVAILABLE: gone")));
  const LoadReport wrong = RunStalling(options, 0, 1).report;
  EXPECT_EQ(CheckLoad(wrong).code(), absl::StatusCode::kDataLoss);
  const Json document = LoadJson(options, wrong, {{"clients", 1}});
  EXPECT_EQ(document["operations"][1]["wrong_blocks"], 50);
  EXPECT_EQ(document["operations"][3]["operation"], "total");
  EXPECT_EQ(document["operations"][3]["latency_us"]["p50"], 1000.0);
  EXPECT_EQ(document["loop"], "closed");
}

// A daemon that is gone fails operations at once: they are no speed, and no reason to go on. An
// operation takes 1 ms, one takes 1 s.
TEST(LoadTest, EndsWhenNothingSucceedsForTenSeconds) {
  const LoadOptions options{.requests = 30'000};
  const LoadReport gone = RunStalling(options, 0, 0, UINT64_MAX).report;
  EXPECT_TRUE(gone.gave_up);
  EXPECT_NEAR(gone.seconds, 10, 0.01);
  EXPECT_EQ(Lookups(gone).latency.count(), 0u);
  EXPECT_THAT(std::string(CheckLoad(gone).message()),
              HasSubstr("operations failed, all of the last 10 s, the first: "));
  EXPECT_EQ(LoadJson(options, gone, Json::object())["operations"][3]["per_second"], 0.0);

  const LoadReport ill = RunStalling(options, 0, 0, 9'000).report;  // every 9 s one that succeeds
  EXPECT_FALSE(ill.gave_up);
  uint64_t count = 0;
  uint64_t good = 0;
  for (const LoadRow& row : ill.rows) count += row.count;
  for (const LoadRow& row : ill.rows) good += row.latency.count();
  EXPECT_EQ(count, 30'000u);
  EXPECT_EQ(good, 3u);
}

TEST(LoadTest, WhatIsDueInAMillenniumIsNotSentAtOnce) {
  const LoadReport report = RunStalling({.rate = 1e-12, .requests = 2}).report;
  EXPECT_GT(report.seconds, 29.0 * 365 * 24 * 3600);
}

TEST(LoadTest, MixesThatAreNone) {
  EXPECT_EQ(*ParseLoadMix("fetch=1.5,lookup=2"), (LoadMix{2, 1.5, 0}));
  const std::pair<const char*, const char*> cases[] = {
      {"", "mix names ''"},
      {"lookups=1", "mix names 'lookups'"},
      {"lookup", "mix has 'lookup'"},
      {"lookup=-1", "mix has 'lookup=-1'"},
      {"lookup=0,fetch=0", "mix is all 0"},
      {"lookup=1,fetch=1,lookup=2", "mix names 'lookup' twice"},
  };
  for (const auto& [text, error] : cases) {
    EXPECT_THAT(std::string(ParseLoadMix(text).status().message()), HasSubstr(error)) << text;
  }
}

}  // namespace
}  // namespace kvtier::cli
