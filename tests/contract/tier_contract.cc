#include "tests/contract/tier_contract.h"

#include <gmock/gmock.h>

#include <array>

#include "common/executor.h"

namespace kvtier {
namespace {

constexpr uint64_t kKiB = 1024;
constexpr uint64_t kMiB = 1024 * kKiB;

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

TimePoint Later() { return SteadyClock().Now() + std::chrono::hours(1); }

void TierContractTest::SetUp() {
  absl::StatusOr<TierUnderTest> made = GetParam().make(kContractCapacity);
  if (absl::IsUnavailable(made.status())) {
    GTEST_SKIP() << "not tested here: " << made.status().message();
  }
  ASSERT_TRUE(made.ok()) << made.status();
  under_test_ = std::move(*made);
  tier_ = under_test_.tier.get();
  log_ = dynamic_cast<LogTier*>(tier_);
  if (log_ == nullptr) return;
  log_->Recover([](std::span<const StoredPart>) { FAIL() << "there was something at the start"; });
}

void TierContractTest::TearDown() {
  while (!stored_.empty()) Erase(stored_.size() - 1);
}

std::vector<absl::Status> TierContractTest::Write(const std::vector<uint64_t>& sizes) {
  std::vector<std::string> identities;
  std::vector<std::vector<std::byte>> contents;
  std::vector<WrittenPart> parts;
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

absl::Status TierContractTest::Read(const WrittenPart& part) {
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

uint64_t TierContractTest::MostUsed(uint64_t capacity_bytes, uint64_t bytes) const {
  if (log_ == nullptr) return capacity_bytes;
  const std::string identity = IdentityOf(next_tag_);
  const std::vector<std::byte> content(bytes);
  const WriteOp op{PartOf(next_tag_, identity), content, 0, 0, {}, 0};
  return capacity_bytes + log_->segment_bytes() + log_->BytesFor({&op, 1});
}

TEST_P(TierContractTest, SaysItsKind) { EXPECT_EQ(tier_->kind(), GetParam().kind); }

TEST_P(TierContractTest, ReadsBackWhatWasWritten) {
  EXPECT_THAT(Write({1, 255, 256, 257, 4096, 65536, 65537}), testing::Each(absl::OkStatus()));
  EXPECT_THAT(Write({1124352}), testing::Each(absl::OkStatus()));
  ASSERT_EQ(stored_.size(), 8u);
  for (const WrittenPart& part : stored_) EXPECT_EQ(Read(part), absl::OkStatus());
  for (const WrittenPart& part : stored_) EXPECT_EQ(Read(part), absl::OkStatus());
}

TEST_P(TierContractTest, ReadsABatchWithAResultPerItem) {
  Write({64 * kKiB, 64 * kKiB, 64 * kKiB});
  ASSERT_EQ(stored_.size(), 3u);
  const WrittenPart erased = stored_[1];
  Erase(1);
  const WrittenPart parts[] = {stored_[0], erased, stored_[1]};
  std::vector<std::string> identities;
  std::vector<std::vector<std::byte>> outs(3, std::vector<std::byte>(64 * kKiB));
  std::vector<ReadOp> ops;
  for (const WrittenPart& part : parts) identities.push_back(IdentityOf(part.tag));
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
  const WrittenPart erased = stored_[0];
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
    WrittenPart part = stored_[0];
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
  FillUp(256 * kKiB);
  std::vector<WrittenPart> gone = stored_;
  while (!stored_.empty()) Erase(stored_.size() - 1);
  FillUp(256 * kKiB);
  for (const WrittenPart& part : gone) EXPECT_TRUE(IsMiss(Read(part)));
  for (const WrittenPart& part : stored_) EXPECT_EQ(Read(part), absl::OkStatus());
}

TEST_P(TierContractTest, MissesWhenAnotherLengthIsAskedFor) {
  Write({64 * kKiB});
  ASSERT_EQ(stored_.size(), 1u);
  for (const uint64_t bytes : {64 * kKiB - 1, 64 * kKiB + 1, uint64_t{0}, uint64_t{1}}) {
    WrittenPart part = stored_[0];
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

TEST_P(TierContractTest, SaysWhenFullAndHasRoomAfterErase) {
  const uint64_t fit = FillUp(256 * kKiB);
  EXPECT_GT(fit, kContractCapacity / (256 * kKiB) / 2);
  EXPECT_LE(fit, MostUsed(kContractCapacity, 256 * kKiB) / (256 * kKiB));
  for (int i = 0; i < 2; ++i) Erase(0);
  EXPECT_EQ(Write({256 * kKiB})[0], absl::OkStatus());
  EXPECT_EQ(Write({256 * kKiB})[0], absl::OkStatus());
  const absl::Status full = Write({256 * kKiB})[0];
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(full.message()), testing::HasSubstr(absl::StrCat(kContractCapacity)));
  for (const WrittenPart& part : stored_) EXPECT_EQ(Read(part), absl::OkStatus());
}

TEST_P(TierContractTest, TakesNothingLargerThanItself) {
  EXPECT_EQ(Write({kContractCapacity + 1})[0].code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(Write({kMiB})[0].ok());
}

TEST_P(TierContractTest, UsageFollowsWritesAndErases) {
  EXPECT_EQ(tier_->usage().capacity_bytes, kContractCapacity);
  EXPECT_EQ(tier_->usage().used_bytes, 0u);
  Write({64 * kKiB, 64 * kKiB});
  EXPECT_GE(tier_->usage().used_bytes, 128 * kKiB);
  FillUp(64 * kKiB);
  const TierUsage full = tier_->usage();
  EXPECT_LE(full.used_bytes, MostUsed(kContractCapacity, 64 * kKiB));
  EXPECT_LE(full.backed_bytes, MostUsed(kContractCapacity, 64 * kKiB));
  EXPECT_GE(full.backed_bytes, full.used_bytes);
  while (!stored_.empty()) Erase(0);
  EXPECT_EQ(tier_->usage().used_bytes, 0u);
}

TEST_P(TierContractTest, HoldsNoneOfABlockLargerThanItself) {
  const uint64_t fits[] = {64 * kKiB};
  const uint64_t too_large[] = {kContractCapacity + 1};
  EXPECT_GT(tier_->BlocksFor(fits, 64), 0u);
  EXPECT_EQ(tier_->BlocksFor(too_large, 64), 0u);
}

TEST_P(TierContractTest, CapacityChangesLive) {
  FillUp(256 * kKiB);
  tier_->SetCapacity(2 * kContractCapacity);
  EXPECT_EQ(tier_->usage().capacity_bytes, 2 * kContractCapacity);
  EXPECT_GT(FillUp(256 * kKiB), 0u);
  tier_->SetCapacity(kContractCapacity / 2);
  EXPECT_EQ(Write({256 * kKiB})[0].code(), absl::StatusCode::kResourceExhausted);
  for (const WrittenPart& part : stored_) EXPECT_EQ(Read(part), absl::OkStatus());
  while (!stored_.empty()) Erase(0);
  if (log_ != nullptr) log_->Maintain();
  EXPECT_LE(tier_->usage().backed_bytes, kContractCapacity / 2);
  FillUp(256 * kKiB);
  EXPECT_LE(tier_->usage().used_bytes, MostUsed(kContractCapacity / 2, 256 * kKiB));
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
