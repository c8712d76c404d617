#include "service/call_registry.h"

#include <gtest/gtest.h>

namespace kvtier {
namespace {

using std::chrono::seconds;

class FakeStream : public CallRegistry::Stream {
 public:
  void Expire() override { ++expired; }
  int expired = 0;
};

class CallRegistryTest : public ::testing::Test {
 protected:
  TimePoint In(Duration delay) const { return clock_.Now() + delay; }
  ManualClock clock_;
  CallRegistry registry_{2, &clock_};
};

TEST_F(CallRegistryTest, SweepExpiresWhatIsOverdueOnly) {
  auto soon = std::make_shared<FakeStream>();
  auto late = std::make_shared<FakeStream>();
  ASSERT_TRUE(registry_.Open(soon, "a", In(seconds(1))).ok());
  ASSERT_TRUE(registry_.Open(late, "a", In(seconds(2))).ok());
  registry_.Sweep();
  EXPECT_EQ(soon->expired, 0);
  clock_.Advance(seconds(1));
  registry_.Sweep();
  EXPECT_EQ(soon->expired, 1);
  EXPECT_EQ(late->expired, 0);
  registry_.Close(soon.get());
  clock_.Advance(seconds(1));
  registry_.Sweep();
  EXPECT_EQ(soon->expired, 1);
  EXPECT_EQ(late->expired, 1);
}

TEST_F(CallRegistryTest, LimitsStreamsPerClient) {
  auto first = std::make_shared<FakeStream>();
  auto second = std::make_shared<FakeStream>();
  auto third = std::make_shared<FakeStream>();
  auto other = std::make_shared<FakeStream>();
  ASSERT_TRUE(registry_.Open(first, "a", In(seconds(1))).ok());
  ASSERT_TRUE(registry_.Open(second, "a", In(seconds(1))).ok());
  const absl::Status refused = registry_.Open(third, "a", In(seconds(1)));
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(std::string(refused.message()).find("2, the limit is 2"), std::string::npos);
  EXPECT_TRUE(registry_.Open(other, "b", In(seconds(1))).ok());
  registry_.Close(third.get());  // was not let in: frees nobody's place
  EXPECT_FALSE(registry_.Open(third, "a", In(seconds(1))).ok());
  registry_.Close(first.get());
  EXPECT_TRUE(registry_.Open(third, "a", In(seconds(1))).ok());
  EXPECT_EQ(registry_.open_streams(), 3u);
  // One whose end is on its way leaves its place at once, and only once.
  auto fourth = std::make_shared<FakeStream>();
  auto fifth = std::make_shared<FakeStream>();
  registry_.FreePlace(second.get());
  EXPECT_TRUE(registry_.Open(fourth, "a", In(seconds(1))).ok());
  registry_.Close(second.get());
  EXPECT_FALSE(registry_.Open(fifth, "a", In(seconds(1))).ok());
}

TEST_F(CallRegistryTest, DrainRefusesNewCallsAndWaitsForOldOnes) {
  auto stream = std::make_shared<FakeStream>();
  ASSERT_TRUE(registry_.Open(stream, "a", In(seconds(1))).ok());
  ASSERT_TRUE(registry_.BeginUnary().ok());
  registry_.StartDrain();
  EXPECT_EQ(registry_.BeginUnary().code(), absl::StatusCode::kUnavailable);
  auto late = std::make_shared<FakeStream>();
  EXPECT_EQ(registry_.Open(late, "a", In(seconds(1))).code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(registry_.WaitIdle(Duration::zero()));
  registry_.Close(stream.get());
  EXPECT_FALSE(registry_.WaitIdle(Duration::zero()));
  registry_.EndUnary();
  EXPECT_TRUE(registry_.WaitIdle(Duration::zero()));
}

TEST_F(CallRegistryTest, KeepsStreamsAliveUntilClosed) {
  auto stream = std::make_shared<FakeStream>();
  const std::weak_ptr<FakeStream> watch = stream;
  const FakeStream* key = stream.get();
  ASSERT_TRUE(registry_.Open(std::move(stream), "a", In(seconds(1))).ok());
  EXPECT_FALSE(watch.expired());
  registry_.Close(key);
  EXPECT_TRUE(watch.expired());
}

}  // namespace
}  // namespace kvtier
