#include "cli/ssd_contents.h"

#include <gtest/gtest.h>

#include <vector>

namespace kvtier::cli {
namespace {

const ModelId kModel = Digest128::Of("model");
const ModelId kOther = Digest128::Of("other");
constexpr RootFingerprint kRoot = {1};
constexpr RootFingerprint kOtherRoot = {2};

StoredPart Part(uint64_t batch, uint32_t index, const std::string& block, uint16_t part = 0) {
  StoredPart out;
  out.id.model = kModel;
  out.id.root = kRoot;
  out.id.key = Digest128::Of(block);
  out.id.part = part;
  out.id.part_count = 2;
  out.location = MakeLocation(batch, index);
  out.bytes = 100;
  return out;
}

SsdFileInfo File(uint64_t batch) {
  return {batch, 4096, static_cast<int64_t>(1000 + batch), std::nullopt, absl::OkStatus()};
}

SsdFileInfo Forgets(uint64_t batch, const ModelId& model, std::optional<RootFingerprint> root) {
  return {batch, 4096, 0, Tombstone{batch, model, root}, absl::OkStatus()};
}

TEST(SsdContents, ABlockIsThereWithAllItsParts) {
  SsdContents contents;
  contents.Add(File(1), std::vector{Part(1, 0, "whole", 0), Part(1, 1, "half", 1)});
  contents.Add(File(2), std::vector{Part(2, 0, "whole", 1)});
  const SsdSummary summary = contents.Summarize();
  EXPECT_EQ(summary.files, 2u);
  EXPECT_EQ(summary.bytes, 8192u);
  EXPECT_EQ(summary.records, 3u);
  EXPECT_EQ(summary.oldest_unix_seconds, 1001);
  EXPECT_EQ(summary.newest_unix_seconds, 1002);
  ASSERT_EQ(summary.models.size(), 1u);
  const SsdModelSummary& model = summary.models.at(kModel);
  EXPECT_EQ(model.blocks, 1u);
  EXPECT_EQ(model.live_records, 3u);
  EXPECT_EQ(model.payload_bytes, 300u);
}

TEST(SsdContents, TheNewestOfTwoCountsWithItsHits) {
  StoredPart carried = Part(2, 0, "block", 0);
  carried.id.carried = 3;
  const StoredPart old = Part(1, 0, "block", 0);
  const StoredPart other_part = Part(1, 1, "block", 1);
  SsdContents contents;
  contents.Add(File(1), std::vector{old, other_part});
  contents.Add(File(2), std::vector{carried});
  EXPECT_EQ(contents.StateOf(old), RecordState::kSuperseded);
  EXPECT_EQ(contents.StateOf(carried), RecordState::kLive);
  EXPECT_EQ(contents.StateOf(other_part), RecordState::kLive);
  const SsdModelSummary model = contents.Summarize().models.at(kModel);
  EXPECT_EQ(model.superseded_records, 1u);
  EXPECT_EQ(model.live_records, 2u);
  EXPECT_EQ(model.blocks, 1u);
  EXPECT_EQ(model.hits, 3u);
}

TEST(SsdContents, AResetForgetsWhatWasWrittenBefore) {
  const StoredPart before = Part(1, 0, "before");
  StoredPart elsewhere = Part(1, 1, "elsewhere");
  elsewhere.id.root = kOtherRoot;
  StoredPart foreign = Part(1, 2, "foreign");
  foreign.id.model = kOther;
  const StoredPart after = Part(3, 0, "after");
  SsdContents contents;
  contents.Add(File(1), std::vector{before, elsewhere, foreign});
  contents.Add(Forgets(2, kModel, kRoot), {});
  contents.Add(File(3), std::vector{after});
  EXPECT_EQ(contents.StateOf(before), RecordState::kForgotten);
  EXPECT_EQ(contents.StateOf(elsewhere), RecordState::kLive);
  EXPECT_EQ(contents.StateOf(foreign), RecordState::kLive);
  EXPECT_EQ(contents.StateOf(after), RecordState::kLive);
  contents.Add(Forgets(4, kModel, std::nullopt), {});
  EXPECT_EQ(contents.StateOf(elsewhere), RecordState::kForgotten);
  EXPECT_EQ(contents.StateOf(after), RecordState::kForgotten);
  EXPECT_EQ(contents.StateOf(foreign), RecordState::kLive);
  const SsdSummary summary = contents.Summarize();
  EXPECT_EQ(summary.tombstones, 2u);
  EXPECT_EQ(summary.models.at(kModel).forgotten_records, 3u);
  EXPECT_EQ(summary.models.at(kModel).live_records, 0u);
  EXPECT_EQ(summary.models.at(kOther).live_records, 1u);
}

TEST(SsdContents, FilesThatCannotBeReadAreToldFromNewerOnes) {
  SsdFileInfo damaged = File(1);
  damaged.status = absl::DataLossError("damaged");
  SsdFileInfo newer = File(2);
  newer.status = absl::UnimplementedError("version 9");
  SsdContents contents;
  contents.Add(damaged, {});
  contents.Add(newer, {});
  const SsdSummary summary = contents.Summarize();
  EXPECT_EQ(summary.unreadable_files, 1u);
  EXPECT_EQ(summary.newer_files, 1u);
  EXPECT_EQ(summary.files, 2u);
  EXPECT_EQ(summary.records, 0u);
  EXPECT_EQ(summary.oldest_unix_seconds, 0);
}

}  // namespace
}  // namespace kvtier::cli
