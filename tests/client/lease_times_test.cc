#include "client/lease_times.h"

#include <gtest/gtest.h>

#include <chrono>

namespace kvtier::client_internal {
namespace {

using std::chrono::seconds;

class LeaseTimesTest : public testing::Test {
 protected:
  // Seconds from now; nothing when the end is not known.
  std::optional<int64_t> Left(uint64_t id) const {
    const std::optional<TimePoint> end = times_.End(id);
    if (!end.has_value()) return std::nullopt;
    return std::chrono::duration_cast<seconds>(*end - clock_.Now()).count();
  }

  ManualClock clock_;
  LeaseTimes times_{&clock_};
};

TEST_F(LeaseTimesTest, KnowsWhatWasOpenedUntilItIsClosed) {
  EXPECT_EQ(Left(7), std::nullopt);
  times_.Open(7, clock_.Now() + seconds(10));
  EXPECT_EQ(Left(7), 10);
  clock_.Advance(seconds(12));
  EXPECT_EQ(Left(7), -2);
  times_.Close(7);
  EXPECT_EQ(Left(7), std::nullopt);
}

TEST_F(LeaseTimesTest, RenewalCountsFromBeforeItWasSent) {
  times_.Open(7, clock_.Now() + seconds(10));
  const LeaseTimes::Renewal renewal = times_.BeginRenew(7, seconds(30));
  EXPECT_EQ(Left(7), 10) << "not done yet";
  clock_.Advance(seconds(4));
  times_.EndRenew(renewal, true);
  EXPECT_EQ(Left(7), 26);
}

TEST_F(LeaseTimesTest, RenewalThatShortensCountsAtOnceAndWhateverItsAnswer) {
  times_.Open(7, clock_.Now() + seconds(60));
  const LeaseTimes::Renewal shorter = times_.BeginRenew(7, seconds(5));
  EXPECT_EQ(Left(7), 5);
  times_.EndRenew(shorter, false);
  EXPECT_EQ(Left(7), 5) << "it may have been done all the same";
  times_.EndRenew(times_.BeginRenew(7, seconds(40)), true);
  EXPECT_EQ(Left(7), 40);
  times_.EndRenew(times_.BeginRenew(7, seconds(90)), false);
  EXPECT_EQ(Left(7), 40);
}

// Nobody knows which of them the daemon saw last.
TEST_F(LeaseTimesTest, OfRenewalsThatOverlapTheShortestCounts) {
  times_.Open(7, clock_.Now() + seconds(10));
  const LeaseTimes::Renewal first = times_.BeginRenew(7, seconds(20));
  const LeaseTimes::Renewal second = times_.BeginRenew(7, seconds(50));
  times_.EndRenew(second, true);
  EXPECT_EQ(Left(7), 10);
  times_.EndRenew(first, true);
  EXPECT_EQ(Left(7), 20);
}

TEST_F(LeaseTimesTest, RenewalTellsTheEndOfALeaseThatWasPassedOn) {
  times_.EndRenew(times_.BeginRenew(9, seconds(20)), false);
  EXPECT_EQ(Left(9), std::nullopt);
  times_.EndRenew(times_.BeginRenew(9, seconds(20)), true);
  EXPECT_EQ(Left(9), 20);
}

TEST_F(LeaseTimesTest, ReleaseBeatsARenewalUnderWay) {
  times_.Open(7, clock_.Now() + seconds(10));
  const LeaseTimes::Renewal late = times_.BeginRenew(7, seconds(50));
  times_.Close(7);
  times_.EndRenew(late, true);
  EXPECT_EQ(Left(7), std::nullopt);
}

TEST_F(LeaseTimesTest, LeasesThatAreOverAreForgottenInTime) {
  times_.Open(1, clock_.Now() + seconds(1'000));
  for (uint64_t id = 2; id < 70; ++id) times_.Open(id, clock_.Now() + seconds(1));
  clock_.Advance(seconds(2));
  for (uint64_t id = 100; id < 200; ++id) times_.Open(id, clock_.Now() + seconds(10));
  EXPECT_EQ(Left(3), std::nullopt);
  EXPECT_EQ(Left(1), 998);
  EXPECT_EQ(Left(100), 10);
}

}  // namespace
}  // namespace kvtier::client_internal
