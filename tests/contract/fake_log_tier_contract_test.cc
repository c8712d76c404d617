// The suites over FakeLogTier, so that what is tested over the fake holds for the real one; and
// what a test controls on it.
#include <gmock/gmock.h>

#include "common/executor.h"
#include "tests/contract/tier_contract.h"
#include "tests/support/fake_log_tier.h"

namespace kvtier {
namespace {

constexpr uint64_t kSegmentBytes = uint64_t{1} << 20;

TierUnderTest Make(uint64_t capacity) {
  auto medium = std::make_shared<FakeMedium>();
  const auto open = [medium, capacity]() -> absl::StatusOr<std::unique_ptr<LogTier>> {
    return std::make_unique<FakeLogTier>(medium, capacity, kSegmentBytes);
  };
  TierUnderTest made;
  made.tier = *open();
  made.restart = open;
  return made;
}

const auto kFake = testing::Values(TierFactory{"Fake", TierKind::kSsd, Make});
INSTANTIATE_TEST_SUITE_P(FakeLogTier, TierContractTest, kFake, TierFactoryName);
INSTANTIATE_TEST_SUITE_P(FakeLogTier, LogTierContractTest, kFake, TierFactoryName);

class FakeLogTierTest : public testing::Test {
 protected:
  void SetUp() override {
    tier_.Recover([](std::span<const StoredPart>) { FAIL(); });
  }

  WriteOp Write() {
    WriteOp op{PartOf(1, identity_), content_, checksum_, 0, absl::UnknownError("not set"), 0};
    tier_.Write({&op, 1}, Later());
    return op;
  }
  absl::Status Read(Location location) {
    std::vector<std::byte> out(content_.size());
    ReadOp op{PartOf(1, identity_), location, checksum_, out, absl::UnknownError("not set")};
    tier_.Read({&op, 1}, Later());
    return op.status;
  }

  const std::string identity_ = IdentityOf(1);
  const std::vector<std::byte> content_ = std::vector<std::byte>(100);
  const uint64_t checksum_ = PayloadChecksum(content_.data(), content_.size());
  FakeLogTier tier_{std::make_shared<FakeMedium>(), 1000, 500};
};

TEST_F(FakeLogTierTest, FailsTheNextCallsAndThenGoesOn) {
  tier_.FailWrites(2, absl::UnavailableError("told to"));
  EXPECT_EQ(Write().status, absl::UnavailableError("told to"));
  EXPECT_EQ(Write().status, absl::UnavailableError("told to"));
  const WriteOp written = Write();
  EXPECT_EQ(written.status, absl::OkStatus());
  tier_.FailReads(1, absl::DataLossError("told to"));
  EXPECT_EQ(Read(written.location), absl::DataLossError("told to"));
  EXPECT_EQ(Read(written.location), absl::OkStatus());
}

TEST_F(FakeLogTierTest, SaysThatItIsNotWritableAndReadsOn) {
  const WriteOp written = Write();
  tier_.SetWritable(absl::UnavailableError("sick"));
  tier_.Maintain();
  EXPECT_EQ(tier_.writable(), absl::UnavailableError("sick"));
  EXPECT_EQ(Write().status, absl::UnavailableError("sick"));
  EXPECT_FALSE(tier_.Forget(Digest128::Of("model"), std::nullopt).ok());
  EXPECT_EQ(Read(written.location), absl::OkStatus());
  tier_.SetWritable(absl::OkStatus());
  EXPECT_EQ(Write().status, absl::OkStatus());
}

TEST_F(FakeLogTierTest, HoldsAWriteAtItsGateWhileReadsGoOn) {
  const WriteOp first = Write();
  tier_.write_gate().Close(1);
  absl::Status held;
  ThreadPool thread(1);
  thread.Run([this, &held] { held = Write().status; });
  tier_.write_gate().WaitForHeld();
  EXPECT_EQ(Read(first.location), absl::OkStatus());
  EXPECT_EQ(Write().status, absl::OkStatus());  // the gate holds one
  EXPECT_EQ(tier_.counters().writes, 2u);
  tier_.write_gate().Open();
  thread.WaitIdle();
  EXPECT_EQ(held, absl::OkStatus());
  EXPECT_EQ(tier_.counters().writes, 3u);
}

TEST_F(FakeLogTierTest, HoldsAReadAtItsGateWhileWritesGoOn) {
  const WriteOp first = Write();
  tier_.read_gate().Close();
  absl::Status held = absl::UnknownError("not set");
  ThreadPool thread(1);
  thread.Run([this, &held, &first] { held = Read(first.location); });
  tier_.read_gate().WaitForHeld();
  EXPECT_EQ(Write().status, absl::OkStatus());
  EXPECT_EQ(tier_.counters().reads, 0u);
  tier_.read_gate().Open();
  thread.WaitIdle();
  EXPECT_EQ(held, absl::OkStatus());
}

TEST_F(FakeLogTierTest, Counts) {
  const WriteOp written = Write();
  tier_.FailWrites(1, absl::UnavailableError("told to"));
  Write();
  EXPECT_EQ(Read(written.location), absl::OkStatus());
  FakeLogTier::Counters counters = tier_.counters();
  EXPECT_EQ(counters.writes, 2u);
  EXPECT_EQ(counters.segments_written, 1u);
  EXPECT_EQ(counters.bytes_written, 100u);
  EXPECT_EQ(counters.reads, 1u);
  EXPECT_EQ(counters.segments, 1u);
  tier_.Erase({&written.location, 1});
  EXPECT_EQ(tier_.counters().segments, 0u);
  EXPECT_EQ(tier_.counters().segments_written, 1u);
}

TEST_F(FakeLogTierTest, DiesOfALocationErasedTwice) {
  const WriteOp written = Write();
  tier_.Erase({&written.location, 1});
  EXPECT_DEATH(tier_.Erase({&written.location, 1}), "record != nullptr");
}

}  // namespace
}  // namespace kvtier
