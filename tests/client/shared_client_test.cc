// The client's shared memory against the real data service: every byte that is reported OK is the
// block's own, whatever the pool did meanwhile.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <utility>

#include "common/block_key.h"
#include "common/executor.h"
#include "common/mutex.h"
#include "kvtier/client.h"
#include "tests/support/self_describing.h"
#include "tests/support/test_server.h"

namespace kvtier {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr uint32_t kBlockTokens = 4;
constexpr uint64_t kPart = 64 << 10;
constexpr uint32_t kBlocks = 16;
constexpr uint64_t kRam = uint64_t{16} << 20;
constexpr FetchParams kWhole = {.last_block = kBlocks};

// The daemon's clock, with something to do before the n-th look at it.
class HookClock final : public Clock {
 public:
  explicit HookClock(const Clock* clock) : clock_(clock) {}
  TimePoint Now() const override {
    if (hook_ && --looks_ == 0) std::exchange(hook_, nullptr)();
    return clock_->Now();
  }
  void Before(int look, std::function<void()> hook) {
    looks_ = look;
    hook_ = std::move(hook);
  }
  bool pending() const { return hook_ != nullptr; }

 private:
  const Clock* const clock_;
  mutable int looks_ = 0;
  mutable std::function<void()> hook_;
};

// What is mapped now, and whether calls came as they must.
class RecordingListener final : public RegionListener {
 public:
  void Mapped(const MappedRegion& region) override {
    const std::byte first = region.bytes[0];  // would fault if it were not mapped
    EXPECT_EQ(first, region.bytes[0]);
    MutexLock lock(mutex_);
    EXPECT_TRUE(mapped_.emplace(region.bytes.data(), region).second) << "told twice";
    ++(region.writable ? store_regions_ : ram_regions_);
  }
  void Unmapping(const MappedRegion& region) override {
    const std::byte last = region.bytes.back();
    EXPECT_EQ(last, region.bytes.back());
    MutexLock lock(mutex_);
    const auto found = mapped_.find(region.bytes.data());
    ASSERT_NE(found, mapped_.end()) << "never told, or unmapped twice";
    EXPECT_EQ(found->second.bytes.size(), region.bytes.size());
    EXPECT_EQ(found->second.writable, region.writable);
    mapped_.erase(found);
    changed_.NotifyAll();
  }
  bool Holds(const std::byte* byte) {
    MutexLock lock(mutex_);
    return std::any_of(mapped_.begin(), mapped_.end(), [byte](const auto& entry) {
      const std::span<const std::byte> bytes = entry.second.bytes;
      return byte >= bytes.data() && byte < bytes.data() + bytes.size();
    });
  }
  void AwaitMapped(size_t regions) {
    MutexLock lock(mutex_);
    while (mapped_.size() != regions) changed_.Wait(mutex_);
  }
  size_t mapped() {
    MutexLock lock(mutex_);
    return mapped_.size();
  }
  // Ever.
  size_t store_regions() {
    MutexLock lock(mutex_);
    return store_regions_;
  }
  size_t ram_regions() {
    MutexLock lock(mutex_);
    return ram_regions_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::map<const std::byte*, MappedRegion> mapped_ KVTIER_GUARDED_BY(mutex_);
  size_t store_regions_ KVTIER_GUARDED_BY(mutex_) = 0;
  size_t ram_regions_ KVTIER_GUARDED_BY(mutex_) = 0;
};

// A client and the blocks of its prompts.
class SharedClientTest : public testing::Test {
 protected:
  void Start(TestServerOptions options, ClientOptions client_options = {}) {
    options.shared_memory = true;
    StartAsIs(std::move(options), std::move(client_options));
  }
  void Start() { Start(Ram(kRam)); }
  static TestServerOptions Ram(uint64_t ram_bytes, uint64_t ssd_bytes = 0) {
    TestServerOptions options;
    options.ram_bytes = ram_bytes;
    options.ssd_bytes = ssd_bytes;
    return options;
  }
  void StartAsIs(TestServerOptions options, ClientOptions client_options = {}) {
    ram_bytes_ = options.ram_bytes;
    server_ = std::make_unique<TestServer>(std::move(options));
    clock_ = std::make_unique<HookClock>(&server_->clock());
    client_options.clock = clock_.get();
    client_ = Connect(std::move(client_options));
  }
  std::unique_ptr<Client> Connect(ClientOptions options) {
    options.address = server_->address();
    options.connect_deadline = seconds(20);
    options.lookup_deadline = seconds(20);
    absl::StatusOr<std::unique_ptr<Client>> client = Client::Connect(options);
    EXPECT_TRUE(client.ok()) << client.status();
    Register(client->get());
    return std::move(*client);
  }
  void Register(Client* client) {
    ModelSpec spec;
    spec.name = "shared-client-test";
    spec.block_tokens = kBlockTokens;
    spec.pack_order = PackOrder::kOpaque;
    spec.explicit_part_bytes = {part_bytes_};
    const absl::StatusOr<RegisteredModel> model = client->RegisterModel(spec);
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = model->id;
  }

  Prompt PromptOf(uint32_t seed, uint32_t blocks = kBlocks) {
    tokens_.resize(blocks * kBlockTokens);
    for (uint32_t i = 0; i < tokens_.size(); ++i) tokens_[i] = seed * 100'000 + i;
    return {.model = model_, .tokens = tokens_};
  }
  absl::StatusOr<StoreReport> Store(Client* client, uint32_t seed, uint32_t blocks = kBlocks,
                                    StoreParams params = {}) {
    std::vector<std::vector<std::byte>> memory;
    for (uint32_t i = 0; i < blocks; ++i) memory.push_back(SelfDescribing(seed, i, part_bytes_));
    const std::vector<std::span<const std::byte>> payloads(memory.begin(), memory.end());
    return client->Store(PromptOf(seed, blocks), params, payloads);
  }
  void StoreAll(uint32_t seed, uint32_t blocks = kBlocks) {
    const absl::StatusOr<StoreReport> report = Store(client_.get(), seed, blocks);
    ASSERT_TRUE(report.ok()) << report.status();
    for (const StoredBlock& block : report->blocks) {
      ASSERT_EQ(block.verdict, StoreVerdict::kStored);
    }
  }
  Lease Leased(uint32_t seed, Duration length = seconds(60), uint32_t blocks = kBlocks) {
    absl::StatusOr<PrefixMatch> match = client_->Lookup(PromptOf(seed, blocks), {.lease = length});
    EXPECT_TRUE(match.ok()) << match.status();
    EXPECT_EQ(match->blocks, blocks);
    return std::move(match->lease);
  }
  // Into poisoned buffers.
  template <typename Source>
  absl::StatusOr<FetchReport> Fetch(const Source& source, FetchParams params) {
    memory_.assign(params.last_block - params.first_block,
                   std::vector<std::byte>(part_bytes_, kPoison));
    const std::vector<std::span<std::byte>> buffers(memory_.begin(), memory_.end());
    return client_->Fetch(source, params, buffers);
  }
  // Each block that is OK has the bytes of that block of that prompt.
  void ExpectRight(uint32_t seed, const FetchParams& params, const FetchReport& report) {
    for (uint32_t i = 0; i < report.blocks.size(); ++i) {
      if (report.blocks[i].status != FetchStatus::kOk) continue;
      EXPECT_TRUE(IsSelfDescribing(seed, params.first_block + i, memory_[i])) << "block " << i;
    }
  }
  void ExpectAllShared(uint32_t seed, const FetchParams& params,
                       const absl::StatusOr<FetchReport>& report) {
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_EQ(report->leading, params.last_block - params.first_block);
    EXPECT_EQ(report->shared, report->leading);
    EXPECT_FALSE(report->lease_ended);
    ExpectRight(seed, params, *report);
  }

  // Time goes by, and the whole pool with it: every slot that nobody holds gets other bytes.
  void LetLeasesEndAndChurn(Duration time) {
    server_->clock().Advance(time);
    server_->Tick();
    const std::unique_ptr<Client> other = Connect({.shared_memory = false});
    const uint64_t prompts = ram_bytes_ / part_bytes_ / kBlocks + 1;
    for (uint32_t i = 0; i < prompts; ++i) ASSERT_TRUE(Store(other.get(), 5'000 + i).ok());
  }

  // For several threads: with memory of its own.
  bool StoreAndFetch(uint32_t seed) {
    std::vector<uint32_t> tokens(kBlocks * kBlockTokens, seed);
    const Prompt prompt{.model = model_, .tokens = tokens};
    std::vector<std::vector<std::byte>> from;
    for (uint32_t i = 0; i < kBlocks; ++i) from.push_back(SelfDescribing(seed, i, part_bytes_));
    const std::vector<std::span<const std::byte>> payloads(from.begin(), from.end());
    if (!client_->Store(prompt, {}, payloads).ok()) return false;
    const absl::StatusOr<PrefixMatch> match = client_->Lookup(prompt, {.lease = seconds(60)});
    if (!match.ok()) return false;
    std::vector<std::vector<std::byte>> to(kBlocks, std::vector<std::byte>(part_bytes_, kPoison));
    const std::vector<std::span<std::byte>> buffers(to.begin(), to.end());
    const absl::StatusOr<FetchReport> report = client_->Fetch(match->lease, kWhole, buffers);
    return report.ok() && report->shared == kBlocks && to == from;
  }

  RecordingListener listener_;  // outlives the client
  uint64_t part_bytes_ = kPart;
  uint64_t ram_bytes_ = 0;
  std::unique_ptr<TestServer> server_;
  std::unique_ptr<HookClock> clock_;
  std::unique_ptr<Client> client_;
  ModelId model_;
  std::vector<uint32_t> tokens_;
  std::vector<std::vector<std::byte>> memory_;
};

// ---------------------------------------------------------------------- fetch

TEST_F(SharedClientTest, WhatWasStoredComesBackThroughSharedMemory) {
  Start();
  const absl::StatusOr<StoreReport> stored = Store(client_.get(), 1);
  ASSERT_TRUE(stored.ok()) << stored.status();
  EXPECT_EQ(stored->sent, kBlocks);
  EXPECT_EQ(stored->shared, kBlocks);
  const Lease lease = Leased(1);
  ExpectAllShared(1, kWhole, Fetch(lease, kWhole));
  const FetchParams middle = {.first_block = 3, .last_block = 7};
  ExpectAllShared(1, middle, Fetch(lease, middle));
  EXPECT_EQ(client_->counters().shared_stored_blocks, kBlocks);
  EXPECT_EQ(client_->counters().shared_fetched_blocks, kBlocks + 4);
}

TEST_F(SharedClientTest, WithoutVerificationTheBytesAreTheSame) {
  Start(Ram(kRam), {.verify_shared = false});
  StoreAll(1);
  ExpectAllShared(1, kWhole, Fetch(Leased(1), kWhole));
  client_ = Connect({});
  const absl::StatusOr<FetchReport> verified = Fetch(PromptOf(1), kWhole);
  ASSERT_TRUE(verified.ok());
  EXPECT_EQ(verified->leading, kBlocks) << "the daemon took the right checksums";
}

TEST_F(SharedClientTest, FetchByPromptGoesOverGrpc) {
  Start();
  StoreAll(1);
  const absl::StatusOr<FetchReport> report = Fetch(PromptOf(1), kWhole);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->leading, kBlocks);
  EXPECT_EQ(report->shared, 0u);
  ExpectRight(1, kWhole, *report);
}

TEST_F(SharedClientTest, VisitorSeesTheSameBytes) {
  Start();
  StoreAll(1);
  std::vector<std::vector<std::byte>> seen(kBlocks);
  const Lease lease = Leased(1);
  const absl::StatusOr<FetchReport> report =
      client_->FetchViews(lease.id(), kWhole, [&](const PieceView& piece) {
        ASSERT_EQ(piece.offset, seen[piece.block].size());
        seen[piece.block].insert(seen[piece.block].end(), piece.bytes.begin(), piece.bytes.end());
      });
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->shared, kBlocks);
  for (uint32_t i = 0; i < kBlocks; ++i) EXPECT_TRUE(IsSelfDescribing(1, i, seen[i]));
}

TEST_F(SharedClientTest, ViewsPointAtTheBlocks) {
  Start();
  StoreAll(1);
  const Lease lease = Leased(1);
  const absl::StatusOr<SharedViews> views = client_->FetchSharedViews(lease, kWhole);
  ASSERT_TRUE(views.ok()) << views.status();
  ASSERT_EQ(views->leading, kBlocks);
  for (uint32_t i = 0; i < kBlocks; ++i) {
    EXPECT_TRUE(IsSelfDescribing(1, i, views->blocks[i].bytes));
    EXPECT_EQ(views->blocks[i].checksum,
              PayloadChecksum(views->blocks[i].bytes.data(), views->blocks[i].bytes.size()));
  }
  EXPECT_FALSE(views->expired());
}

TEST_F(SharedClientTest, BufferOfAnotherSizeIsAnError) {
  Start();
  StoreAll(1);
  std::vector<std::byte> small(kPart - 1);
  const std::vector<std::span<std::byte>> buffers = {small};
  const Lease lease = Leased(1);
  const absl::Status status = client_->Fetch(lease, {.last_block = 1}, buffers).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
}

// ---------------------------------------------------------------------- leases

TEST_F(SharedClientTest, LeasePassedOnIsUsedOnceItsEndIsKnown) {
  Start();
  StoreAll(1);
  Lease lease = Leased(1);
  FetchParams params = kWhole;
  const TimePoint end = lease.end();
  const uint64_t id = lease.Detach();
  client_ = Connect({.clock = clock_.get()});  // another rank's
  const absl::StatusOr<FetchReport> unknown = Fetch(id, params);
  ASSERT_TRUE(unknown.ok()) << unknown.status();
  EXPECT_EQ(unknown->leading, kBlocks);
  EXPECT_EQ(unknown->shared, 0u) << "nobody said when it ends";
  EXPECT_EQ(client_->FetchSharedViews(id, params).status().code(),
            absl::StatusCode::kFailedPrecondition);
  params.lease_end = end;
  ExpectAllShared(1, params, Fetch(id, params));
  params.lease_end.reset();
  ASSERT_TRUE(client_->Renew(id, seconds(5)).ok());
  ExpectAllShared(1, params, Fetch(id, params));
}

// The reader stands still in the middle, for longer than its lease. Without the clock it would take
// other blocks' bytes for its own, which the views show.
TEST_F(SharedClientTest, ReaderSlowerThanItsLeaseIsTold) {
  Start();
  StoreAll(1);
  const Lease lease = Leased(1, milliseconds(200));
  const absl::StatusOr<SharedViews> views = client_->FetchSharedViews(lease, kWhole);
  ASSERT_TRUE(views.ok()) << views.status();
  EXPECT_FALSE(views->expired());
  clock_->Before(kBlocks / 2, [this] { LetLeasesEndAndChurn(milliseconds(600)); });
  const absl::StatusOr<FetchReport> report = Fetch(lease, kWhole);
  ASSERT_FALSE(clock_->pending()) << "it stood still";
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_TRUE(report->lease_ended);
  EXPECT_EQ(report->leading, 0u);
  for (const FetchedBlock& block : report->blocks) EXPECT_EQ(block.status, FetchStatus::kMiss);
  EXPECT_EQ(client_->counters().ended_leases, 1u);
  EXPECT_TRUE(views->expired());
  uint32_t foreign = 0;
  for (uint32_t i = 0; i < kBlocks; ++i) {
    foreign += IsSelfDescribing(1, i, views->blocks[i].bytes) ? 0 : 1;
  }
  EXPECT_GT(foreign, 0u) << "the pool has other blocks' bytes by now";
}

TEST_F(SharedClientTest, LeaseLongerThanTheReadKeepsTheBytes) {
  Start();
  StoreAll(1);
  const Lease lease = Leased(1, seconds(10));
  const absl::StatusOr<SharedViews> views = client_->FetchSharedViews(lease, kWhole);
  ASSERT_TRUE(views.ok()) << views.status();
  clock_->Before(kBlocks / 2, [this] { LetLeasesEndAndChurn(milliseconds(600)); });
  ExpectAllShared(1, kWhole, Fetch(lease, kWhole));
  ASSERT_FALSE(clock_->pending()) << "it stood still";
  EXPECT_FALSE(views->expired());
  for (uint32_t i = 0; i < kBlocks; ++i) {
    EXPECT_TRUE(IsSelfDescribing(1, i, views->blocks[i].bytes));
  }
}

TEST_F(SharedClientTest, VisitorSlowerThanItsLeaseIsTold) {
  Start();
  StoreAll(1);
  const Lease lease = Leased(1, milliseconds(200));
  bool stood_still = false;
  const absl::StatusOr<FetchReport> report =
      client_->FetchViews(lease.id(), kWhole, [&](const PieceView& piece) {
        if (piece.block != 2 || std::exchange(stood_still, true)) return;
        LetLeasesEndAndChurn(milliseconds(600));
      });
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_TRUE(stood_still);
  EXPECT_TRUE(report->lease_ended);
  for (const FetchedBlock& block : report->blocks) EXPECT_EQ(block.status, FetchStatus::kMiss);
}

// Over gRPC bytes stay right while they are streamed, whatever becomes of the lease.
TEST_F(SharedClientTest, OverGrpcTheBytesOutliveTheLease) {
  Start(Ram(kRam), {.shared_memory = false});
  StoreAll(1);
  const Lease lease = Leased(1, milliseconds(200));
  std::vector<std::vector<std::byte>> seen(kBlocks);
  const absl::StatusOr<FetchReport> report =
      client_->FetchViews(lease.id(), kWhole, [&](const PieceView& piece) {
        if (piece.block == 0 && piece.offset == 0) LetLeasesEndAndChurn(milliseconds(600));
        seen[piece.block].insert(seen[piece.block].end(), piece.bytes.begin(), piece.bytes.end());
      });
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->shared, 0u);
  EXPECT_EQ(report->leading, kBlocks);
  for (uint32_t i = 0; i < report->leading; ++i) EXPECT_TRUE(IsSelfDescribing(1, i, seen[i]));
}

TEST_F(SharedClientTest, ReleasedLeaseEndsItsViews) {
  Start();
  StoreAll(1);
  Lease lease = Leased(1);
  const absl::StatusOr<SharedViews> views = client_->FetchSharedViews(lease, kWhole);
  ASSERT_TRUE(views.ok()) << views.status();
  ASSERT_TRUE(lease.Renew(seconds(100)).ok());
  server_->clock().Advance(seconds(80));
  EXPECT_FALSE(views->expired());
  ASSERT_TRUE(lease.Release().ok());
  EXPECT_TRUE(views->expired());
}

TEST_F(SharedClientTest, LeaseThatIsOverIsNotFound) {
  Start();
  StoreAll(1);
  const Lease lease = Leased(1, milliseconds(200));
  server_->clock().Advance(seconds(1));
  server_->Tick();
  EXPECT_EQ(Fetch(lease, kWhole).status().code(), absl::StatusCode::kNotFound);
}

// ---------------------------------------------------------------------- SSD

TEST_F(SharedClientTest, BlocksOnSsdComeThroughRam) {
  Start(Ram(uint64_t{4} << 20, uint64_t{64} << 20));
  StoreAll(1);
  for (uint32_t seed = 2; seed < 12; ++seed) StoreAll(seed);
  const Lease lease = Leased(1);
  const uint64_t reads = server_->ssd()->counters().reads;
  ExpectAllShared(1, kWhole, Fetch(lease, kWhole));
  EXPECT_GT(server_->ssd()->counters().reads, reads);
}

TEST_F(SharedClientTest, BlockThatCannotBeReadIsAMissAndAGap) {
  Start(Ram(uint64_t{4} << 20, uint64_t{64} << 20));
  StoreAll(1);
  for (uint32_t seed = 2; seed < 12; ++seed) StoreAll(seed);
  const Lease lease = Leased(1);
  server_->ssd()->FailReads(1, absl::DataLossError("rotten"));
  FetchParams params = kWhole;
  params.allow_gaps = true;
  const absl::StatusOr<FetchReport> report = Fetch(lease, params);
  ASSERT_TRUE(report.ok()) << report.status();
  const auto misses =
      std::count_if(report->blocks.begin(), report->blocks.end(),
                    [](const FetchedBlock& block) { return block.status == FetchStatus::kMiss; });
  EXPECT_EQ(misses, 1);
  EXPECT_LT(report->leading, kBlocks);
  ExpectRight(1, params, *report);
}

// RAM is full of blocks that a lease pins: those on SSD have nowhere to go.
TEST_F(SharedClientTest, WhatHasNoRoomInRamComesOverGrpc) {
  Start(Ram(24 * kPart, uint64_t{64} << 20));
  StoreAll(1);
  for (uint32_t seed = 2; seed < 6; ++seed) StoreAll(seed);
  const Lease hot = Leased(5);
  const Lease cold = Leased(1);
  ASSERT_TRUE(Fetch(hot, kWhole).ok());
  for (const bool gaps : {false, true}) {
    FetchParams params = kWhole;
    params.allow_gaps = gaps;
    const absl::StatusOr<FetchReport> report = Fetch(cold, params);
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_EQ(report->leading, kBlocks);
    EXPECT_LT(report->shared, kBlocks);
    ExpectRight(1, params, *report);
  }
  const absl::StatusOr<SharedViews> views = client_->FetchSharedViews(cold, kWhole);
  ASSERT_TRUE(views.ok()) << views.status();
  EXPECT_TRUE(views->blocks.back().not_shared);
}

// ---------------------------------------------------------------------- store

TEST_F(SharedClientTest, LongStoreGoesThroughASmallRegion) {
  TestServerOptions options = Ram(uint64_t{32} << 20);
  options.shared.store_region_bytes = 1 << 20;
  Start(std::move(options));
  StoreAll(1, 100);
  const FetchParams all = {.last_block = 100};
  ExpectAllShared(1, all, Fetch(Leased(1, seconds(60), 100), all));
  const absl::StatusOr<StoreReport> again = Store(client_.get(), 1, 100);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->sent, 0u);
  const absl::StatusOr<StoreReport> forced = Store(client_.get(), 1, 100, {.first_missing = 0});
  ASSERT_TRUE(forced.ok());
  EXPECT_EQ(forced->sent, 100u);
  for (const StoredBlock& block : forced->blocks) {
    EXPECT_EQ(block.verdict, StoreVerdict::kAlreadyPresent);
  }
}

TEST_F(SharedClientTest, PartsLargerThanTheRegionGoThroughIt) {
  part_bytes_ = (3 << 20) + 1;
  TestServerOptions options = Ram(uint64_t{64} << 20);
  options.shared.store_region_bytes = 1 << 20;
  Start(std::move(options));
  const absl::StatusOr<StoreReport> report = Store(client_.get(), 1);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->sent, kBlocks);
  EXPECT_EQ(report->shared, kBlocks);
  ExpectAllShared(1, kWhole, Fetch(Leased(1), kWhole));
}

TEST_F(SharedClientTest, WhatDoesNotFitIsRefusedAndTheFirstBlocksStay) {
  TestServerOptions options = Ram(40 * kPart);
  options.shared.store_region_bytes = 1 << 20;
  Start(std::move(options));
  const absl::StatusOr<StoreReport> report = Store(client_.get(), 1, 60);
  ASSERT_TRUE(report.ok()) << report.status();
  uint32_t stored = 0;
  while (stored < 60 && report->blocks[stored].verdict == StoreVerdict::kStored) ++stored;
  EXPECT_GE(stored, 32u);
  EXPECT_LE(stored, 40u);
  for (uint32_t i = stored; i < 60; ++i) {
    EXPECT_EQ(report->blocks[i].verdict, StoreVerdict::kRejected);
    EXPECT_EQ(report->blocks[i].refusal, StoreRefusal::kNoSpace) << i;
  }
  const absl::StatusOr<PrefixMatch> found = client_->Lookup(PromptOf(1, 60));
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(found->blocks, stored);
}

TEST_F(SharedClientTest, PromptLongerThanRamIsStoredWholeAndDurably) {
  TestServerOptions options = Ram(20 * kPart, uint64_t{64} << 20);
  options.shared.store_region_bytes = 1 << 20;
  Start(std::move(options));
  const absl::StatusOr<StoreReport> report =
      Store(client_.get(), 1, 60, {.durability = StoreDurability::kDurable});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->shared, 60u);
  for (const StoredBlock& block : report->blocks) {
    EXPECT_EQ(block.verdict, StoreVerdict::kStored) << static_cast<int>(block.refusal);
  }
  const FetchParams all = {.last_block = 60};
  const absl::StatusOr<FetchReport> fetched = Fetch(Leased(1, seconds(60), 60), all);
  ASSERT_TRUE(fetched.ok()) << fetched.status();
  EXPECT_EQ(fetched->leading, 60u);
  ExpectRight(1, all, *fetched);
}

TEST_F(SharedClientTest, DurableWithoutSsdIsRefusedAsOverGrpc) {
  Start();
  EXPECT_EQ(
      Store(client_.get(), 1, kBlocks, {.durability = StoreDurability::kDurable}).status().code(),
      absl::StatusCode::kFailedPrecondition);
}

// ---------------------------------------------------------------------- sessions

TEST_F(SharedClientTest, WithoutAnOfferEverythingGoesOverGrpc) {
  StartAsIs(Ram(kRam));
  StoreAll(1);
  const Lease lease = Leased(1);
  const absl::StatusOr<FetchReport> report = Fetch(lease, kWhole);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->leading, kBlocks);
  EXPECT_EQ(report->shared, 0u);
  ExpectRight(1, kWhole, *report);
  EXPECT_EQ(client_->FetchSharedViews(lease, kWhole).status().code(),
            absl::StatusCode::kUnavailable);
}

TEST_F(SharedClientTest, MoreClientsThanSessionsGoOverGrpc) {
  TestServerOptions options = Ram(kRam);
  options.shared.max_sessions = 1;
  Start(std::move(options));
  const std::unique_ptr<Client> first = std::exchange(client_, Connect({}));
  StoreAll(1);
  EXPECT_EQ(client_->counters().shared_stored_blocks, 0u);
  const absl::StatusOr<FetchReport> report = Fetch(Leased(1), kWhole);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->leading, kBlocks);
  EXPECT_EQ(report->shared, 0u);
  client_ = Connect({.shared_memory = false});
  ASSERT_TRUE(Store(first.get(), 2).ok());
  EXPECT_EQ(first->counters().shared_stored_blocks, kBlocks);
}

// Regions that RAM gives up go from the client's maps, but not while views keep them.
TEST_F(SharedClientTest, RegionsThatAreGivenUpAreUnmapped) {
  Start(Ram(kRam));
  StoreAll(1);
  Lease lease = Leased(1);
  std::optional<SharedViews> views = *client_->FetchSharedViews(lease, kWhole);
  ASSERT_EQ(views->leading, kBlocks);
  ASSERT_TRUE(lease.Release().ok());
  ASSERT_TRUE(server_->manager().SetCapacity(TierKind::kRam, 0).ok());
  EXPECT_GT(server_->shared_memory()->stats().retired_bytes, 0u) << "the views keep it";
  EXPECT_TRUE(views->expired());
  EXPECT_FALSE(views->blocks[0].bytes.empty());
  EXPECT_EQ(views->blocks[0].bytes[0], views->blocks[0].bytes[0]) << "it can be read";
  views.reset();
  while (server_->shared_memory()->stats().retired_bytes > 0) server_->Tick();
  ASSERT_TRUE(server_->manager().SetCapacity(TierKind::kRam, uint64_t{16} << 20).ok());
  StoreAll(2);
  ExpectAllShared(2, kWhole, Fetch(Leased(2), kWhole));
}

// ---------------------------------------------------------------------- what is mapped

TEST_F(SharedClientTest, ListenerIsToldOfEachMapAndItsEnd) {
  Start(Ram(kRam), {.region_listener = &listener_});
  EXPECT_EQ(listener_.store_regions(), 1u);
  EXPECT_EQ(listener_.ram_regions(), 0u) << "nothing was fetched";
  StoreAll(1);
  Lease lease = Leased(1);
  ExpectAllShared(1, kWhole, Fetch(lease, kWhole));
  const size_t regions = listener_.ram_regions();
  EXPECT_GE(regions, 1u);
  ExpectAllShared(1, kWhole, Fetch(lease, kWhole));
  EXPECT_EQ(listener_.ram_regions(), regions) << "they are mapped";
  EXPECT_EQ(listener_.mapped(), regions + 1);
  ASSERT_TRUE(lease.Release().ok());
  client_.reset();
  EXPECT_EQ(listener_.mapped(), 0u);
}

TEST_F(SharedClientTest, ViewsKeepARegionMappedForTheListener) {
  Start(Ram(kRam), {.region_listener = &listener_});
  StoreAll(1);
  Lease lease = Leased(1);
  std::optional<SharedViews> views = *client_->FetchSharedViews(lease, kWhole);
  ASSERT_EQ(views->leading, kBlocks);
  ASSERT_TRUE(lease.Release().ok());
  for (const SharedViews::Block& block : views->blocks) {
    EXPECT_TRUE(listener_.Holds(block.bytes.data()));
  }
  client_.reset();
  for (const SharedViews::Block& block : views->blocks) {
    EXPECT_TRUE(listener_.Holds(block.bytes.data()));
  }
  views.reset();
  EXPECT_EQ(listener_.mapped(), 0u);
}

TEST_F(SharedClientTest, ListenerIsToldOfRegionsThatAreGivenUp) {
  Start(Ram(kRam), {.region_listener = &listener_});
  StoreAll(1);
  Lease lease = Leased(1);
  ExpectAllShared(1, kWhole, Fetch(lease, kWhole));
  EXPECT_GT(listener_.mapped(), 1u);
  ASSERT_TRUE(lease.Release().ok());
  ASSERT_TRUE(server_->manager().SetCapacity(TierKind::kRam, 0).ok());
  listener_.AwaitMapped(1);
  EXPECT_TRUE(client_->has_shared_memory()) << "the store region is what stays";
}

TEST_F(SharedClientTest, OverGrpcNothingIsMapped) {
  Start(Ram(kRam), {.shared_memory = false, .region_listener = &listener_});
  StoreAll(1);
  const Lease lease = Leased(1);
  ASSERT_TRUE(Fetch(lease, kWhole).ok());
  EXPECT_EQ(listener_.store_regions() + listener_.ram_regions(), 0u);
}

TEST_F(SharedClientTest, ThreadsOfOneClientShareTheSession) {
  Start(Ram(uint64_t{64} << 20));
  constexpr int kThreads = 4;
  std::atomic<int> right{0};
  {
    ThreadPool threads(kThreads);
    for (int t = 0; t < kThreads; ++t) {
      threads.Run([this, t, &right] {
        for (uint32_t turn = 0; turn < 5; ++turn) {
          right += StoreAndFetch(static_cast<uint32_t>(100 + t * 10) + turn) ? 1 : 0;
        }
      });
    }
  }
  EXPECT_EQ(right, kThreads * 5);
  EXPECT_EQ(client_->counters().shared_stored_blocks, uint64_t{kThreads} * 5 * kBlocks);
}

}  // namespace
}  // namespace kvtier
