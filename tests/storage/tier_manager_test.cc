#include "storage/tier_manager.h"

#include <cstring>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/tier_fixture.h"

namespace kvtier {
namespace {

using std::chrono::milliseconds;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint64_t kPart = 4096;
constexpr auto kStored = StoreOutcome::kStored;
constexpr auto kPresent = StoreOutcome::kAlreadyPresent;
constexpr auto kRejected = StoreOutcome::kRejected;

class TierManagerTest : public ::testing::Test {
 protected:
  void Start(TierSizes sizes, ManagerOptions options = {}) {
    fixture_.emplace(sizes, options);
    ASSERT_TRUE(fixture_->manager().AddModel(model_).ok());
  }
  void TearDown() override {
    if (fixture_.has_value()) fixture_->manager().CheckInvariants();
  }
  TierManager& manager() { return fixture_->manager(); }
  LookupResult LookupLeased(const std::vector<uint32_t>& tokens, Duration lease) {
    PromptRef prompt = fixture_->Prompt(model_, tokens);
    LookupOptions options;
    options.lease = lease;
    options.client = "test";
    const auto result = manager().Lookup(prompt, options);
    EXPECT_TRUE(result.ok()) << result.status();
    return *result;
  }

  const ModelSpec model_ = OpaqueModel("m", {kPart});
  std::optional<TierFixture> fixture_;
};

TEST_F(TierManagerTest, StoredBlocksAreFoundAndFetchedByteForByte) {
  Start({.ram = 64 * kPart});
  const auto tokens = Tokens(1, 10);
  EXPECT_EQ(fixture_->Found(model_, tokens), 0u);
  EXPECT_THAT(fixture_->Store(model_, tokens), Each(kStored));
  EXPECT_EQ(fixture_->Found(model_, tokens), 10u);
  EXPECT_EQ(fixture_->Found(model_, Join(Tokens(1, 6), Tokens(2, 3))), 6u);
  for (uint32_t block = 0; block < 10; ++block) EXPECT_TRUE(fixture_->Fetch(model_, tokens, block));
  EXPECT_FALSE(fixture_->Fetch(model_, Tokens(2, 1), 0));
}

TEST_F(TierManagerTest, LookupsOfAnyLengthAgree) {
  Start({.ram = 10000 * 256});
  const ModelSpec small = OpaqueModel("small", {256});
  ASSERT_TRUE(manager().AddModel(small).ok());
  const auto tokens = Tokens(1, 9000);
  EXPECT_THAT(fixture_->Store(small, tokens), Each(kStored));
  for (uint32_t blocks : {1u, 63u, 64u, 65u, 575u, 576u, 577u, 9000u}) {
    EXPECT_EQ(fixture_->Found(small, Tokens(1, blocks)), blocks);
    EXPECT_EQ(fixture_->Found(small, Join(Tokens(1, blocks), Tokens(7, 100))), blocks);
  }
}

TEST_F(TierManagerTest, SecondStoreIsANoOpAndTheFirstBytesStay) {
  Start({.ram = 64 * kPart});
  const auto tokens = Tokens(1, 3);
  fixture_->Store(model_, tokens, 0, 0, /*serial=*/1);
  EXPECT_THAT(fixture_->Store(model_, tokens, 0, 0, /*serial=*/2), Each(kPresent));
  EXPECT_TRUE(fixture_->Fetch(model_, tokens, 2, 0, /*serial=*/1));
  EXPECT_EQ(manager().stats().stored_blocks, 3u);
}

TEST_F(TierManagerTest, NamespacesAndModelsNeverMix) {
  Start({.ram = 64 * kPart});
  const ModelSpec other = OpaqueModel("other", {kPart});
  ASSERT_TRUE(manager().AddModel(other).ok());
  const auto tokens = Tokens(1, 4);
  const Namespace names[] = {{}, {"t", "", ""}, {"", "t", ""}, {"", "", "t"}, {"t", "t", ""}};
  for (const Namespace& mine : names) {
    EXPECT_THAT(fixture_->Store(model_, tokens, 0, 0, 5, mine), Each(kStored));
    EXPECT_EQ(fixture_->Found(model_, tokens, mine), 4u);
    EXPECT_EQ(fixture_->Found(other, tokens, mine), 0u);
    for (const Namespace& foreign : names) {
      const uint32_t expected = &foreign <= &mine ? 4 : 0;  // stored by now, or not yet
      EXPECT_EQ(fixture_->Found(model_, tokens, foreign), expected);
    }
  }
}

TEST_F(TierManagerTest, BlockIsVisibleOnlyWithAllItsParts) {
  Start({.ram = 16 << 20});
  const ModelSpec tp = OpaqueModel("tp", {kPart, 2 * kPart, kPart, kPart});
  ASSERT_TRUE(manager().AddModel(tp).ok());
  const auto tokens = Tokens(1, 3);
  for (uint32_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(fixture_->Found(tp, tokens), 0u);
    EXPECT_FALSE(fixture_->Fetch(tp, tokens, 0, 0));
    const auto stored = rank == 3 ? Tokens(1, 2) : tokens;  // rank 3 lacks block 2
    EXPECT_THAT(fixture_->Store(tp, stored, 0, rank), Each(kStored));
  }
  EXPECT_EQ(fixture_->Found(tp, tokens), 2u);
  for (uint32_t rank = 0; rank < 4; ++rank) EXPECT_TRUE(fixture_->Fetch(tp, tokens, 1, rank));
  EXPECT_FALSE(fixture_->Fetch(tp, tokens, 2, 0));
}

TEST_F(TierManagerTest, LayerGroupsAreCountedApart) {
  Start({.ram = 64 * kPart});
  const ModelSpec hybrid = OpaqueModel("hybrid", {kPart, kPart, kPart, kPart}, 4, /*groups=*/2);
  ASSERT_TRUE(manager().AddModel(hybrid).ok());
  const auto tokens = Tokens(1, 4);
  fixture_->Store(hybrid, tokens, 0, 0);
  fixture_->Store(hybrid, tokens, 0, 1);
  fixture_->Store(hybrid, Tokens(1, 2), 0, 2);
  fixture_->Store(hybrid, Tokens(1, 2), 0, 3);
  PromptRef prompt = fixture_->Prompt(hybrid, tokens);
  const auto result = manager().Lookup(prompt, {});
  EXPECT_EQ(result->blocks, 2u);
  EXPECT_THAT(result->group_blocks, ElementsAre(4u, 2u));
  EXPECT_TRUE(fixture_->Fetch(hybrid, tokens, 3, 1));
  EXPECT_FALSE(fixture_->Fetch(hybrid, tokens, 3, 2));
}

TEST_F(TierManagerTest, TailsLeaveBeforeHeads) {
  Start({.ram = 64 * kPart});
  for (uint32_t call = 0; call < 6; ++call) {  // one prompt in several calls
    fixture_->Store(model_, Tokens(1, 8 * (call + 1)), 8 * call);
  }
  for (uint32_t other = 2; other < 6; ++other) fixture_->Store(model_, Tokens(other, 8));
  EXPECT_EQ(fixture_->Found(model_, Tokens(1, 48)), 32u);
  EXPECT_EQ(manager().stats().blocks, 64u);
}

TEST_F(TierManagerTest, UsingATailRefreshesItsAncestors) {
  Start({.ram = 64 * kPart});
  const auto tokens = Tokens(1, 48);
  fixture_->Store(model_, tokens);
  fixture_->Store(model_, Tokens(2, 16));
  EXPECT_TRUE(fixture_->Fetch(model_, tokens, 47));
  fixture_->Store(model_, Tokens(3, 16));  // evicts prompt 2, the least recent now
  EXPECT_EQ(fixture_->Found(model_, tokens), 48u);
  EXPECT_EQ(fixture_->Found(model_, Tokens(2, 16)), 0u);
}

TEST_F(TierManagerTest, MakingRoomSparesBlocksOfTheSameCall) {
  Start({.ram = 4 * kPart});
  const auto one = Tokens(1, 4);
  fixture_->Store(model_, one);
  const auto two = Join(Tokens(1, 2), Tokens(2, 2));
  EXPECT_THAT(fixture_->Store(model_, two), ElementsAre(kPresent, kPresent, kStored, kStored));
  EXPECT_EQ(fixture_->Found(model_, two), 4u);
  EXPECT_EQ(fixture_->Found(model_, one), 2u);
}

TEST_F(TierManagerTest, TooLongAStoreKeepsItsLeadingBlocks) {
  Start({.ram = 4 * kPart});
  const auto tokens = Tokens(1, 7);
  EXPECT_THAT(fixture_->Store(model_, tokens),
              ElementsAre(kStored, kStored, kStored, kStored, kRejected, kRejected, kRejected));
  EXPECT_EQ(fixture_->Found(model_, tokens), 4u);
  PromptRef prompt = fixture_->Prompt(model_, tokens);
  auto session = manager().BeginStore(prompt, 0, 7, 0);
  EXPECT_FALSE((*session)->Reserve(4, fixture_->deadline()));
  EXPECT_EQ((*session)->reason(4), RejectReason::kNoSpace);
  EXPECT_FALSE((*session)->Reserve(5, fixture_->deadline()));
  EXPECT_EQ((*session)->reason(5), RejectReason::kNoSpace);
}

TEST_F(TierManagerTest, PartLargerThanTheTierEvictsNothing) {
  Start({.ram = 64 * kPart});
  const ModelSpec huge = OpaqueModel("huge", {65 * kPart});
  ASSERT_TRUE(manager().AddModel(huge).ok());
  fixture_->Store(model_, Tokens(1, 8));
  EXPECT_THAT(fixture_->Store(huge, Tokens(2, 1)), Each(kRejected));
  EXPECT_EQ(fixture_->Found(model_, Tokens(1, 8)), 8u);
  EXPECT_EQ(manager().stats().tiers[1].evictions, 0u);
}

TEST_F(TierManagerTest, PartLargerThanTheGpuTierEvictsNothingThere) {
  Start({.gpu = 16 * kPart, .ram = 256 * kPart});
  const ModelSpec huge = OpaqueModel("huge", {17 * kPart});
  ASSERT_TRUE(manager().AddModel(huge).ok());
  fixture_->Store(model_, Tokens(1, 8));
  fixture_->Store(huge, Tokens(2, 1));
  LookupOptions options;
  options.promote_to = TierKind::kGpu;
  const auto small_tokens = Tokens(1, 8), huge_tokens = Tokens(2, 1);
  PromptRef small_prompt = fixture_->Prompt(model_, small_tokens);
  PromptRef huge_prompt = fixture_->Prompt(huge, huge_tokens);
  ASSERT_TRUE(manager().Lookup(small_prompt, options).ok());
  fixture_->executor().RunAll();
  EXPECT_EQ(manager().stats().tiers[0].blocks, 8u);
  ASSERT_TRUE(manager().Lookup(huge_prompt, options).ok());
  fixture_->executor().RunAll();
  EXPECT_EQ(manager().stats().tiers[0].blocks, 8u);
  EXPECT_EQ(manager().stats().tiers[0].evictions, 0u);
}

TEST_F(TierManagerTest, BlockWithoutItsParentIsRefused) {
  Start({.ram = 16 * kPart});
  const auto tokens = Tokens(1, 4);
  PromptRef prompt = fixture_->Prompt(model_, tokens);
  {
    auto session = manager().BeginStore(prompt, 2, 2, 0);
    EXPECT_FALSE((*session)->Reserve(2, fixture_->deadline()));
    EXPECT_EQ((*session)->reason(2), RejectReason::kNoParent);
  }
  fixture_->Store(model_, Tokens(1, 2));
  EXPECT_THAT(fixture_->Store(model_, tokens, 2), Each(kStored));
}

TEST_F(TierManagerTest, WhatWasNotCommittedLeavesNothing) {
  Start({.ram = 4 * kPart});
  const auto tokens = Tokens(1, 4);
  {
    PromptRef prompt = fixture_->Prompt(model_, tokens);
    auto session = manager().BeginStore(prompt, 0, 4, 0);
    ASSERT_TRUE((*session)->Reserve(0, fixture_->deadline()));
    EXPECT_EQ(fixture_->Found(model_, tokens), 0u);
    EXPECT_EQ(manager().stats().tiers[1].usage.used_bytes, kPart);
  }
  EXPECT_EQ(manager().stats().tiers[1].usage.used_bytes, 0u);
  EXPECT_THAT(fixture_->Store(model_, tokens), Each(kStored));
}

TEST_F(TierManagerTest, FasterOfTwoStoresWinsAndTheOtherIsANoOp) {
  Start({.ram = 8 * kPart});
  const auto tokens = Tokens(1, 1);
  PromptRef a = fixture_->Prompt(model_, tokens), b = fixture_->Prompt(model_, tokens);
  auto slow = manager().BeginStore(a, 0, 1, 0);
  auto fast = manager().BeginStore(b, 0, 1, 0);
  ASSERT_TRUE((*slow)->Reserve(0, fixture_->deadline()));
  ASSERT_TRUE((*fast)->Reserve(0, fixture_->deadline()));
  std::memset((*fast)->Buffer(0).data(), 1, kPart);
  std::memset((*slow)->Buffer(0).data(), 2, kPart);
  (*fast)->Commit(0, 111);
  (*slow)->Commit(0, 222);
  EXPECT_EQ((*fast)->outcome(0), kStored);
  EXPECT_EQ((*slow)->outcome(0), kPresent);
  EXPECT_EQ(manager().stats().checksum_mismatches, 1u);
  slow->reset();
  fast->reset();
  PromptRef prompt = fixture_->Prompt(model_, tokens);
  auto fetch = manager().BeginFetch(prompt, 0, 1, 0);
  const auto view = (*fetch)->Next(0, fixture_->deadline());
  EXPECT_EQ(view->bytes[0], std::byte{1});
  EXPECT_EQ(view->checksum, 111u);
}

TEST_F(TierManagerTest, LeaseKeepsBlocksUntilItEnds) {
  Start({.ram = 8 * kPart});
  const auto tokens = Tokens(1, 4);
  fixture_->Store(model_, tokens);
  const LookupResult leased = LookupLeased(tokens, milliseconds(500));
  ASSERT_NE(leased.lease, 0u);
  EXPECT_EQ(manager().stats().pinned_blocks, 4u);
  for (uint32_t i = 2; i < 6; ++i) fixture_->Store(model_, Tokens(i, 4));
  EXPECT_EQ(fixture_->Found(model_, tokens), 4u);
  fixture_->clock().Advance(milliseconds(499));
  manager().Tick();
  EXPECT_TRUE(manager().Renew(leased.lease, milliseconds(100)).ok());
  fixture_->clock().Advance(milliseconds(100));
  EXPECT_TRUE(absl::IsNotFound(manager().Renew(leased.lease, milliseconds(1))));
  EXPECT_TRUE(absl::IsNotFound(manager().BeginFetch(leased.lease, 0, 1, 0).status()));
  manager().Tick();
  EXPECT_EQ(manager().stats().pinned_blocks, 0u);
  EXPECT_EQ(manager().stats().expired_leases, 1u);
  for (uint32_t i = 2; i < 6; ++i) fixture_->Store(model_, Tokens(i, 4));
  EXPECT_EQ(fixture_->Found(model_, tokens), 0u);
}

TEST_F(TierManagerTest, AllPinnedIsARefusalNotAWait) {
  Start({.ram = 4 * kPart});
  fixture_->Store(model_, Tokens(1, 4));
  const LookupResult leased = LookupLeased(Tokens(1, 4), milliseconds(500));
  EXPECT_THAT(fixture_->Store(model_, Tokens(2, 2)), Each(kRejected));
  EXPECT_TRUE(manager().Release(leased.lease).ok());
  EXPECT_TRUE(absl::IsNotFound(manager().Release(leased.lease)));
  EXPECT_THAT(fixture_->Store(model_, Tokens(2, 2)), Each(kStored));
}

TEST_F(TierManagerTest, LeasesPerClientAreLimited) {
  Start({.ram = 4 * kPart}, {.max_leases_per_client = 2});
  fixture_->Store(model_, Tokens(1, 1));
  LookupLeased(Tokens(1, 1), milliseconds(500));
  const LookupResult second = LookupLeased(Tokens(1, 1), milliseconds(500));
  const auto tokens = Tokens(1, 1);
  PromptRef prompt = fixture_->Prompt(model_, tokens);
  LookupOptions options;
  options.lease = milliseconds(500);
  options.client = "test";
  const auto refused = manager().Lookup(prompt, options);
  EXPECT_TRUE(absl::IsResourceExhausted(refused.status())) << refused.status();
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("limit is 2"));
  EXPECT_TRUE(manager().Release(second.lease).ok());
  LookupLeased(tokens, milliseconds(500));
}

TEST_F(TierManagerTest, BytesStayWhileAViewLivesWhateverHappens) {
  Start({.ram = 4 * kPart});
  const auto tokens = Tokens(1, 2);
  fixture_->Store(model_, tokens);
  const LookupResult leased = LookupLeased(tokens, milliseconds(200));
  auto fetch = manager().BeginFetch(leased.lease, 0, 2, 0);
  std::optional<PartView> view = *(*fetch)->Next(1, fixture_->deadline());
  fetch->reset();
  const std::vector<std::byte> before(view->bytes.begin(), view->bytes.end());
  fixture_->clock().Advance(milliseconds(200));
  manager().Tick();
  for (uint32_t i = 2; i < 10; ++i) fixture_->Store(model_, Tokens(i, 2));
  EXPECT_EQ(*manager().ResetModel(SpecId(model_)), 4u);
  EXPECT_EQ(fixture_->Found(model_, tokens), 0u);
  EXPECT_EQ(std::memcmp(before.data(), view->bytes.data(), kPart), 0);
  view.reset();
  EXPECT_EQ(manager().stats().tiers[1].usage.used_bytes, 0u);
}

TEST_F(TierManagerTest, ResetDropsOneNamespaceAndStoresInFlightDoNotReappear) {
  Start({.ram = 32 * kPart});
  const auto tokens = Tokens(1, 4);
  const Namespace a{"a", "", ""}, b{"b", "", ""};
  fixture_->Store(model_, tokens, 0, 0, 0, a);
  fixture_->Store(model_, tokens, 0, 0, 0, b);
  const auto longer = Tokens(1, 5);
  PromptRef prompt = fixture_->Prompt(model_, longer, a);
  const std::string canonical = prompt.canonical_root;
  auto session = manager().BeginStore(prompt, 4, 1, 0);
  ASSERT_TRUE((*session)->Reserve(4, fixture_->deadline()));
  EXPECT_EQ(*manager().ResetNamespace(SpecId(model_), canonical), 4u);
  (*session)->Commit(4, 0);
  EXPECT_EQ((*session)->reason(4), RejectReason::kReset);
  session->reset();
  EXPECT_EQ(fixture_->Found(model_, longer, a), 0u);
  EXPECT_EQ(fixture_->Found(model_, tokens, b), 4u);
  EXPECT_THAT(fixture_->Store(model_, tokens, 0, 0, 9, a), Each(kStored));
  EXPECT_TRUE(fixture_->Fetch(model_, tokens, 3, 0, 9, a));
}

TEST_F(TierManagerTest, RemovedModelIsUnknown) {
  Start({.ram = 32 * kPart});
  fixture_->Store(model_, Tokens(1, 4));
  EXPECT_EQ(*manager().RemoveModel(SpecId(model_)), 4u);
  EXPECT_TRUE(manager().ListModels().empty());
  const auto tokens = Tokens(1, 4);
  PromptRef prompt = fixture_->Prompt(model_, tokens);
  EXPECT_TRUE(absl::IsNotFound(manager().Lookup(prompt, {}).status()));
  ASSERT_TRUE(manager().AddModel(model_).ok());
  EXPECT_EQ(fixture_->Found(model_, tokens), 0u);
}

TEST_F(TierManagerTest, ShrinkKeepsWhatStillFitsMostRecentFirst) {
  constexpr uint64_t kMiB = 1 << 20;
  Start({.ram = 64 * kMiB});
  const ModelSpec big = OpaqueModel("big", {kMiB / 4});
  ASSERT_TRUE(manager().AddModel(big).ok());
  for (uint32_t i = 1; i <= 8; ++i) {
    EXPECT_THAT(fixture_->Store(big, Tokens(i, 32)), Each(kStored));
  }
  const auto shrunk = manager().SetCapacity(TierKind::kRam, 16 * kMiB);
  ASSERT_TRUE(shrunk.ok()) << shrunk.status();
  EXPECT_EQ(shrunk->previous_bytes, 64 * kMiB);
  EXPECT_LE(shrunk->backed_bytes, 16 * kMiB);
  EXPECT_EQ(shrunk->evicted_blocks, 256u - 64u);
  for (uint32_t block = 0; block < 32; ++block) {
    EXPECT_TRUE(fixture_->Fetch(big, Tokens(7, 32), block));
    EXPECT_TRUE(fixture_->Fetch(big, Tokens(8, 32), block));
  }
  EXPECT_EQ(fixture_->Found(big, Tokens(6, 32)), 0u);
  const auto grown = manager().SetCapacity(TierKind::kRam, 32 * kMiB);
  ASSERT_TRUE(grown.ok()) << grown.status();
  EXPECT_THAT(fixture_->Store(big, Tokens(9, 64)), Each(kStored));
  EXPECT_EQ(fixture_->Found(big, Tokens(8, 32)), 32u);
}

TEST_F(TierManagerTest, ShrinkUnderPinsGoesOnWhenTheyEnd) {
  Start({.ram = 1024 * kPart});
  fixture_->Store(model_, Tokens(1, 1000));
  const LookupResult leased = LookupLeased(Tokens(1, 1000), milliseconds(200));
  const auto shrunk = manager().SetCapacity(TierKind::kRam, 128 * kPart);
  ASSERT_TRUE(shrunk.ok()) << shrunk.status();
  EXPECT_EQ(fixture_->Found(model_, Tokens(1, 1000)), 1000u);
  EXPECT_THAT(fixture_->Store(model_, Tokens(2, 1)), Each(kRejected));
  ASSERT_TRUE(manager().Release(leased.lease).ok());
  manager().Tick();
  EXPECT_LE(manager().stats().tiers[1].usage.backed_bytes, 128 * kPart);
  EXPECT_EQ(fixture_->Found(model_, Tokens(1, 1000)), 128u);
}

TEST_F(TierManagerTest, MemoryMovesBetweenModelsOfDifferentPartSizes) {
  Start({.ram = 64 << 20});
  const ModelSpec big = OpaqueModel("big", {3 << 20});
  ASSERT_TRUE(manager().AddModel(big).ok());
  const ModelSpec mid = OpaqueModel("mid", {100000});
  ASSERT_TRUE(manager().AddModel(mid).ok());
  for (int round = 0; round < 3; ++round) {
    const uint32_t seed = 10 * static_cast<uint32_t>(round);
    EXPECT_THAT(fixture_->Store(mid, Tokens(seed + 1, 600)), Each(kStored));
    EXPECT_EQ(fixture_->Found(mid, Tokens(seed + 1, 600)), 600u);
    EXPECT_THAT(fixture_->Store(big, Tokens(seed + 2, 18)), Each(kStored));
    EXPECT_EQ(fixture_->Found(big, Tokens(seed + 2, 18)), 18u);
    EXPECT_TRUE(fixture_->Fetch(big, Tokens(seed + 2, 18), 17));
  }
}

TEST_F(TierManagerTest, EvictedBlocksGoToTheLowerTierAndComeBack) {
  Start({.ram = 8 * kPart, .ssd = 64 * kPart});
  for (uint32_t i = 1; i <= 5; ++i) fixture_->Store(model_, Tokens(i, 8), 0, 0, i);
  for (uint32_t i = 1; i <= 5; ++i) {
    EXPECT_EQ(fixture_->Found(model_, Tokens(i, 8)), 8u);
    for (uint32_t block = 0; block < 8; ++block) {
      EXPECT_TRUE(fixture_->Fetch(model_, Tokens(i, 8), block, 0, i));
    }
  }
  const ManagerStats stats = manager().stats();
  EXPECT_EQ(stats.blocks, 40u);
  // Every block was written down once; promotion keeps the copy below.
  EXPECT_EQ(stats.tiers[2].demotions, 40u);
  EXPECT_GE(stats.tiers[1].promotions, 32u);
}

TEST_F(TierManagerTest, FetchLongerThanRamIsServedThroughBuffers) {
  Start({.ram = 4 * kPart, .ssd = 64 * kPart});
  const auto tokens = Tokens(1, 4);
  fixture_->Store(model_, tokens);
  for (uint32_t i = 2; i < 5; ++i) fixture_->Store(model_, Tokens(i, 4));
  PromptRef prompt = fixture_->Prompt(model_, tokens);
  PromptRef other = fixture_->Prompt(model_, tokens);
  const auto pinned_tokens = Tokens(4, 4);
  const LookupResult pinned =
      LookupLeased(pinned_tokens, milliseconds(500));  // RAM is full of pins
  ASSERT_EQ(pinned.blocks, 4u);
  auto fetch = manager().BeginFetch(prompt, 0, 4, 0);
  for (uint32_t block = 0; block < 4; ++block) {
    EXPECT_TRUE((*fetch)->WouldBlock(block));
    const auto view = (*fetch)->Next(block, fixture_->deadline());
    ASSERT_TRUE(view.ok()) << view.status();
    EXPECT_EQ(view->tier, TierKind::kSsd);
    EXPECT_EQ(PayloadChecksum(view->bytes.data(), view->bytes.size()), view->checksum);
  }
}

TEST_F(TierManagerTest, LookupSaysWhichTierAndPromotes) {
  Start({.gpu = 4 * kPart, .ram = 4 * kPart, .ssd = 64 * kPart});
  fixture_->Store(model_, Tokens(1, 4));
  fixture_->Store(model_, Tokens(2, 2));
  const auto tokens = Tokens(1, 4);
  PromptRef prompt = fixture_->Prompt(model_, tokens);
  auto result = manager().Lookup(prompt, {});
  EXPECT_THAT(result->runs,
              ElementsAre(std::pair(TierKind::kRam, 2u), std::pair(TierKind::kSsd, 2u)));
  for (TierKind target : {TierKind::kRam, TierKind::kGpu}) {
    prompt = fixture_->Prompt(model_, tokens);
    LookupOptions options;
    options.promote_to = target;
    ASSERT_TRUE(manager().Lookup(prompt, options).ok());
    fixture_->executor().RunAll();
    prompt = fixture_->Prompt(model_, tokens);
    result = manager().Lookup(prompt, {});
    EXPECT_THAT(result->runs, ElementsAre(std::pair(target, 4u)));
  }
  for (uint32_t block = 0; block < 4; ++block) EXPECT_TRUE(fixture_->Fetch(model_, tokens, block));
}

TEST_F(TierManagerTest, BadRangesAreNamed) {
  Start({.ram = 8 * kPart});
  const auto tokens = Tokens(1, 4);
  PromptRef prompt = fixture_->Prompt(model_, tokens);
  EXPECT_THAT(std::string(manager().BeginFetch(prompt, 2, 5, 0).status().message()),
              HasSubstr("the prompt has 4 full blocks"));
  EXPECT_FALSE(manager().BeginFetch(prompt, 2, 2, 0).ok());
  prompt = fixture_->Prompt(model_, tokens);
  EXPECT_THAT(std::string(manager().BeginFetch(prompt, 0, 1, 1).status().message()),
              HasSubstr("the model has 1 parts"));
  prompt = fixture_->Prompt(model_, tokens);
  EXPECT_TRUE(absl::IsInvalidArgument(manager().BeginStore(prompt, 4, 1, 0).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(manager().BeginStore(prompt, 0, 0, 0).status()));
}

TEST_F(TierManagerTest, CountersTellTheTruth) {
  Start({.ram = 64 * kPart});
  fixture_->Store(model_, Tokens(1, 8));
  for (int i = 0; i < 3; ++i) fixture_->Found(model_, Tokens(1, 8));
  for (uint32_t i = 0; i < 3; ++i) fixture_->Found(model_, Join(Tokens(1, 4), Tokens(9 + i, 4)));
  for (uint32_t i = 0; i < 4; ++i) fixture_->Found(model_, Tokens(20 + i, 8));
  const ManagerStats stats = manager().stats();
  EXPECT_EQ(stats.lookups, 10u);
  EXPECT_EQ(stats.lookup_blocks, 80u);
  EXPECT_EQ(stats.hit_blocks, 36u);
  EXPECT_EQ(stats.tiers[1].hits, 36u);
  EXPECT_EQ(stats.tiers[1].bytes_written, 8 * kPart);
}

// Two ranks' fetches that overlap count once, and a client that does not know its rate tells only
// what it verified.
TEST_F(TierManagerTest, ReleaseTellsWhatTheLeaseSaved) {
  using std::chrono::milliseconds;
  Start({.ram = 64 * kPart});
  const auto tokens = Tokens(1, 8);
  fixture_->Store(model_, tokens);
  const auto lease = [&](double rate) {
    PromptRef prompt = fixture_->Prompt(model_, tokens);
    LookupOptions options;
    options.lease = std::chrono::hours(1);
    options.prefill_tokens_per_second = rate;
    return manager().Lookup(prompt, options)->lease;
  };
  const LeaseId known = lease(100);
  {
    const auto first = manager().BeginFetch(known, 0, 8, 0);
    const auto second = manager().BeginFetch(known, 0, 8, 0);
    fixture_->clock().Advance(milliseconds(5));  // nobody's: neither fetch has begun
    std::optional<FetchClock::Running> one((*first)->fetch_clock());
    fixture_->clock().Advance(milliseconds(20));
    std::optional<FetchClock::Running> two((*second)->fetch_clock());
    fixture_->clock().Advance(milliseconds(10));
    one.reset();
    fixture_->clock().Advance(milliseconds(10));
    two.reset();
    fixture_->clock().Advance(milliseconds(50));
  }
  const absl::Status too_many = manager().Release(known, 9);
  EXPECT_EQ(too_many.message(), "verified_blocks is 9, the lease has 8 blocks");
  EXPECT_EQ(manager().stats().verified_blocks, 0u);
  ASSERT_TRUE(manager().Release(known, 6).ok());
  EXPECT_EQ(manager().stats().verified_blocks, 6u);
  EXPECT_DOUBLE_EQ(manager().stats().prefill_seconds, 6 * 4 / 100.0);
  EXPECT_DOUBLE_EQ(manager().stats().lease_fetch_seconds, 0.040);

  ASSERT_TRUE(manager().Release(lease(0), 8).ok());
  ASSERT_TRUE(manager().Release(lease(100), 0).ok());
  EXPECT_EQ(manager().stats().verified_blocks, 14u);
  EXPECT_DOUBLE_EQ(manager().stats().prefill_seconds, 6 * 4 / 100.0);
  EXPECT_DOUBLE_EQ(manager().stats().lease_fetch_seconds, 0.040);
}

TEST_F(TierManagerTest, FetchedBlocksCountForTheTierTheyCameFrom) {
  Start({.ram = 8 * kPart, .ssd = 64 * kPart});
  for (uint32_t i = 1; i <= 3; ++i) fixture_->Store(model_, Tokens(i, 8), 0, 0, i);
  for (int round = 0; round < 2; ++round) {  // from SSD, then from RAM
    for (uint32_t block = 0; block < 8; ++block) {
      EXPECT_TRUE(fixture_->Fetch(model_, Tokens(1, 8), block, 0, 1));
    }
    const ManagerStats stats = manager().stats();
    EXPECT_EQ(stats.tiers[2].fetched_blocks, 8u);
    EXPECT_EQ(stats.tiers[2].fetched_bytes, 8 * kPart);
    EXPECT_EQ(stats.tiers[1].fetched_blocks, 8u * round);
    EXPECT_EQ(stats.tiers[1].fetched_bytes, 8 * kPart * round);
  }
}

TEST_F(TierManagerTest, BlocksOfSeveralPartsAreFetchedOnce) {
  Start({.ram = 64 * kPart});
  const ModelSpec model = OpaqueModel("two parts", {kPart, 2 * kPart});
  ASSERT_TRUE(manager().AddModel(model).ok());
  for (uint32_t part = 0; part < 2; ++part) fixture_->Store(model, Tokens(1, 3), 0, part);
  for (uint32_t block = 0; block < 3; ++block) {
    for (uint32_t part = 0; part < 2; ++part) {
      EXPECT_TRUE(fixture_->Fetch(model, Tokens(1, 3), block, part));
    }
  }
  EXPECT_EQ(manager().stats().tiers[1].fetched_blocks, 3u);
  EXPECT_EQ(manager().stats().tiers[1].fetched_bytes, 9 * kPart);
}

}  // namespace
}  // namespace kvtier
