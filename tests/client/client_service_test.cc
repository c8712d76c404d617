// The client against the real data service.
#include <gtest/gtest.h>

#include <chrono>
#include <map>

#include "common/block_key.h"
#include "kvtier/client.h"
#include "tests/support/test_server.h"

namespace kvtier {
namespace {

using std::chrono::seconds;

constexpr uint32_t kBlockTokens = 4;

ModelSpec Spec(std::vector<uint64_t> part_bytes, uint32_t tensor_parallel = 1,
               uint32_t groups = 1) {
  ModelSpec spec;
  spec.name = "client-test";
  spec.block_tokens = kBlockTokens;
  spec.pack_order = PackOrder::kOpaque;
  spec.explicit_part_bytes = std::move(part_bytes);
  spec.tensor_parallel = tensor_parallel;
  spec.explicit_groups = groups;
  return spec;
}

class ClientServiceTest : public testing::Test {
 protected:
  ClientServiceTest() {
    ClientOptions options;
    options.address = server_.address();
    options.connect_deadline = seconds(20);
    options.lookup_deadline = seconds(20);
    client_ = std::move(*Client::Connect(options));
    for (uint32_t i = 0; i < 5 * kBlockTokens + 3; ++i) tokens_.push_back(i * 7 + 1);
    prompt_.tokens = tokens_;
  }

  void Register(const ModelSpec& spec) {
    absl::StatusOr<RegisteredModel> model = client_->RegisterModel(spec);
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = std::move(*model);
    prompt_.model = model_.id;
  }
  static std::vector<std::byte> PartOf(uint32_t block, uint32_t part, uint64_t bytes) {
    std::vector<std::byte> out(bytes);
    for (uint64_t i = 0; i < bytes; ++i) {
      out[i] = static_cast<std::byte>(i * 31 + block * 7 + part * 3 + (i >> 10));
    }
    return out;
  }
  uint64_t PartSize(PartIndex part) const {
    return model_.part_bytes[part.layer_group * model_.tensor_parallel + part.rank];
  }
  static uint32_t PartNumber(PartIndex part) { return part.layer_group * 100 + part.rank; }

  absl::StatusOr<StoreReport> Store(const Prompt& prompt, uint32_t first, uint32_t count,
                                    PartIndex part = {}) {
    std::vector<std::vector<std::byte>> memory;
    for (uint32_t i = 0; i < count; ++i) {
      memory.push_back(PartOf(first + i, PartNumber(part), PartSize(part)));
    }
    std::vector<std::span<const std::byte>> payloads(memory.begin(), memory.end());
    return client_->Store(prompt, {.first_block = first, .part = part}, payloads);
  }
  template <typename Source>
  absl::StatusOr<FetchReport> Fetch(const Source& source, FetchParams params) {
    memory_.assign(params.last_block - params.first_block,
                   std::vector<std::byte>(PartSize(params.part)));
    const std::vector<std::span<std::byte>> buffers(memory_.begin(), memory_.end());
    return client_->Fetch(source, params, buffers);
  }
  void ExpectFetched(const absl::StatusOr<FetchReport>& report, FetchParams params) {
    ASSERT_TRUE(report.ok()) << report.status();
    ASSERT_EQ(report->leading, params.last_block - params.first_block);
    for (uint32_t i = 0; i < report->leading; ++i) {
      EXPECT_EQ(memory_[i],
                PartOf(params.first_block + i, PartNumber(params.part), PartSize(params.part)));
    }
  }
  uint32_t Found(const Prompt& prompt) {
    const absl::StatusOr<PrefixMatch> match = client_->Lookup(prompt);
    EXPECT_TRUE(match.ok()) << match.status();
    return match.ok() ? match->blocks : UINT32_MAX;
  }

  TestServer server_;
  std::unique_ptr<Client> client_;
  RegisteredModel model_;
  std::vector<uint32_t> tokens_;
  Prompt prompt_;
  std::vector<std::vector<std::byte>> memory_;
};

TEST_F(ClientServiceTest, RegisterTellsSizesAndRoom) {
  Register(Spec({1000, 2000}, 2));
  EXPECT_EQ(model_.part_bytes, (std::vector<uint64_t>{1000, 2000}));
  EXPECT_EQ(model_.block_bytes, 3000u);
  EXPECT_EQ(model_.tensor_parallel, 2u);
  EXPECT_EQ(model_.layer_groups, 1u);
  ASSERT_EQ(model_.tiers.size(), 1u);
  EXPECT_EQ(model_.tiers[0].tier, CacheTier::kRam);
  EXPECT_GT(model_.tiers[0].blocks, 0u);
  EXPECT_EQ(model_.tiers[0].tokens, model_.tiers[0].blocks * kBlockTokens);
}

TEST_F(ClientServiceTest, WhatWasStoredComesBackByteForByte) {
  Register(Spec({(1 << 20) + 77}));
  EXPECT_EQ(Found(prompt_), 0u);
  const absl::StatusOr<StoreReport> stored = Store(prompt_, 0, 5);
  ASSERT_TRUE(stored.ok()) << stored.status();
  for (const StoredBlock& block : stored->blocks) EXPECT_EQ(block.verdict, StoreVerdict::kStored);

  absl::StatusOr<PrefixMatch> match = client_->Lookup(prompt_, {.lease = seconds(60)});
  ASSERT_TRUE(match.ok()) << match.status();
  EXPECT_EQ(match->blocks, 5u);
  EXPECT_EQ(match->tokens, 20u);
  ASSERT_EQ(match->runs.size(), 1u);
  EXPECT_EQ(match->runs[0].tier, CacheTier::kRam);
  EXPECT_EQ(match->group_blocks, std::vector<uint32_t>{5});
  ExpectFetched(Fetch(prompt_, {.last_block = 5}), {.last_block = 5});
  ExpectFetched(Fetch(match->lease, {.first_block = 1, .last_block = 4}),
                {.first_block = 1, .last_block = 4});
}

TEST_F(ClientServiceTest, StoringAgainSendsNothing) {
  Register(Spec({500}));
  ASSERT_TRUE(Store(prompt_, 0, 3).ok());
  const absl::StatusOr<StoreReport> again = Store(prompt_, 0, 5);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->sent, 2u);
  EXPECT_EQ(again->blocks[2].verdict, StoreVerdict::kAlreadyPresent);
  EXPECT_EQ(again->blocks[3].verdict, StoreVerdict::kStored);
  EXPECT_EQ(Store(prompt_, 0, 5)->sent, 0u);
}

// Only prompts to be served count as lookups, not what a store asks on its own behalf.
TEST_F(ClientServiceTest, StoringCountsNoLookup) {
  Register(Spec({500}));
  ASSERT_TRUE(Store(prompt_, 0, 3).ok());
  EXPECT_EQ(Store(prompt_, 0, 5)->sent, 2u);
  EXPECT_EQ(server_.manager().stats().lookups, 0u);
  EXPECT_EQ(server_.manager().stats().hit_blocks, 0u);
  EXPECT_EQ(Found(prompt_), 5u);
  EXPECT_EQ(server_.manager().stats().lookups, 1u);
  EXPECT_EQ(server_.manager().stats().hit_blocks, 5u);
}

TEST_F(ClientServiceTest, ViewsSeeTheSameBytes) {
  Register(Spec({70'000}));
  ASSERT_TRUE(Store(prompt_, 0, 4).ok());
  std::map<uint32_t, std::vector<std::byte>> seen;
  const absl::StatusOr<FetchReport> report =
      client_->FetchViews(prompt_, {.last_block = 4}, [&](const PieceView& piece) {
        seen[piece.block].insert(seen[piece.block].end(), piece.bytes.begin(), piece.bytes.end());
      });
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->leading, 4u);
  for (uint32_t block = 0; block < 4; ++block) EXPECT_EQ(seen[block], PartOf(block, 0, 70'000));
}

TEST_F(ClientServiceTest, BlockIsFoundOnceAllItsPartsAreThere) {
  Register(Spec({300, 400, 500, 600}, 2, 2));
  for (const PartIndex part : {PartIndex{0, 0}, PartIndex{0, 1}, PartIndex{1, 0}}) {
    ASSERT_TRUE(Store(prompt_, 0, 2, part).ok());
    EXPECT_EQ(Found(prompt_), 0u);
  }
  ASSERT_TRUE(Store(prompt_, 0, 2, {1, 1}).ok());
  EXPECT_EQ(Found(prompt_), 2u);
  for (const PartIndex part :
       {PartIndex{0, 0}, PartIndex{0, 1}, PartIndex{1, 0}, PartIndex{1, 1}}) {
    const FetchParams params = {.last_block = 2, .part = part};
    ExpectFetched(Fetch(prompt_, params), params);
  }
}

TEST_F(ClientServiceTest, FetchBeyondWhatIsHeldIsAMiss) {
  Register(Spec({500}));
  ASSERT_TRUE(Store(prompt_, 0, 3).ok());
  const absl::StatusOr<FetchReport> report = Fetch(prompt_, {.last_block = 5});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->leading, 3u);
  EXPECT_EQ(report->blocks[3].status, FetchStatus::kMiss);
  EXPECT_EQ(report->blocks[4].status, FetchStatus::kMiss);
}

TEST_F(ClientServiceTest, NothingCrossesANamespaceOrAnotherPrompt) {
  Register(Spec({500}));
  prompt_.name = {"tenant", "salt", "adapter"};
  ASSERT_TRUE(Store(prompt_, 0, 5).ok());
  EXPECT_EQ(Found(prompt_), 5u);
  for (const Namespace& name :
       {Namespace{"tenan", "salt", "adapter"}, Namespace{"tenant", "sal", "adapter"},
        Namespace{"tenant", "salt", ""}}) {
    Prompt other = prompt_;
    other.name = name;
    EXPECT_EQ(Found(other), 0u);
  }
  const std::vector<MediaSpan> media = {{5, 2, std::string(16, 'm')}};
  Prompt with_image = prompt_;
  with_image.media = media;
  EXPECT_EQ(Found(with_image), 1u) << "the block before the image is shared";
}

TEST_F(ClientServiceTest, EngineHashesAreIdentitiesOfTheirOwn) {
  Register(Spec({500}));
  const std::vector<std::string> hashes = {"hash-of-0", "hash-of-1", "hash-of-2"};
  const std::vector<std::string> others = {"hash-of-0", "hash-of-x", "hash-of-2"};
  Prompt hashed;
  hashed.model = model_.id;
  hashed.engine_hashes = hashes;
  ASSERT_TRUE(Store(hashed, 0, 3).ok());
  EXPECT_EQ(Found(hashed), 3u);
  ExpectFetched(Fetch(hashed, {.last_block = 3}), {.last_block = 3});
  hashed.engine_hashes = others;
  EXPECT_EQ(Found(hashed), 1u);
  EXPECT_EQ(Found(prompt_), 0u);
}

TEST_F(ClientServiceTest, LeaseEndsWithItsObject) {
  Register(Spec({500}));
  ASSERT_TRUE(Store(prompt_, 0, 5).ok());
  {
    absl::StatusOr<PrefixMatch> match = client_->Lookup(prompt_, {.lease = seconds(60)});
    ASSERT_TRUE(match.ok());
    ASSERT_TRUE(match->lease);
    EXPECT_EQ(match->lease.blocks(), 5u);
    EXPECT_EQ(server_.manager().stats().leases, 1u);
    const Lease moved = std::move(match->lease);
    EXPECT_FALSE(match->lease);
    EXPECT_EQ(server_.manager().stats().leases, 1u);
  }
  EXPECT_EQ(server_.manager().stats().leases, 0u);
}

TEST_F(ClientServiceTest, LeaseIsRenewedAndRunsOut) {
  Register(Spec({500}));
  ASSERT_TRUE(Store(prompt_, 0, 5).ok());
  absl::StatusOr<PrefixMatch> match = client_->Lookup(prompt_, {.lease = seconds(60)});
  ASSERT_TRUE(match.ok());
  server_.clock().Advance(seconds(50));
  ASSERT_TRUE(match->lease.Renew(seconds(60)).ok());
  server_.clock().Advance(seconds(50));
  server_.Tick();
  ExpectFetched(Fetch(match->lease, {.last_block = 5}), {.last_block = 5});
  server_.clock().Advance(seconds(11));
  server_.Tick();
  EXPECT_EQ(Fetch(match->lease, {.last_block = 5}).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(match->lease.Renew(seconds(1)).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(match->lease.Release().code(), absl::StatusCode::kNotFound);
}

TEST_F(ClientServiceTest, DetachedLeaseLivesOnByItsId) {
  Register(Spec({500}));
  ASSERT_TRUE(Store(prompt_, 0, 5).ok());
  const uint64_t id = client_->Lookup(prompt_, {.lease = seconds(60)})->lease.Detach();
  EXPECT_EQ(server_.manager().stats().leases, 1u);
  ExpectFetched(Fetch(id, {.last_block = 5}), {.last_block = 5});
  EXPECT_TRUE(client_->Renew(id, seconds(5)).ok());
  EXPECT_TRUE(client_->Release(id).ok());
  EXPECT_EQ(client_->Release(id).code(), absl::StatusCode::kNotFound);
}

// However the lease ends, each block that was fetched and verified by it counts once.
TEST_F(ClientServiceTest, ReleaseTellsWhatWasVerified) {
  Register(Spec({500, 300}, 2));
  for (uint32_t rank = 0; rank < 2; ++rank) {
    ASSERT_TRUE(Store(prompt_, 0, 5, {.rank = rank}).ok());
  }
  const auto verified = [&] { return server_.manager().stats().verified_blocks; };
  const auto lease = [&] {
    return std::move(
        client_->Lookup(prompt_, {.lease = seconds(60), .prefill_tokens_per_second = 100})->lease);
  };
  { const Lease unused = lease(); }
  EXPECT_EQ(verified(), 0u);
  {
    const Lease used = lease();
    for (uint32_t rank = 0; rank < 2; ++rank) {
      const FetchParams params{.first_block = 1, .last_block = 4, .part = {.rank = rank}};
      ExpectFetched(Fetch(used, params), params);
    }
  }
  EXPECT_EQ(verified(), 3u);
  EXPECT_DOUBLE_EQ(server_.manager().stats().prefill_seconds, 3 * kBlockTokens / 100.0);
  Lease by_view = lease();
  ASSERT_TRUE(client_->FetchViews(by_view.id(), {.last_block = 5}, [](const PieceView&) {}).ok());
  ASSERT_TRUE(by_view.Release().ok());
  EXPECT_EQ(verified(), 8u);
  // Detached: the caller tells.
  const uint64_t id = lease().Detach();
  ExpectFetched(Fetch(id, {.last_block = 5}), {.last_block = 5});
  ASSERT_TRUE(client_->Release(id, 2).ok());
  EXPECT_EQ(verified(), 10u);
}

TEST_F(ClientServiceTest, UnknownModelIsNotFound) {
  Register(Spec({500}));
  prompt_.model = Digest128::Of("another");
  EXPECT_EQ(client_->Lookup(prompt_).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(client_->counters().failures, 0u);
}

}  // namespace
}  // namespace kvtier
