#include "tests/contract/tier_contract.h"

#include <gmock/gmock.h>

#include <array>

#include "common/executor.h"
#include "tests/support/pool_owner.h"

namespace kvtier {
namespace {

constexpr uint64_t kKiB = 1024;
constexpr uint64_t kMiB = 1024 * kKiB;
constexpr uint64_t kCapacity = 8 * kMiB;

TimePoint Later() { return SteadyClock().Now() + std::chrono::hours(1); }

std::string IdentityOf(uint64_t tag) { return absl::StrCat("tokens of ", tag); }

// `identity` must outlive it.
PartIdentity PartOf(uint64_t tag, const std::string& identity) {
  return {Digest128::Of("model"), Digest128::Of(absl::StrCat("key ", tag)), Digest128::Of("parent"),
          identity, 0};
}

bool IsMiss(const absl::Status& status) {
  return absl::IsNotFound(status) || absl::IsDataLoss(status);
}

// One part written, read and erased by itself, for the threads.
bool LivesRight(Tier* tier, uint64_t tag, uint64_t bytes) {
  const std::string identity = IdentityOf(tag);
  std::vector<std::byte> content(bytes);
  FillContent(tag, content);
  WriteOp write{PartOf(tag, identity), content, PayloadChecksum(content.data(), bytes), tag, {}, 0};
  tier->Write({&write, 1}, Later());
  if (!write.status.ok()) return false;
  std::vector<std::byte> out(bytes);
  ReadOp read{write.id, write.location, write.checksum, out, {}};
  tier->Read({&read, 1}, Later());
  tier->Erase({&write.location, 1});
  return read.status.ok() && out == content;
}

}  // namespace

void TierContractTest::SetUp() {
  absl::StatusOr<TierUnderTest> made = GetParam().make(kCapacity);
  if (absl::IsUnavailable(made.status())) {
    GTEST_SKIP() << "not tested here: " << made.status().message();
  }
  ASSERT_TRUE(made.ok()) << made.status();
  under_test_ = std::move(*made);
  tier_ = under_test_.tier.get();
}

void TierContractTest::TearDown() {
  while (!stored_.empty()) Erase(stored_.size() - 1);
}

std::vector<absl::Status> TierContractTest::Write(const std::vector<uint64_t>& sizes) {
  std::vector<std::string> identities;
  std::vector<std::vector<std::byte>> contents;
  std::vector<StoredPart> parts;
  for (const uint64_t bytes : sizes) {
    const uint64_t tag = next_tag_++;
    identities.push_back(IdentityOf(tag));
    FillContent(tag, contents.emplace_back(bytes));
    parts.push_back({tag, bytes, PayloadChecksum(contents.back().data(), bytes), 0});
  }
  std::vector<WriteOp> ops;
  for (size_t i = 0; i < parts.size(); ++i) {
    ops.push_back({PartOf(parts[i].tag, identities[i]), contents[i], parts[i].checksum,
                   parts[i].tag, absl::UnknownError("not set"), 0});
  }
  tier_->Write(ops, Later());
  std::vector<absl::Status> statuses;
  for (size_t i = 0; i < ops.size(); ++i) {
    statuses.push_back(ops[i].status);
    parts[i].location = ops[i].location;
    if (ops[i].status.ok()) stored_.push_back(parts[i]);
  }
  return statuses;
}

uint64_t TierContractTest::FillUp(uint64_t bytes) {
  for (uint64_t written = 0;; ++written) {
    const absl::Status status = Write({bytes})[0];
    if (status.ok()) continue;
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    return written;
  }
}

absl::Status TierContractTest::Read(const StoredPart& part) {
  const std::string identity = IdentityOf(part.tag);
  std::vector<std::byte> out(part.bytes);
  ReadOp op{PartOf(part.tag, identity), part.location, part.checksum, out,
            absl::UnknownError("not set")};
  tier_->Read({&op, 1}, Later());
  if (op.status.ok()) {
    EXPECT_TRUE(HasContent(part.tag, out)) << "wrong bytes served as " << identity;
  }
  return op.status;
}

void TierContractTest::Erase(size_t index) {
  tier_->Erase({&stored_[index].location, 1});
  stored_.erase(stored_.begin() + static_cast<ptrdiff_t>(index));
}

TEST_P(TierContractTest, SaysItsKind) { EXPECT_EQ(tier_->kind(), GetParam().kind); }

TEST_P(TierContractTest, ReadsBackWhatWasWritten) {
  const std::vector<uint64_t> sizes = {1, 255, 256, 257, 4096, 65536, 65537, 1124352};
  EXPECT_THAT(Write(sizes), testing::Each(absl::OkStatus()));
  ASSERT_EQ(stored_.size(), sizes.size());
  for (const StoredPart& part : stored_) EXPECT_EQ(Read(part), absl::OkStatus());
  for (const StoredPart& part : stored_) EXPECT_EQ(Read(part), absl::OkStatus());
}

TEST_P(TierContractTest, ReadsABatchWithAResultPerItem) {
  Write({64 * kKiB, 64 * kKiB, 64 * kKiB});
  ASSERT_EQ(stored_.size(), 3u);
  const StoredPart erased = stored_[1];
  Erase(1);
  const StoredPart parts[] = {stored_[0], erased, stored_[1]};
  std::vector<std::string> identities;
  std::vector<std::vector<std::byte>> outs(3, std::vector<std::byte>(64 * kKiB));
  std::vector<ReadOp> ops;
  for (const StoredPart& part : parts) identities.push_back(IdentityOf(part.tag));
  for (size_t i = 0; i < 3; ++i) {
    ops.push_back({PartOf(parts[i].tag, identities[i]), parts[i].location, parts[i].checksum,
                   outs[i], absl::UnknownError("not set")});
  }
  tier_->Read(ops, Later());
  EXPECT_TRUE(ops[0].status.ok() && HasContent(parts[0].tag, outs[0]));
  EXPECT_TRUE(IsMiss(ops[1].status)) << ops[1].status;
  EXPECT_TRUE(ops[2].status.ok() && HasContent(parts[2].tag, outs[2]));
}

TEST_P(TierContractTest, MissesAfterErase) {
  Write({64 * kKiB, 64 * kKiB});
  ASSERT_EQ(stored_.size(), 2u);
  const StoredPart erased = stored_[0];
  EXPECT_EQ(Read(erased), absl::OkStatus());
  Erase(0);
  EXPECT_TRUE(IsMiss(Read(erased)));
  EXPECT_EQ(Read(stored_[0]), absl::OkStatus());
}

TEST_P(TierContractTest, MissesAtALocationThatWasNeverGivenOut) {
  Write({64 * kKiB});
  ASSERT_EQ(stored_.size(), 1u);
  for (const Location wrong : {stored_[0].location + 1, stored_[0].location + (Location{1} << 32),
                               Location{UINT64_MAX}, Location{UINT64_MAX - 1}}) {
    StoredPart part = stored_[0];
    part.location = wrong;
    EXPECT_TRUE(IsMiss(Read(part)));
  }
  EXPECT_EQ(Read(stored_[0]), absl::OkStatus());
}

TEST_P(TierContractTest, MissesAtTheLocationOfAnother) {
  Write({64 * kKiB, 64 * kKiB});
  ASSERT_EQ(stored_.size(), 2u);
  std::swap(stored_[0].location, stored_[1].location);
  EXPECT_TRUE(IsMiss(Read(stored_[0])));
  EXPECT_TRUE(IsMiss(Read(stored_[1])));
  std::swap(stored_[0].location, stored_[1].location);
  EXPECT_EQ(Read(stored_[0]), absl::OkStatus());
}

TEST_P(TierContractTest, MissesWhereThePlaceWasGivenToAnother) {
  FillUp(64 * kKiB);
  std::vector<StoredPart> gone = stored_;
  while (!stored_.empty()) Erase(stored_.size() - 1);
  FillUp(64 * kKiB);
  for (const StoredPart& part : gone) EXPECT_TRUE(IsMiss(Read(part)));
  for (const StoredPart& part : stored_) EXPECT_EQ(Read(part), absl::OkStatus());
}

TEST_P(TierContractTest, MissesWhenAnotherLengthIsAskedFor) {
  Write({64 * kKiB});
  ASSERT_EQ(stored_.size(), 1u);
  for (const uint64_t bytes : {64 * kKiB - 1, 64 * kKiB + 1, uint64_t{0}, uint64_t{1}}) {
    StoredPart part = stored_[0];
    part.bytes = bytes;
    EXPECT_TRUE(IsMiss(Read(part))) << bytes;
  }
  EXPECT_EQ(Read(stored_[0]), absl::OkStatus());
}

TEST_P(TierContractTest, RejectsAnEmptyPartAndTakesTheOthers) {
  const std::vector<absl::Status> statuses = Write({4096, 0, 4096});
  EXPECT_TRUE(statuses[0].ok());
  EXPECT_EQ(statuses[1].code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(statuses[2].ok());
  ASSERT_EQ(stored_.size(), 2u);
  EXPECT_EQ(Read(stored_[0]), absl::OkStatus());
  EXPECT_EQ(Read(stored_[1]), absl::OkStatus());
}

TEST_P(TierContractTest, EmptyBatchesDoNothing) {
  tier_->Write({}, Later());
  tier_->Read({}, Later());
  tier_->Erase({});
  EXPECT_EQ(tier_->usage().used_bytes, 0u);
}

TEST_P(TierContractTest, SaysPerItemWhenFullAndHasRoomAfterErase) {
  const uint64_t fit = FillUp(256 * kKiB);
  EXPECT_GT(fit, kCapacity / (256 * kKiB) / 2);
  EXPECT_LE(fit, kCapacity / (256 * kKiB));
  for (int i = 0; i < 2; ++i) Erase(0);
  const std::vector<absl::Status> statuses = Write({256 * kKiB, 256 * kKiB, 256 * kKiB});
  EXPECT_TRUE(statuses[0].ok());
  EXPECT_TRUE(statuses[1].ok());
  EXPECT_EQ(statuses[2].code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(statuses[2].message()),
              testing::AllOf(testing::HasSubstr(absl::StrCat(256 * kKiB)),
                             testing::HasSubstr(absl::StrCat(kCapacity))));
  for (const StoredPart& part : stored_) EXPECT_EQ(Read(part), absl::OkStatus());
}

TEST_P(TierContractTest, TakesNothingLargerThanItself) {
  EXPECT_EQ(Write({kCapacity + 1})[0].code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(Write({kMiB})[0].ok());
}

TEST_P(TierContractTest, UsageFollowsWritesAndErases) {
  EXPECT_EQ(tier_->usage().capacity_bytes, kCapacity);
  EXPECT_EQ(tier_->usage().used_bytes, 0u);
  Write({64 * kKiB, 64 * kKiB});
  EXPECT_GE(tier_->usage().used_bytes, 128 * kKiB);
  FillUp(64 * kKiB);
  const TierUsage full = tier_->usage();
  EXPECT_LE(full.used_bytes, kCapacity);
  EXPECT_LE(full.backed_bytes, kCapacity);
  EXPECT_GE(full.backed_bytes, full.used_bytes);
  while (!stored_.empty()) Erase(0);
  EXPECT_EQ(tier_->usage().used_bytes, 0u);
}

TEST_P(TierContractTest, HoldsTheBlocksItSaysItHolds) {
  const std::vector<std::vector<uint64_t>> blocks = {
      {64 * kKiB}, {40000, 40000}, {64 * kKiB, 40000}};
  for (const std::vector<uint64_t>& parts : blocks) {
    const uint64_t said = tier_->BlocksFor(parts);
    EXPECT_GT(said, 0u);
    uint64_t held = 0;
    while (held <= said && testing::Value(Write(parts), testing::Each(absl::OkStatus()))) ++held;
    EXPECT_EQ(held, said);
    while (!stored_.empty()) Erase(0);
  }
  const uint64_t too_large[] = {kCapacity + 1};
  EXPECT_EQ(tier_->BlocksFor(too_large), 0u);
}

TEST_P(TierContractTest, CapacityChangesLive) {
  FillUp(64 * kKiB);
  tier_->SetCapacity(2 * kCapacity);
  EXPECT_EQ(tier_->usage().capacity_bytes, 2 * kCapacity);
  EXPECT_GT(FillUp(64 * kKiB), 0u);
  tier_->SetCapacity(kCapacity / 2);
  EXPECT_EQ(Write({64 * kKiB})[0].code(), absl::StatusCode::kResourceExhausted);
  for (const StoredPart& part : stored_) EXPECT_EQ(Read(part), absl::OkStatus());
  while (!stored_.empty()) Erase(0);
  EXPECT_LE(tier_->usage().backed_bytes, kCapacity / 2);
  FillUp(64 * kKiB);
  EXPECT_LE(tier_->usage().used_bytes, kCapacity / 2);
  EXPECT_GT(stored_.size(), 0u);
}

TEST_P(TierContractTest, ServesManyThreads) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 60;
  std::array<int, kThreads> right{};
  Write({64 * kKiB});
  {
    ThreadPool threads(kThreads);
    for (int t = 0; t < kThreads; ++t) {
      threads.Run([this, t, &right] {
        for (int i = 0; i < kRounds; ++i) {
          const uint64_t tag = static_cast<uint64_t>(1000000 + t * kRounds + i);
          right[t] += LivesRight(tier_, tag, i % 3 == 0 ? 40000 : 64 * kKiB);
        }
      });
    }
  }
  EXPECT_THAT(right, testing::Each(kRounds));
  EXPECT_EQ(Read(stored_[0]), absl::OkStatus());
}

}  // namespace kvtier
