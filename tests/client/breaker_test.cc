#include "client/breaker.h"

#include <gtest/gtest.h>

#include <chrono>

namespace kvtier::client_internal {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class CircuitBreakerTest : public testing::Test {
 protected:
  void Fail(int times) {
    for (int i = 0; i < times; ++i) {
      ASSERT_TRUE(breaker_.Admit().ok());
      breaker_.Record(true);
    }
  }
  bool Admitted() { return breaker_.Admit().ok(); }

  ManualClock clock_;
  CircuitBreaker breaker_{BreakerOptions(), &clock_};
};

TEST_F(CircuitBreakerTest, OpensAfterThreeFailuresInARow) {
  Fail(2);
  ASSERT_TRUE(Admitted());
  breaker_.Record(false);  // a success in between starts the count again
  Fail(2);
  EXPECT_EQ(breaker_.opened(), 0u);
  Fail(1);
  EXPECT_FALSE(Admitted());
  EXPECT_EQ(breaker_.opened(), 1u);
  EXPECT_EQ(breaker_.refused(), 1u);
}

TEST_F(CircuitBreakerTest, RefusalSaysForHowLong) {
  Fail(3);
  clock_.Advance(milliseconds(40));
  const absl::Status refused = breaker_.Admit();
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(refused.message().find("60 ms"), refused.message().npos) << refused;
}

TEST_F(CircuitBreakerTest, LetsOneProbeThroughWhenTheBackoffIsOver) {
  Fail(3);
  clock_.Advance(milliseconds(99));
  EXPECT_FALSE(Admitted());
  clock_.Advance(milliseconds(1));
  EXPECT_TRUE(Admitted());
  EXPECT_FALSE(Admitted()) << "a second call while the probe is under way";
  breaker_.Record(false);
  EXPECT_TRUE(Admitted());
  EXPECT_TRUE(Admitted());
}

TEST_F(CircuitBreakerTest, BackoffDoublesUpToItsLimitAndStartsAgainAfterSuccess) {
  Fail(3);
  for (const milliseconds backoff :
       {milliseconds(100), milliseconds(200), milliseconds(400), milliseconds(800),
        milliseconds(1600), milliseconds(3200), milliseconds(5000), milliseconds(5000)}) {
    clock_.Advance(backoff - milliseconds(1));
    EXPECT_FALSE(Admitted()) << backoff.count();
    clock_.Advance(milliseconds(1));
    ASSERT_TRUE(Admitted()) << backoff.count();
    breaker_.Record(true);
  }
  clock_.Advance(seconds(5));
  ASSERT_TRUE(Admitted());
  breaker_.Record(false);
  Fail(3);
  clock_.Advance(milliseconds(100));
  EXPECT_TRUE(Admitted());
}

TEST_F(CircuitBreakerTest, CallsThatWereUnderWayDoNotOpenItTwice) {
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(Admitted());
  for (int i = 0; i < 5; ++i) breaker_.Record(true);
  EXPECT_EQ(breaker_.opened(), 1u);
  clock_.Advance(milliseconds(100));
  EXPECT_TRUE(Admitted());
}

TEST_F(CircuitBreakerTest, ZeroFailuresMeansNoBreaker) {
  BreakerOptions options;
  options.failures_to_open = 0;
  CircuitBreaker none(options, &clock_);
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(none.Admit().ok());
    none.Record(true);
  }
  EXPECT_EQ(none.opened(), 0u);
}

}  // namespace
}  // namespace kvtier::client_internal
