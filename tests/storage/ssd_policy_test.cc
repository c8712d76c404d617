// What TierManager does with the log on SSD: what is written when, what stays when segments leave,
// what is there after a restart.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "tests/support/tier_fixture.h"

namespace kvtier {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Each;

constexpr uint64_t kPart = 4096;
constexpr uint64_t kSegment = 6 * kPart;
constexpr int kSsd = static_cast<int>(TierKind::kSsd);
constexpr StoreOutcome kStored = StoreOutcome::kStored;

class SsdPolicyTest : public ::testing::Test {
 protected:
  void Start(uint64_t ram_parts, uint64_t ssd_parts, ManagerOptions options = {}) {
    fixture_.emplace(
        TierSizes{.ram = ram_parts * kPart, .ssd = ssd_parts * kPart, .ssd_segment = kSegment},
        options);
    for (const ModelSpec& model : models_) ASSERT_TRUE(manager().AddModel(model).ok());
  }
  void TearDown() override { manager().CheckInvariants(); }
  TierManager& manager() { return fixture_->manager(); }
  const TierStats& ssd() {
    stats_ = manager().stats();
    return stats_.tiers[kSsd];
  }
  void Restart() { fixture_->Restart(models_); }

  // Stores prompts nobody asks for again, `blocks` blocks in all.
  void Churn(uint32_t blocks) {
    for (uint32_t i = 0; i < blocks / 4; ++i) fixture_->Store(model_, Tokens(++churn_, 4));
  }
  LeaseId Lease(const std::vector<uint32_t>& tokens, uint32_t blocks) {
    PromptRef prompt = fixture_->Prompt(model_, tokens);
    LookupOptions options;
    options.lease = seconds(60);
    options.client = "test";
    const auto result = manager().Lookup(prompt, options);
    EXPECT_TRUE(result.ok());
    EXPECT_EQ(result->blocks, blocks);
    return result->lease;
  }
  absl::Status StoreDurable(const std::vector<uint32_t>& tokens) {
    fixture_->Store(model_, tokens);
    PromptRef prompt = fixture_->Prompt(model_, tokens);
    const auto blocks = static_cast<uint32_t>(prompt.cursor.blocks());
    auto session = manager().BeginStore(prompt, blocks - 1, 1, 0);
    EXPECT_TRUE(session.ok());
    return (*session)->MakeDurable(fixture_->deadline());
  }
  void ExpectAll(const std::vector<uint32_t>& tokens, const Namespace& name = {}) {
    const auto blocks = static_cast<uint32_t>(tokens.size() / 4);
    EXPECT_EQ(fixture_->Found(model_, tokens, name), blocks);
    for (uint32_t block = 0; block < blocks; ++block) {
      EXPECT_TRUE(fixture_->Fetch(model_, tokens, block, 0, 0, name)) << block;
    }
  }

  const ModelSpec model_ = OpaqueModel("m", {kPart});
  const ModelSpec pair_ = OpaqueModel("pair", {kPart, kPart});
  const std::vector<ModelSpec> models_ = {model_, pair_};
  std::optional<TierFixture> fixture_;
  ManagerStats stats_;
  uint32_t churn_ = 1000;
};

TEST_F(SsdPolicyTest, NothingIsWrittenBeforeRamIsFull) {
  Start(64, 256);
  fixture_->Store(model_, Tokens(1, 64));
  EXPECT_EQ(fixture_->ssd().counters().writes, 0u);
  fixture_->Store(model_, Tokens(2, 8));
  EXPECT_GT(ssd().blocks, 0u);
  ExpectAll(Tokens(1, 64));
}

TEST_F(SsdPolicyTest, ABlockThatIsOnSsdIsNotWrittenAgain) {
  Start(16, 256);
  for (int round = 0; round < 5; ++round) {
    for (uint32_t i = 1; i <= 6; ++i) {
      fixture_->Store(model_, Tokens(i, 8));
      ExpectAll(Tokens(i, 8));
    }
  }
  EXPECT_EQ(stats_.ssd_carried_blocks, 0u);
  EXPECT_LE(ssd().demotions, 48u);
  EXPECT_GT(ssd().hits, 48u);
}

// The head of a hot prompt is always in RAM, and yet what is below it must be found after a crash.
TEST_F(SsdPolicyTest, HeadsAreOnSsdWithTheirTails) {
  Start(32, 512);
  const auto head = Tokens(1, 4);
  for (uint32_t i = 0; i < 12; ++i) {
    EXPECT_EQ(fixture_->Found(model_, head), i == 0 ? 0u : 4u);
    fixture_->Store(model_, Join(head, Tokens(100 + i, 8)));
  }
  EXPECT_EQ(fixture_->Found(model_, head), 4u);
  fixture_->ssd_writer().RunAll();
  const uint64_t on_ssd = ssd().blocks;
  ASSERT_GT(on_ssd, 60u);
  Restart();
  EXPECT_EQ(manager().stats().ssd_restored_blocks, on_ssd);
  uint64_t found = 4;
  for (uint32_t i = 0; i < 12; ++i) {
    const auto tokens = Join(head, Tokens(100 + i, 8));
    const uint32_t blocks = fixture_->Found(model_, tokens);
    ASSERT_GE(blocks, 4u);
    found += blocks - 4;
    for (uint32_t block = 0; block < blocks; ++block) {
      EXPECT_TRUE(fixture_->Fetch(model_, tokens, block));
    }
  }
  EXPECT_EQ(found, on_ssd);
}

TEST_F(SsdPolicyTest, WhatWasHitGetsASecondChanceAndTheRestLeaves) {
  Start(16, 64);
  const auto hot = Tokens(1, 8), cold = Tokens(2, 8);
  fixture_->Store(model_, hot);
  fixture_->Store(model_, cold);
  Churn(24);
  for (int round = 0; round < 8; ++round) {
    ExpectAll(hot);
    Churn(24);
  }
  ExpectAll(hot);
  EXPECT_EQ(fixture_->Found(model_, cold), 0u);
  EXPECT_GT(manager().stats().ssd_carried_blocks, 8u);
  EXPECT_LE(ssd().usage.used_bytes, 64 * kPart + kSegment);
}

// Second chances have a bound: new blocks find room, and writing does not multiply.
TEST_F(SsdPolicyTest, ATierInUseAllOverStillTakesNewBlocks) {
  Start(16, 128);
  for (uint32_t i = 1; i <= 40; ++i) {
    fixture_->Store(model_, Tokens(i, 4));
    for (uint32_t j = 1; j <= i; ++j) fixture_->Found(model_, Tokens(j, 4));
  }
  const uint64_t before = ssd().bytes_written;
  for (uint32_t i = 41; i <= 100; ++i) {
    ASSERT_TRUE(StoreDurable(Tokens(i, 4)).ok()) << i;
    for (uint32_t j = 1; j <= i; ++j) fixture_->Found(model_, Tokens(j, 4));
  }
  EXPECT_LE(ssd().bytes_written - before, 60 * 4 * kPart * 5 + 128 * kPart);
  EXPECT_EQ(fixture_->Found(model_, Tokens(100, 4)), 4u);
}

TEST_F(SsdPolicyTest, ResettingWhatWasNeverOnSsdWritesNothing) {
  Start(32, 256);
  fixture_->Store(model_, Tokens(1, 8));
  const std::string root = fixture_->Prompt(model_, Tokens(1, 8)).canonical_root;
  fixture_->ssd().SetWritable(absl::UnavailableError("disk is full"));  // would fail
  EXPECT_EQ(*manager().ResetNamespace(SpecId(model_), root), 8u);
  fixture_->ssd().SetWritable(absl::OkStatus());
  ASSERT_TRUE(StoreDurable(Tokens(1, 8)).ok());
  fixture_->ssd().SetWritable(absl::UnavailableError("disk is full"));
  EXPECT_FALSE(manager().ResetNamespace(SpecId(model_), root).ok());
  fixture_->ssd().SetWritable(absl::OkStatus());
}

TEST_F(SsdPolicyTest, ALeaseKeepsItsBlocksHoweverMuchIsStored) {
  Start(32, 64);
  const auto leased = Tokens(1, 8);
  fixture_->Store(model_, leased);
  Churn(40);
  const LeaseId lease = Lease(leased, 8);
  Churn(400);
  auto fetch = manager().BeginFetch(lease, 0, 8, 0);
  ASSERT_TRUE(fetch.ok());
  for (uint32_t block = 0; block < 8; ++block) {
    EXPECT_TRUE((*fetch)->Next(block, fixture_->deadline()).ok());
  }
  fetch->reset();
  ASSERT_TRUE(manager().Release(lease).ok());
  Churn(400);
  EXPECT_EQ(fixture_->Found(model_, leased), 0u);
}

TEST_F(SsdPolicyTest, ARestartKeepsNamespacesApart) {
  Start(32, 256);
  const Namespace ours{"tenant", "salt", ""}, theirs{"tenant", "other", ""};
  fixture_->Store(model_, Tokens(1, 8), 0, 0, 0, ours);
  ASSERT_EQ(manager().WriteDownAll(fixture_->deadline()), 0u);
  Restart();
  EXPECT_EQ(fixture_->Found(model_, Tokens(1, 8), theirs), 0u);
  EXPECT_EQ(fixture_->Found(model_, Tokens(1, 8)), 0u);
  EXPECT_EQ(fixture_->Found(model_, Tokens(2, 8), ours), 0u);
  ExpectAll(Tokens(1, 8), ours);
  // And a store goes on where it was.
  EXPECT_THAT(fixture_->Store(model_, Join(Tokens(1, 8), Tokens(3, 2)), 8, 0, 0, ours),
              Each(kStored));
}

TEST_F(SsdPolicyTest, WhatWasResetStaysAwayAfterARestart) {
  Start(32, 256);
  const Namespace gone{"gone", "", ""}, stays{"stays", "", ""};
  fixture_->Store(model_, Tokens(1, 8), 0, 0, 0, gone);
  fixture_->Store(model_, Tokens(1, 8), 0, 0, 0, stays);
  fixture_->Store(pair_, Tokens(1, 4), 0, 0);
  fixture_->Store(pair_, Tokens(1, 4), 0, 1);
  ASSERT_EQ(manager().WriteDownAll(fixture_->deadline()), 0u);
  const std::string root = fixture_->Prompt(model_, Tokens(1, 8), gone).canonical_root;
  EXPECT_EQ(*manager().ResetNamespace(SpecId(model_), root), 8u);
  EXPECT_EQ(*manager().ResetModel(SpecId(pair_)), 4u);
  Restart();
  EXPECT_EQ(fixture_->Found(model_, Tokens(1, 8), gone), 0u);
  EXPECT_EQ(fixture_->Found(pair_, Tokens(1, 4)), 0u);
  ExpectAll(Tokens(1, 8), stays);
  // Stored again it is there again.
  fixture_->Store(model_, Tokens(1, 8), 0, 0, 0, gone);
  ASSERT_EQ(manager().WriteDownAll(fixture_->deadline()), 0u);
  Restart();
  ExpectAll(Tokens(1, 8), gone);
}

TEST_F(SsdPolicyTest, AResetThatTheSsdDoesNotTakeIsAnError) {
  Start(32, 256);
  fixture_->Store(model_, Tokens(1, 8));
  fixture_->ssd().SetWritable(absl::UnavailableError("disk is full"));
  EXPECT_FALSE(manager().ResetModel(SpecId(model_)).ok());
  EXPECT_EQ(fixture_->Found(model_, Tokens(1, 8)), 0u);
  fixture_->ssd().SetWritable(absl::OkStatus());
  EXPECT_TRUE(manager().ResetModel(SpecId(model_)).ok());
}

TEST_F(SsdPolicyTest, DurableIsThereAfterACrashWithAllBeforeIt) {
  Start(64, 256);
  fixture_->Store(model_, Tokens(1, 8));
  ASSERT_TRUE(StoreDurable(Tokens(1, 12)).ok());
  fixture_->Store(model_, Tokens(2, 8));  // not durable
  Restart();
  ExpectAll(Tokens(1, 12));
  EXPECT_EQ(fixture_->Found(model_, Tokens(2, 8)), 0u);
}

TEST_F(SsdPolicyTest, DurableFailsWhenTheSsdTakesNothingAndTheBlocksStayInRam) {
  Start(64, 256);
  fixture_->ssd().FailWrites(1, absl::UnavailableError("no space"));
  EXPECT_FALSE(StoreDurable(Tokens(1, 8)).ok());
  ExpectAll(Tokens(1, 8));
  fixture_->ssd().SetWritable(absl::UnavailableError("read-only"));
  EXPECT_FALSE(StoreDurable(Tokens(1, 8)).ok());
  fixture_->ssd().SetWritable(absl::OkStatus());
  EXPECT_TRUE(StoreDurable(Tokens(1, 8)).ok());
  Restart();
  ExpectAll(Tokens(1, 8));
}

TEST_F(SsdPolicyTest, WriteDownTakesAllOfRamLeasedOrNot) {
  Start(64, 256);
  for (uint32_t i = 1; i <= 6; ++i) fixture_->Store(model_, Tokens(i, 8));
  Lease(Tokens(3, 8), 8);
  EXPECT_EQ(manager().WriteDownAll(fixture_->deadline()), 0u);
  Restart();
  for (uint32_t i = 1; i <= 6; ++i) ExpectAll(Tokens(i, 8));
}

TEST_F(SsdPolicyTest, WriteDownOfMoreThanTheSsdHoldsKeepsTheMostRecent) {
  Start(128, 48);
  for (uint32_t i = 1; i <= 15; ++i) fixture_->Store(model_, Tokens(i, 8));
  EXPECT_GT(manager().WriteDownAll(fixture_->deadline()), 0u);
  Restart();
  ExpectAll(Tokens(15, 8));
  ExpectAll(Tokens(14, 8));
  EXPECT_EQ(fixture_->Found(model_, Tokens(1, 8)), 0u);
}

TEST_F(SsdPolicyTest, WriteDownOutOfTimeKeepsTheMostRecent) {
  Start(64, 256);
  for (uint32_t i = 1; i <= 6; ++i) fixture_->Store(model_, Tokens(i, 8));
  EXPECT_GT(manager().WriteDownAll(fixture_->clock().Now()), 0u);  // one batch is always written
  Restart();
  EXPECT_GT(fixture_->Found(model_, Tokens(6, 8)), 0u);
  EXPECT_EQ(fixture_->Found(model_, Tokens(1, 8)), 0u);
}

TEST_F(SsdPolicyTest, AboveTheWriteLimitBlocksLeaveUnwrittenAndAreCounted) {
  ManagerOptions options;
  options.ssd_write_limit = 16 * kPart;
  Start(16, 1024, options);
  Churn(400);
  EXPECT_LE(ssd().bytes_written, 16 * kPart + 2 * kSegment);
  EXPECT_GT(stats_.ssd_limited_blocks, 300u);
  EXPECT_EQ(stats_.ssd_skipped_blocks, 0u);
  const uint64_t before = ssd().bytes_written;
  fixture_->clock().Advance(seconds(1));
  Churn(400);
  EXPECT_GT(ssd().bytes_written, before + 8 * kPart);
}

TEST_F(SsdPolicyTest, WritesThatFailCostBlocksAndNothingElse) {
  Start(16, 256);
  fixture_->ssd().SetWritable(absl::UnavailableError("disk is full"));
  Churn(80);
  EXPECT_EQ(ssd().blocks, 0u);
  EXPECT_GT(stats_.ssd_skipped_blocks, 40u);
  fixture_->ssd().SetWritable(absl::OkStatus());
  fixture_->ssd().FailWrites(3, absl::UnavailableError("I/O error"));
  Churn(200);
  EXPECT_GT(ssd().blocks, 40u);
  fixture_->Store(model_, Tokens(1, 8));
  ExpectAll(Tokens(1, 8));
}

TEST_F(SsdPolicyTest, WhatCannotBeReadIsAMissOnceAndThenGone) {
  Start(16, 256);
  const auto tokens = Tokens(1, 8);
  fixture_->Store(model_, tokens);
  Churn(64);
  ASSERT_EQ(fixture_->Found(model_, tokens), 8u);
  fixture_->ssd().FailReads(1, absl::DataLossError("bad checksum"));
  EXPECT_FALSE(fixture_->Fetch(model_, tokens, 2));
  EXPECT_EQ(manager().stats().checksum_failures, 1u);
  EXPECT_EQ(fixture_->Found(model_, tokens), 2u);
  const uint64_t reads = fixture_->ssd().counters().reads;
  EXPECT_FALSE(fixture_->Fetch(model_, tokens, 2));
  EXPECT_EQ(fixture_->ssd().counters().reads, reads);
  EXPECT_THAT(fixture_->Store(model_, tokens, 2),
              testing::AllOf(testing::SizeIs(6), testing::Contains(kStored)));
  ExpectAll(tokens);
}

TEST_F(SsdPolicyTest, ATierThatIsGettingWellIsAMissAndLosesNothing) {
  Start(16, 256);
  const auto tokens = Tokens(1, 8);
  fixture_->Store(model_, tokens);
  Churn(64);
  fixture_->ssd().FailReads(1, absl::UnavailableError("reopening"));
  EXPECT_FALSE(fixture_->Fetch(model_, tokens, 7));
  ExpectAll(tokens);
}

// A Store that is longer than RAM goes on on SSD, and a Fetch of it is served whole.
TEST_F(SsdPolicyTest, APromptLongerThanRamIsStoredAndFetchedWhole) {
  Start(16, 256);
  const auto tokens = Tokens(1, 100);
  EXPECT_THAT(fixture_->Store(model_, tokens), Each(kStored));
  EXPECT_EQ(fixture_->Found(model_, tokens), 100u);
  PromptRef prompt = fixture_->Prompt(model_, tokens);
  auto fetch = manager().BeginFetch(prompt, 0, 100, 0);
  ASSERT_TRUE(fetch.ok());
  const auto keys = BlockKeys(fixture_->Root(model_), tokens, 4);
  for (uint32_t block = 0; block < 100; ++block) {
    const auto view = (*fetch)->Next(block, fixture_->deadline());
    ASSERT_TRUE(view.ok()) << view.status();
    const auto expected = PayloadOf(keys[block], 0, 0, kPart);
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), view->bytes.begin())) << block;
  }
}

TEST_F(SsdPolicyTest, BlocksOfSeveralPartsStayTogether) {
  Start(16, 64);
  const auto tokens = Tokens(1, 4);
  for (uint32_t part = 0; part < 2; ++part) fixture_->Store(pair_, tokens, 0, part);
  for (int round = 0; round < 8; ++round) {
    Churn(24);
    EXPECT_EQ(fixture_->Found(pair_, tokens), 4u);
    for (uint32_t part = 0; part < 2; ++part) EXPECT_TRUE(fixture_->Fetch(pair_, tokens, 3, part));
  }
  ASSERT_EQ(manager().WriteDownAll(fixture_->deadline()), 0u);
  Restart();
  EXPECT_EQ(fixture_->Found(pair_, tokens), 4u);
  for (uint32_t part = 0; part < 2; ++part) EXPECT_TRUE(fixture_->Fetch(pair_, tokens, 3, part));
}

TEST_F(SsdPolicyTest, ShrinkingKeepsWhatIsInUseAndGrowingTakesMore) {
  Start(16, 256);
  const auto hot = Tokens(1, 8);
  fixture_->Store(model_, hot);
  Churn(220);
  ASSERT_GT(ssd().usage.used_bytes, 180 * kPart);
  ExpectAll(hot);
  const auto shrunk = manager().SetCapacity(TierKind::kSsd, 64 * kPart);
  ASSERT_TRUE(shrunk.ok()) << shrunk.status();
  EXPECT_EQ(shrunk->previous_bytes, 256 * kPart);
  EXPECT_GT(shrunk->evicted_blocks, 100u);
  EXPECT_LE(ssd().usage.used_bytes, 64 * kPart);
  ExpectAll(hot);
  ASSERT_TRUE(manager().SetCapacity(TierKind::kSsd, 128 * kPart).ok());
  Churn(400);
  EXPECT_GT(ssd().usage.used_bytes, 100 * kPart);
}

TEST_F(SsdPolicyTest, ModelsThatAreNotKnownAfterARestartTakeRoomUntilTheirSegmentsLeave) {
  Start(16, 64);
  fixture_->Store(model_, Tokens(1, 8));
  ASSERT_EQ(manager().WriteDownAll(fixture_->deadline()), 0u);
  fixture_->Restart({pair_});
  EXPECT_EQ(ssd().blocks, 0u);
  EXPECT_GT(ssd().usage.used_bytes, 0u);
  for (uint32_t i = 0; i < 40; ++i) {
    for (uint32_t part = 0; part < 2; ++part) fixture_->Store(pair_, Tokens(10 + i, 4), 0, part);
  }
  EXPECT_LE(ssd().usage.used_bytes, 64 * kPart + kSegment);
  EXPECT_EQ(fixture_->Found(pair_, Tokens(49, 4)), 4u);
}

// With threads: a write that hangs holds up neither lookups nor what RAM has.
TEST(StuckSsdTest, RamGoesOnWhileAWriteHangs) {
  const SteadyClock clock{};
  const std::unique_ptr<DeviceMemory> device = MakeHostMemory();
  auto log = std::make_unique<FakeLogTier>(std::make_shared<FakeMedium>(), 256 * kPart, kSegment);
  FakeLogTier* const ssd = log.get();
  ThreadPool general(1), reader(2), writer(1), stores(1);
  TierManager manager({}, nullptr,
                      std::make_unique<MemoryTier>(TierKind::kRam, device.get(), 16 * kPart),
                      std::move(log), {&general, &reader, &writer}, &clock);
  manager.Restore();
  const ModelSpec model = OpaqueModel("m", {kPart});
  ASSERT_TRUE(manager.AddModel(model).ok());
  const auto store = [&](uint32_t seed) {
    const std::vector<uint32_t> tokens = Tokens(seed, 8);
    PromptRef prompt = TokenPromptOf(model, tokens);
    auto session = manager.BeginStore(prompt, 0, 8, 0);
    for (uint32_t block = 0; block < 8; ++block) {
      if (!(*session)->Reserve(block, clock.Now() + seconds(20))) continue;
      std::span<std::byte> to = (*session)->Buffer(block);
      (*session)->Commit(block, PayloadChecksum(to.data(), to.size()));
    }
  };
  store(1);
  store(2);
  ssd->write_gate().Close();
  stores.Run([&] { store(3); });
  ssd->write_gate().WaitForHeld();
  const std::vector<uint32_t> tokens = Tokens(2, 8);
  PromptRef prompt = TokenPromptOf(model, tokens);
  EXPECT_EQ(manager.Lookup(prompt, {})->blocks, 8u);
  prompt = TokenPromptOf(model, tokens);
  auto fetch = manager.BeginFetch(prompt, 0, 8, 0);
  for (uint32_t block = 0; block < 8; ++block) {
    EXPECT_FALSE((*fetch)->WouldBlock(block));
    EXPECT_TRUE((*fetch)->Next(block, clock.Now()).ok());
  }
  fetch->reset();
  // The store goes on too: patience with the writer ends, and blocks leave unwritten.
  stores.WaitIdle();
  EXPECT_GT(manager.stats().ssd_skipped_blocks, 0u);
  ssd->write_gate().Open();
  general.WaitIdle();
  reader.WaitIdle();
  writer.WaitIdle();
  manager.CheckInvariants();
}

}  // namespace
}  // namespace kvtier
