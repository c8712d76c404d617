// The SSD tier when the power goes: at any change of the medium, in any state.
#include <gmock/gmock.h>

#include <filesystem>
#include <random>
#include <set>

#include "tests/support/seed.h"
#include "tests/support/ssd_fixture.h"

namespace kvtier {
namespace {

constexpr int kCuts = 200;
constexpr uint64_t kMostChanges = 120;  // between two cuts

class SsdPowerTest : public SsdFixture {
 protected:
  SsdPowerTest() {
    std::filesystem::create_directory(folder_ / "scratch");
    fs_->TrackUnsynced(folder_ / "scratch");
    part_bytes_ = 1000;
  }

  uint64_t UpTo(uint64_t most) { return std::uniform_int_distribution<uint64_t>(0, most)(random_); }
  // Opens although the power may go again meanwhile.
  void OpenAfterCut() {
    while (!Open().ok()) {
      ASSERT_FALSE(fs_->has_power());
      RestorePower();
    }
  }
  void RestorePower() {
    Close();
    fs_->RestorePower(random_());
    fs_->CutPowerAt(1 + UpTo(kMostChanges));
  }
  void CheckWhatIsThere() {
    for (const uint64_t tag : safe_) {
      ASSERT_TRUE(known_.contains(tag)) << tag << " was written and is gone";
      if (fs_->has_power()) {
        ASSERT_EQ(Read(tag), absl::OkStatus()) << tag;
      }
    }
    for (const uint64_t tag : forgotten_) {
      ASSERT_FALSE(known_.contains(tag)) << tag << " was forgotten and is back";
    }
  }
  // A segment with some parts that are known, all of which go.
  void EraseASegment() {
    if (known_.empty()) return;
    const uint64_t segment = std::next(known_.begin(), UpTo(known_.size() - 1))->second.segment;
    std::vector<uint64_t> tags;
    for (const auto& [tag, known] : known_) {
      if (known.segment == segment) tags.push_back(tag);
    }
    for (const uint64_t tag : tags) safe_.erase(tag);
    Erase(tags);
  }
  void ForgetAll() {
    const std::vector<uint64_t> tags = Tags();
    safe_.clear();  // gone or not, until the next start tells
    if (!tier_->Forget(Digest128::Of("model"), std::nullopt).ok()) return;
    forgotten_.insert(tags.begin(), tags.end());
    // Parts that were erased, or whose Write failed, are older too.
    for (uint64_t tag = 1; tag < next_tag_; ++tag) forgotten_.insert(tag);
    EraseAll();
    forgets_ += 1;
  }
  void DoSomething() {
    const uint64_t dice = UpTo(99);
    if (dice < 60) {
      const uint64_t first = next_tag_;
      if (Write(1 + static_cast<int>(UpTo(3))).ok()) {
        for (uint64_t tag = first; tag < next_tag_; ++tag) safe_.insert(tag);
        ++writes_;
      }
    } else if (dice < 85) {
      EraseASegment();
    } else if (dice < 97) {
      clock_.Advance(std::chrono::minutes(1));
      tier_->Maintain();
    } else {
      ForgetAll();
    }
  }

  std::mt19937_64 random_{TestSeed()};
  std::set<uint64_t> safe_;  // their Write said OK, and nobody erased them
  std::set<uint64_t> forgotten_;
  uint64_t writes_ = 0;
  uint64_t forgets_ = 0;
};

TEST_F(SsdPowerTest, WhatWasWrittenIsThereAfterAnyPowerCut) {
  ASSERT_EQ(Open(), absl::OkStatus());
  fs_->CutPowerAt(kMostChanges);
  uint64_t checked = 0;
  for (int cut = 0; cut < kCuts && !HasFatalFailure(); ++cut) {
    SCOPED_TRACE(absl::StrCat("cut ", cut));
    while (fs_->has_power() && !HasFatalFailure()) DoSomething();
    RestorePower();
    OpenAfterCut();
    if (HasFatalFailure()) break;
    CheckWhatIsThere();
    checked += safe_.size();
    for (const auto& [tag, known] : known_) {
      if (Read(tag).ok()) safe_.insert(tag);  // once back, it stays
    }
  }
  EXPECT_GT(writes_, uint64_t{kCuts});
  EXPECT_GT(checked, uint64_t{kCuts});
  EXPECT_GT(forgets_, 1u);
  EXPECT_THAT(SetAside(), testing::IsEmpty());
}

}  // namespace
}  // namespace kvtier
