#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <random>
#include <set>

#include "common/check.h"
#include "common/executor.h"
#include "tests/contract/tier_contract.h"
#include "tests/support/seed.h"

namespace kvtier {
namespace {

constexpr uint64_t kKiB = 1024;

// One batch of parts with these tags, each with room of its own.
struct Batch {
  Batch(std::vector<uint64_t> tags, uint64_t bytes) : tags(std::move(tags)) {
    for (const uint64_t tag : this->tags) {
      identities.push_back(IdentityOf(tag));
      FillContent(tag, contents.emplace_back(bytes));
    }
    for (size_t i = 0; i < this->tags.size(); ++i) {
      ops.push_back({PartOf(this->tags[i], identities[i]), contents[i],
                     PayloadChecksum(contents[i].data(), bytes), this->tags[i],
                     absl::UnknownError("not set"), 0});
    }
  }
  bool Written() const {
    return std::all_of(ops.begin(), ops.end(), [](const WriteOp& op) { return op.status.ok(); });
  }
  // Whether the tier has exactly the bytes of part `i`.
  bool ReadsBack(Tier* tier, size_t i) const {
    std::vector<std::byte> out(contents[i].size());
    ReadOp op{ops[i].id, ops[i].location, ops[i].checksum, out, absl::UnknownError("not set")};
    tier->Read({&op, 1}, Later());
    return op.status.ok() && out == contents[i];
  }

  std::vector<uint64_t> tags;
  std::vector<std::string> identities;
  std::vector<std::vector<std::byte>> contents;
  std::vector<WriteOp> ops;
};

std::vector<uint64_t> Tags(uint64_t first, uint64_t count) {
  std::vector<uint64_t> tags(count);
  for (uint64_t i = 0; i < count; ++i) tags[i] = first + i;
  return tags;
}

// Depth is the tag in PartOf.
std::vector<uint64_t> TagsOf(const auto& segments) {
  std::vector<uint64_t> tags;
  for (const auto& segment : segments) {
    for (const auto& part : segment) tags.push_back(part.id.depth);
  }
  return tags;
}

}  // namespace

LogTierContractTest::FoundSegments LogTierContractTest::Restart() {
  under_test_.tier.reset();
  absl::StatusOr<std::unique_ptr<LogTier>> again = under_test_.restart();
  KVTIER_CHECK(again.ok());
  log_ = again->get();
  tier_ = log_;
  under_test_.tier = std::move(*again);
  stored_.clear();
  FoundSegments found;
  log_->Recover([&found](std::span<const StoredPart> segment) {
    std::vector<Found>& parts = found.emplace_back();
    for (const StoredPart& part : segment) {
      parts.push_back(
          {part.id, std::string(part.id.identity), part.location, part.bytes, part.checksum});
    }
  });
  for (std::vector<Found>& segment : found) {
    for (Found& part : segment) {
      part.id.identity = part.identity;
      stored_.push_back({part.id.depth, part.bytes, part.checksum, part.location});
    }
  }
  return found;
}

uint64_t LogTierContractTest::WriteUnder(const ModelId& model, const RootFingerprint& root) {
  Batch batch({next_tag_++}, 16 * kKiB);
  batch.ops[0].id.model = model;
  batch.ops[0].id.root = root;
  log_->Write(batch.ops, Later());
  EXPECT_TRUE(batch.Written()) << batch.ops[0].status;
  return batch.tags[0];
}

TEST_P(LogTierContractTest, WritesABatchWholeOrNotAtAll) {
  EXPECT_THAT(Write({200 * kKiB, 200 * kKiB, 200 * kKiB}), testing::Each(absl::OkStatus()));
  FillUp(200 * kKiB);
  const uint64_t used = log_->usage().used_bytes;
  for (const absl::Status& status : Write({1, 1, 1})) {
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  }
  EXPECT_EQ(log_->usage().used_bytes, used);
  for (int i = 0; i < 3; ++i) Erase(0);
  EXPECT_THAT(Write({200 * kKiB, 200 * kKiB, 200 * kKiB}), testing::Each(absl::OkStatus()));
  for (const WrittenPart& part : stored_) EXPECT_EQ(Read(part), absl::OkStatus());
}

TEST_P(LogTierContractTest, RefusesABatchAboveASegmentButTakesOneLargePart) {
  const uint64_t segment = log_->segment_bytes();
  ASSERT_LT(segment, kContractCapacity / 2);
  for (const absl::Status& status : Write({segment / 2 + 1, segment / 2 + 1})) {
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  }
  EXPECT_EQ(log_->usage().used_bytes, 0u);
  EXPECT_EQ(Write({segment + 1})[0], absl::OkStatus());
  EXPECT_EQ(Write({segment / 2})[0], absl::OkStatus());
  for (const WrittenPart& part : stored_) EXPECT_EQ(Read(part), absl::OkStatus());
}

TEST_P(LogTierContractTest, TakesTheSpaceItSaidItWould) {
  for (const uint64_t parts : {1, 3, 20}) {
    Batch batch(Tags(next_tag_, parts), 20 * kKiB);
    next_tag_ += parts;
    const uint64_t said = log_->BytesFor(batch.ops);
    EXPECT_GE(said, parts * 20 * kKiB);
    EXPECT_LE(said, parts * 21 * kKiB + 8 * kKiB);
    const uint64_t before = log_->usage().used_bytes;
    log_->Write(batch.ops, Later());
    ASSERT_TRUE(batch.Written()) << batch.ops[0].status;
    EXPECT_GE(log_->usage().used_bytes - before, parts * 20 * kKiB);
    EXPECT_LE(log_->usage().used_bytes - before, said);
  }
}

TEST_P(LogTierContractTest, GivesASegmentsSpaceBackWithItsLastPart) {
  Write({64 * kKiB, 64 * kKiB, 64 * kKiB});
  const uint64_t used = log_->usage().used_bytes;
  Write({64 * kKiB});
  EXPECT_GT(log_->usage().used_bytes, used);
  Erase(3);
  EXPECT_EQ(log_->usage().used_bytes, used);
  Erase(1);
  Erase(0);
  EXPECT_EQ(log_->usage().used_bytes, used);
  EXPECT_EQ(Read(stored_[0]), absl::OkStatus());
  Erase(0);
  EXPECT_EQ(log_->usage().used_bytes, 0u);

  Write({64 * kKiB, 64 * kKiB});
  const Location both[] = {stored_[0].location, stored_[1].location};
  log_->Erase(both);
  stored_.clear();
  EXPECT_EQ(log_->usage().used_bytes, 0u);
}

TEST_P(LogTierContractTest, RefusesOnceItIsAboveItsCapacityByMoreThanASegment) {
  const std::vector<uint64_t> sizes(4, log_->segment_bytes() / 5);
  int written = 0;
  while (Write(sizes)[0].ok()) ++written;
  EXPECT_GT(written, 5);
  EXPECT_GT(log_->usage().used_bytes, kContractCapacity + log_->segment_bytes());
  EXPECT_LE(log_->usage().used_bytes, kContractCapacity + 2 * log_->segment_bytes());
  log_->SetCapacity(kContractCapacity / 4);
  EXPECT_EQ(Write({1})[0].code(), absl::StatusCode::kResourceExhausted);
  while (log_->usage().used_bytes > kContractCapacity / 4) Erase(0);
  EXPECT_EQ(Write({1})[0], absl::OkStatus());
}

TEST_P(LogTierContractTest, HoldsTheBlocksItSaysItHolds) {
  const std::vector<uint64_t> block = {20 * kKiB, 30 * kKiB};
  const uint64_t said = log_->BlocksFor(block, 64);
  std::vector<uint64_t> sizes;
  for (uint64_t bytes = 0; bytes + 60 * kKiB < log_->segment_bytes(); bytes += 50 * kKiB) {
    sizes.insert(sizes.end(), block.begin(), block.end());
  }
  while (Write(sizes)[0].ok()) continue;
  const uint64_t held = stored_.size() / block.size();
  EXPECT_GE(held, said * 98 / 100);
  EXPECT_LE(held, said * 102 / 100 + 2 * (sizes.size() / block.size()));
}

TEST_P(LogTierContractTest, RecoversSegmentsOldestFirstWithAllThatIdentifiesAPart) {
  EXPECT_TRUE(Restart().empty());
  Write({10, 64 * kKiB, 3000});
  Write({5 * kKiB});
  Write({1, 1});
  const std::vector<WrittenPart> before = stored_;
  const uint64_t used = log_->usage().used_bytes;
  const FoundSegments found = Restart();
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found[0].size(), 3u);
  EXPECT_EQ(found[1].size(), 1u);
  EXPECT_EQ(found[2].size(), 2u);
  size_t i = 0;
  for (const std::vector<Found>& segment : found) {
    for (const Found& part : segment) {
      const WrittenPart& wrote = before[i++];
      const std::string identity = IdentityOf(wrote.tag);
      const PartIdentity id = PartOf(wrote.tag, identity);
      EXPECT_EQ(part.identity, identity);
      EXPECT_TRUE(part.id.model == id.model && part.id.root == id.root && part.id.key == id.key &&
                  part.id.parent == id.parent);
      EXPECT_EQ(part.id.depth, id.depth);
      EXPECT_EQ(part.id.part, id.part);
      EXPECT_EQ(part.id.part_count, id.part_count);
      EXPECT_EQ(part.id.carried, id.carried);
      EXPECT_EQ(part.bytes, wrote.bytes);
      EXPECT_EQ(part.checksum, wrote.checksum);
    }
  }
  for (const WrittenPart& part : stored_) EXPECT_EQ(Read(part), absl::OkStatus());
  EXPECT_EQ(log_->usage().used_bytes, used);
}

TEST_P(LogTierContractTest, GoesOnAfterARestart) {
  Write({4 * kKiB, 4 * kKiB});
  Restart();
  Write({4 * kKiB});
  ASSERT_EQ(stored_.size(), 3u);
  std::set<Location> locations;
  for (const WrittenPart& part : stored_) locations.insert(part.location);
  EXPECT_EQ(locations.size(), 3u);
  EXPECT_EQ(TagsOf(Restart()), Tags(0, 3));
  for (const WrittenPart& part : stored_) EXPECT_EQ(Read(part), absl::OkStatus());
  while (!stored_.empty()) Erase(0);
  EXPECT_EQ(log_->usage().used_bytes, 0u);
  log_->Maintain();
  EXPECT_TRUE(Restart().empty());
}

TEST_P(LogTierContractTest, KeepsTheRestOfASegmentButNoneThatWasErasedWhole) {
  Write({4 * kKiB, 4 * kKiB, 4 * kKiB});
  Write({4 * kKiB, 4 * kKiB});
  Write({4 * kKiB});
  const Location gone[] = {stored_[1].location, stored_[3].location, stored_[4].location};
  log_->Erase(gone);
  log_->Maintain();
  const FoundSegments found = Restart();
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[1][0].id.depth, 5u);
  EXPECT_THAT(TagsOf(found), testing::IsSupersetOf({0, 2, 5}));
  EXPECT_THAT(TagsOf(found), testing::Not(testing::Contains(3)));
  EXPECT_THAT(TagsOf(found), testing::Not(testing::Contains(4)));
  for (const WrittenPart& part : stored_) EXPECT_EQ(Read(part), absl::OkStatus());
  while (!stored_.empty()) Erase(0);  // what came back must be erased again
  EXPECT_EQ(log_->usage().used_bytes, 0u);
}

TEST_P(LogTierContractTest, KeepsAPartThatWasWrittenTwiceTwice) {
  Batch first({7}, 4 * kKiB);
  Batch second({7}, 4 * kKiB);
  second.ops[0].id.carried = first.ops[0].id.carried + 1;
  log_->Write(first.ops, Later());
  log_->Write(second.ops, Later());
  log_->Erase({&first.ops[0].location, 1});
  EXPECT_FALSE(first.ReadsBack(log_, 0));
  EXPECT_TRUE(second.ReadsBack(log_, 0));
  const FoundSegments found = Restart();
  ASSERT_FALSE(found.empty());
  EXPECT_EQ(found.back()[0].id.carried, second.ops[0].id.carried);
  EXPECT_EQ(Read(stored_.back()), absl::OkStatus());
}

TEST_P(LogTierContractTest, ForgetsARootOfAModel) {
  const ModelId model = Digest128::Of("model");
  const RootFingerprint root = FingerprintOf("one");
  WriteUnder(model, root);
  const uint64_t other_root = WriteUnder(model, FingerprintOf("another"));
  const uint64_t other_model = WriteUnder(Digest128::Of("another"), root);
  EXPECT_EQ(log_->Forget(model, root), absl::OkStatus());
  const uint64_t later = WriteUnder(model, root);
  EXPECT_THAT(TagsOf(Restart()), testing::ElementsAre(other_root, other_model, later));
  EXPECT_THAT(TagsOf(Restart()), testing::ElementsAre(other_root, other_model, later));
}

TEST_P(LogTierContractTest, ForgetsAModelWithAllItsRoots) {
  const ModelId model = Digest128::Of("model");
  WriteUnder(model, FingerprintOf("one"));
  WriteUnder(model, FingerprintOf("another"));
  const uint64_t other = WriteUnder(Digest128::Of("another"), FingerprintOf("one"));
  EXPECT_EQ(log_->Forget(model, std::nullopt), absl::OkStatus());
  EXPECT_EQ(log_->Forget(Digest128::Of("never written"), std::nullopt), absl::OkStatus());
  const uint64_t later = WriteUnder(model, FingerprintOf("one"));
  EXPECT_THAT(TagsOf(Restart()), testing::ElementsAre(other, later));
}

TEST_P(LogTierContractTest, ForgetsWhatSharesASegmentAndStaysForgotten) {
  Batch batch({0, 1, 2}, 4 * kKiB);
  batch.ops[1].id.model = Digest128::Of("another");
  log_->Write(batch.ops, Later());
  ASSERT_TRUE(batch.Written());
  EXPECT_EQ(log_->Forget(Digest128::Of("another"), std::nullopt), absl::OkStatus());
  EXPECT_THAT(TagsOf(Restart()), testing::ElementsAre(0, 2));
  Write({4 * kKiB});
  EXPECT_THAT(TagsOf(Restart()), testing::ElementsAre(0, 2, stored_.back().tag));
  while (!stored_.empty()) {
    tier_->Erase({&stored_.back().location, 1});
    stored_.pop_back();
  }
  EXPECT_EQ(log_->usage().used_bytes, 0u);
}

TEST_P(LogTierContractTest, IsWritableAndMaintainChangesNothingThen) {
  Write({4 * kKiB, 4 * kKiB});
  Write({4 * kKiB});
  Erase(0);
  const uint64_t used = log_->usage().used_bytes;
  EXPECT_EQ(log_->writable(), absl::OkStatus());
  log_->Maintain();
  EXPECT_EQ(log_->writable(), absl::OkStatus());
  EXPECT_EQ(log_->usage().used_bytes, used);
  for (const WrittenPart& part : stored_) EXPECT_EQ(Read(part), absl::OkStatus());
}

TEST_P(LogTierContractTest, ServesWritersReadersAndErasersAtOnce) {
  constexpr int kThreads = 3;
  constexpr int kRounds = 25;
  const uint64_t seed = TestSeed();
  Batch stays({1000000, 1000001}, 20 * kKiB);
  log_->Write(stays.ops, Later());
  ASSERT_TRUE(stays.Written());
  std::array<int, kThreads> wrong{};
  {
    ThreadPool threads(kThreads);
    for (int t = 0; t < kThreads; ++t) {
      threads.Run([this, t, seed, &stays, &wrong] {
        std::mt19937_64 random(seed + static_cast<uint64_t>(t));
        for (int i = 0; i < kRounds; ++i) {
          Batch batch(Tags(static_cast<uint64_t>(t * kRounds + i) * 3, 3), 20 * kKiB);
          log_->Write(batch.ops, Later());
          if (!batch.Written()) ++wrong[t];
          std::vector<size_t> order = {0, 1, 2};
          std::shuffle(order.begin(), order.end(), random);
          for (const size_t part : order) {
            wrong[t] += !batch.ReadsBack(log_, part);
            wrong[t] += !stays.ReadsBack(log_, part % 2);
            log_->Erase({&batch.ops[part].location, 1});
            wrong[t] += batch.ReadsBack(log_, part);
          }
          if (i % 5 == t) log_->Maintain();
        }
      });
    }
  }
  EXPECT_THAT(wrong, testing::Each(0));
  EXPECT_LE(log_->usage().used_bytes, log_->BytesFor(stays.ops));
  log_->Maintain();
  EXPECT_THAT(TagsOf(Restart()), testing::ElementsAre(1000000, 1000001));
}

}  // namespace kvtier
