// Store, Lookup and Fetch over a socket: bytes come back as they were stored, under the identity
// they were stored under and no other.
#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <sstream>

#include "tests/service/service_client.h"
#include "tests/support/temp_folder.h"

namespace kvtier {
namespace {

constexpr uint64_t kMiB = 1 << 20;

std::vector<std::string> Payloads(uint64_t seed, uint32_t blocks, uint64_t bytes) {
  std::vector<std::string> out;
  for (uint32_t i = 0; i < blocks; ++i) out.push_back(PayloadBytes(seed * 1000 + i, bytes));
  return out;
}

void ExpectBlocks(const ServiceClient::Fetched& fetched, const std::vector<std::string>& want) {
  ASSERT_TRUE(fetched.status.ok()) << fetched.status.error_message();
  ASSERT_EQ(fetched.blocks.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_TRUE(fetched.blocks[i].has_value()) << "block " << i;
    ASSERT_TRUE(*fetched.blocks[i] == want[i]) << "block " << i;
  }
}

class KvCacheServiceTest : public ::testing::Test {
 protected:
  TestServer server_;
  ServiceClient client_{server_.address()};
};

TEST_F(KvCacheServiceTest, RegisterModelSaysWhatFits) {
  v1::RegisterModelRequest request;
  v1::ModelSpec* spec = request.mutable_spec();
  spec->set_name("llama");
  spec->set_block_tokens(16);
  spec->set_dtype(v1::DTYPE_BF16);
  spec->set_tensor_parallel(2);
  spec->set_pack_order(v1::PACK_ORDER_LAYER_KV_TOKEN_HEAD);
  v1::LayerGroup* group = spec->add_layer_groups();
  group->set_layers(4);
  group->mutable_grouped()->set_kv_heads(8);
  group->mutable_grouped()->set_head_dim(128);
  v1::RegisterModelResponse response;
  grpc::ClientContext context;
  ASSERT_TRUE(client_.stub().RegisterModel(&context, request, &response).ok());
  EXPECT_EQ(response.model_id().size(), 16u);
  ASSERT_EQ(response.part_bytes_size(), 2);
  EXPECT_EQ(response.part_bytes(0), 16u * 4 * 2 * 4 * 128 * 2);
  EXPECT_EQ(response.block_bytes(), 2 * response.part_bytes(0));
  EXPECT_EQ(response.layer_groups(), 1u);
  EXPECT_EQ(response.tensor_parallel(), 2u);
  ASSERT_EQ(response.tiers_size(), 1);
  EXPECT_EQ(response.tiers(0).tier(), v1::TIER_RAM);
  EXPECT_EQ(response.tiers(0).blocks(), 64 * kMiB / response.block_bytes());
  EXPECT_EQ(response.tiers(0).tokens(), response.tiers(0).blocks() * 16);

  v1::RegisterModelResponse again;
  grpc::ClientContext second;
  ASSERT_TRUE(client_.stub().RegisterModel(&second, request, &again).ok());
  EXPECT_EQ(again.model_id(), response.model_id());
  spec->set_revision("other weights");
  grpc::ClientContext third;
  ASSERT_TRUE(client_.stub().RegisterModel(&third, request, &again).ok());
  EXPECT_NE(again.model_id(), response.model_id());
}

TEST_F(KvCacheServiceTest, StoreLookupFetch) {
  const std::string model = client_.Register("m", {1000});
  const v1::Prompt prompt = TokenPrompt(model, 1, 5);
  EXPECT_EQ(client_.Found(prompt), 0u);
  const std::vector<std::string> payloads = Payloads(1, 5, 1000);
  client_.StoreAll(prompt, 0, payloads);
  EXPECT_EQ(client_.Found(prompt), 5u);
  ExpectBlocks(client_.Fetch(FetchOf(prompt, 0, 5)), payloads);
  ExpectBlocks(client_.Fetch(FetchOf(prompt, 2, 4)), {payloads[2], payloads[3]});
  const uint64_t lease = client_.Lease(prompt, 1000);
  ASSERT_NE(lease, 0u);
  ExpectBlocks(client_.Fetch(FetchOf(lease, 1, 5)),
               {payloads[1], payloads[2], payloads[3], payloads[4]});
  EXPECT_EQ(server_.stats().of(Rpc::kFetch).by_code[0].value(), 3u);
}

TEST_F(KvCacheServiceTest, LookupFindsTheLongestPrefixAndItsTier) {
  const std::string model = client_.Register("m", {64});
  v1::LookupRequest request;
  *request.mutable_prompt() = TokenPrompt(model, 1, 6);
  client_.StoreAll(TokenPrompt(model, 1, 4), 0, Payloads(1, 4, 64));
  request.mutable_prompt()->add_tokens(1);  // no full block
  v1::LookupResponse response;
  ASSERT_TRUE(client_.Lookup(request, &response).ok());
  EXPECT_EQ(response.blocks(), 4u);
  EXPECT_EQ(response.tokens(), 16u);
  ASSERT_EQ(response.runs_size(), 1);
  EXPECT_EQ(response.runs(0).tier(), v1::TIER_RAM);
  EXPECT_EQ(response.runs(0).blocks(), 4u);
  ASSERT_EQ(response.group_blocks_size(), 1);
  EXPECT_EQ(response.group_blocks(0), 4u);
  EXPECT_EQ(response.lease_id(), 0u);
  // Another last token of block 2 leaves the two blocks before it.
  request.mutable_prompt()->set_tokens(11, 999);
  ASSERT_TRUE(client_.Lookup(request, &response).ok());
  EXPECT_EQ(response.blocks(), 2u);
}

TEST_F(KvCacheServiceTest, LookupSaysHowLongEachRunTakesToFetch) {
  const v1::Prompt prompt = TokenPrompt(client_.Register("m", {1000, 500}, 4, 2), 1, 3);
  for (uint32_t group = 0; group < 2; ++group) {
    v1::Part part;
    part.set_layer_group(group);
    client_.StoreAll(prompt, 0, Payloads(1, 3, group == 0 ? 1000 : 500), part);
  }
  const auto load_seconds = [&] {
    v1::LookupRequest request;
    *request.mutable_prompt() = prompt;
    v1::LookupResponse response;
    EXPECT_TRUE(client_.Lookup(request, &response).ok());
    EXPECT_EQ(response.runs_size(), 1);
    return response.runs(0).load_seconds();
  };
  EXPECT_EQ(load_seconds(), 0);
  TimePoint now{};
  FetchMeter fetch(now);
  BytesByTier bytes{};
  bytes[static_cast<int>(TierKind::kRam)] = kMiB;
  fetch.WriteBegins(bytes, now);
  fetch.WriteEnds(now + std::chrono::milliseconds(1));
  server_.manager().speeds().Record(fetch);
  EXPECT_DOUBLE_EQ(load_seconds(), 3 * 1500 * 1e-3 / kMiB);
}

TEST_F(KvCacheServiceTest, BlockIsVisibleWithAllItsParts) {
  const std::string model = client_.Register("m", {100, 200, 300, 400}, 4, 2);
  const v1::Prompt prompt = TokenPrompt(model, 1, 2);
  for (uint32_t index = 0; index < 4; ++index) {
    EXPECT_EQ(client_.Found(prompt), 0u);
    v1::Part part;
    part.set_layer_group(index / 2);
    part.set_rank(index % 2);
    client_.StoreAll(prompt, 0, Payloads(index, 2, 100 * (index + 1)), part);
  }
  EXPECT_EQ(client_.Found(prompt), 2u);
  const uint64_t lease = client_.Lease(prompt, 1000);
  for (uint32_t index = 0; index < 4; ++index) {
    v1::FetchRequest request = FetchOf(lease, 0, 2);
    request.mutable_part()->set_layer_group(index / 2);
    request.mutable_part()->set_rank(index % 2);
    ExpectBlocks(client_.Fetch(request), Payloads(index, 2, 100 * (index + 1)));
  }
}

TEST_F(KvCacheServiceTest, FetchEndsAtTheFirstMissUnlessGapsAreAllowed) {
  const std::string model = client_.Register("m", {50});
  const v1::Prompt prompt = TokenPrompt(model, 1, 5);
  client_.StoreAll(prompt, 0, Payloads(1, 2, 50));
  ServiceClient::Fetched fetched = client_.Fetch(FetchOf(prompt, 0, 5));
  ASSERT_TRUE(fetched.status.ok());
  ASSERT_EQ(fetched.blocks.size(), 3u);
  EXPECT_TRUE(fetched.blocks[0].has_value());
  EXPECT_FALSE(fetched.blocks[2].has_value());
  v1::FetchRequest request = FetchOf(prompt, 0, 5);
  request.set_allow_gaps(true);
  fetched = client_.Fetch(request);
  ASSERT_TRUE(fetched.status.ok());
  ASSERT_EQ(fetched.blocks.size(), 5u);
  EXPECT_TRUE(fetched.blocks[1].has_value());
  EXPECT_FALSE(fetched.blocks[4].has_value());
}

// Ten thousand misses do not fit one message.
TEST_F(KvCacheServiceTest, LongRunsOfMissesAreSplit) {
  const std::string model = client_.Register("m", {50}, 1);
  v1::FetchRequest request = FetchOf(TokenPrompt(model, 1, 10'000, 1), 0, 10'000);
  request.set_allow_gaps(true);
  const ServiceClient::Fetched fetched = client_.Fetch(request);
  ASSERT_TRUE(fetched.status.ok());
  EXPECT_EQ(fetched.blocks.size(), 10'000u);
  EXPECT_EQ(fetched.messages, 3u);
}

TEST_F(KvCacheServiceTest, StoringAgainIsANoOpAndTheFirstBytesStay) {
  const std::string model = client_.Register("m", {500});
  const v1::Prompt prompt = TokenPrompt(model, 1, 3);
  const std::vector<std::string> first = Payloads(1, 2, 500);
  client_.StoreAll(prompt, 0, first);
  std::vector<std::string> second = {first[0], PayloadBytes(77, 500), PayloadBytes(78, 500)};
  v1::StoreResponse response;
  ASSERT_TRUE(client_.Store(prompt, 0, second, &response).ok());
  ASSERT_EQ(response.outcomes_size(), 3);
  EXPECT_EQ(response.outcomes(0).status(), v1::STORE_STATUS_ALREADY_PRESENT);
  EXPECT_EQ(response.outcomes(1).status(), v1::STORE_STATUS_ALREADY_PRESENT);
  EXPECT_EQ(response.outcomes(2).status(), v1::STORE_STATUS_STORED);
  EXPECT_EQ(response.checksum_mismatches(), 1u);
  ExpectBlocks(client_.Fetch(FetchOf(prompt, 0, 3)), {first[0], first[1], second[2]});
}

TEST_F(KvCacheServiceTest, WrongChecksumIsRejectedAndCounted) {
  const std::string model = client_.Register("m", {500});
  const v1::Prompt prompt = TokenPrompt(model, 1, 2);
  const std::vector<std::string> payloads = Payloads(1, 2, 500);
  v1::StoreResponse response;
  grpc::ClientContext context;
  auto stream = client_.stub().Store(&context, &response);
  ASSERT_TRUE(stream->Write(HeaderOf(prompt, 0, 2)));
  v1::StoreRequest message;
  *message.add_pieces() = PieceOf(0, payloads[0], 0, 500);
  *message.add_pieces() = PieceOf(1, payloads[1], 0, 500);
  message.mutable_pieces(1)->mutable_payload()->at(499) ^= 1;
  ASSERT_TRUE(stream->Write(message));
  stream->WritesDone();
  ASSERT_TRUE(stream->Finish().ok());
  EXPECT_EQ(response.outcomes(0).status(), v1::STORE_STATUS_STORED);
  EXPECT_EQ(response.outcomes(1).status(), v1::STORE_STATUS_REJECTED);
  EXPECT_EQ(response.outcomes(1).reason(), v1::REJECT_REASON_CHECKSUM);
  EXPECT_EQ(server_.manager().stats().checksum_failures, 1u);
  EXPECT_EQ(client_.Found(prompt), 1u);
  client_.StoreAll(prompt, 1, {payloads[1]});
  ExpectBlocks(client_.Fetch(FetchOf(prompt, 0, 2)), payloads);
}

TEST_F(KvCacheServiceTest, BlocksWithoutTheirParentAreRejected) {
  const std::string model = client_.Register("m", {50});
  const v1::Prompt prompt = TokenPrompt(model, 1, 3);
  v1::StoreResponse response;
  ASSERT_TRUE(client_.Store(prompt, 1, Payloads(1, 2, 50), &response).ok());
  ASSERT_EQ(response.outcomes_size(), 2);
  EXPECT_EQ(response.outcomes(0).reason(), v1::REJECT_REASON_NO_PARENT);
  EXPECT_EQ(response.outcomes(1).reason(), v1::REJECT_REASON_NO_PARENT);
  client_.StoreAll(prompt, 0, Payloads(1, 3, 50));
}

TEST_F(KvCacheServiceTest, BlocksNotSentAreSaidToBe) {
  const std::string model = client_.Register("m", {100});
  const v1::Prompt prompt = TokenPrompt(model, 1, 3);
  const std::vector<std::string> payloads = Payloads(1, 3, 100);
  v1::StoreResponse response;
  grpc::ClientContext context;
  auto stream = client_.stub().Store(&context, &response);
  stream->Write(HeaderOf(prompt, 0, 3));
  v1::StoreRequest message;
  *message.add_pieces() = PieceOf(0, payloads[0], 0, 100);
  *message.add_pieces() = PieceOf(1, payloads[1], 0, 99);
  stream->Write(message);
  stream->WritesDone();
  ASSERT_TRUE(stream->Finish().ok());
  EXPECT_EQ(response.outcomes(0).status(), v1::STORE_STATUS_STORED);
  EXPECT_EQ(response.outcomes(1).reason(), v1::REJECT_REASON_NOT_SENT);
  EXPECT_EQ(response.outcomes(2).reason(), v1::REJECT_REASON_NOT_SENT);
  EXPECT_EQ(client_.Found(prompt), 1u);
}

TEST_F(KvCacheServiceTest, NothingCrossesANamespaceOrAModel) {
  const std::string model = client_.Register("m", {64});
  const std::string other_model = client_.Register("n", {64});
  v1::Prompt own = TokenPrompt(model, 1, 4);
  own.mutable_namespace_()->set_tenant("t1");
  own.mutable_namespace_()->set_salt("s1");
  own.mutable_namespace_()->set_adapter("a1");
  const std::vector<std::string> payloads = Payloads(1, 4, 64);
  client_.StoreAll(own, 0, payloads);
  std::vector<v1::Prompt> others(7, own);
  others[0].mutable_namespace_()->set_tenant("t2");
  others[1].mutable_namespace_()->set_salt("s2");
  others[2].mutable_namespace_()->clear_salt();
  others[3].mutable_namespace_()->set_adapter("a2");
  others[4].set_model_id(other_model);
  others[5].clear_namespace_();
  others[6].mutable_namespace_()->set_tenant("t1s");  // shifts bytes between fields
  others[6].mutable_namespace_()->set_salt("1");
  for (const v1::Prompt& other : others) {
    SCOPED_TRACE(other.namespace_().ShortDebugString());
    EXPECT_EQ(client_.Found(other), 0u);
    const ServiceClient::Fetched fetched = client_.Fetch(FetchOf(other, 0, 4));
    ASSERT_EQ(fetched.blocks.size(), 1u);
    EXPECT_FALSE(fetched.blocks[0].has_value());
    EXPECT_EQ(client_.Found(own), 4u);
    ExpectBlocks(client_.Fetch(FetchOf(own, 0, 4)), payloads);
  }
}

// 16 tokens of text, 32 that stand for an image, 16 of text: blocks of 4.
TEST_F(KvCacheServiceTest, MediaEntersTheIdentityOfTheBlocksItTouches) {
  const std::string model = client_.Register("m", {64});
  v1::Prompt prompt = TokenPrompt(model, 1, 16);
  for (int i = 16; i < 48; ++i) prompt.set_tokens(i, 7);
  v1::MediaSpan* span = prompt.add_media();
  span->set_first_token(16);
  span->set_token_count(32);
  span->set_digest(std::string(16, 'x'));
  client_.StoreAll(prompt, 0, Payloads(1, 16, 64));
  EXPECT_EQ(client_.Found(prompt), 16u);
  v1::Prompt other = prompt;
  other.mutable_media(0)->set_digest(std::string(16, 'y'));
  EXPECT_EQ(client_.Found(other), 4u);
  other = prompt;
  other.clear_media();
  EXPECT_EQ(client_.Found(other), 4u);
  other = prompt;
  other.mutable_media(0)->set_first_token(18);
  other.mutable_media(0)->set_token_count(30);
  EXPECT_EQ(client_.Found(other), 4u);
}

TEST_F(KvCacheServiceTest, EngineHashesAreIdentities) {
  const std::string model = client_.Register("m", {64});
  v1::Prompt prompt;
  prompt.set_model_id(model);
  for (char c : {'a', 'b', 'c'}) prompt.add_engine_hashes(std::string(8, c));
  const std::vector<std::string> payloads = Payloads(1, 3, 64);
  client_.StoreAll(prompt, 0, payloads);
  EXPECT_EQ(client_.Found(prompt), 3u);
  ExpectBlocks(client_.Fetch(FetchOf(prompt, 0, 3)), payloads);
  v1::Prompt other = prompt;
  other.set_engine_hashes(1, std::string(8, 'x'));
  EXPECT_EQ(client_.Found(other), 1u);
  // The same bytes as hashes of another length, or as tokens, are another prompt.
  other.clear_engine_hashes();
  other.add_engine_hashes(std::string(8, 'a') + std::string(8, 'b'));
  EXPECT_EQ(client_.Found(other), 0u);
  other.clear_engine_hashes();
  for (int i = 0; i < 8; ++i) other.add_tokens(0x61616161);
  EXPECT_EQ(client_.Found(other), 0u);
  EXPECT_EQ(client_.Found(prompt), 3u);
}

TEST_F(KvCacheServiceTest, LeadingBlocksAreKeptWhenOnlySomeFit) {
  const std::string model = client_.Register("m", {16 * kMiB});
  const v1::Prompt prompt = TokenPrompt(model, 1, 5);
  const std::vector<std::string> payloads = Payloads(1, 5, 16 * kMiB);
  v1::StoreResponse response;
  ASSERT_TRUE(client_.Store(prompt, 0, payloads, &response).ok());
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(response.outcomes(i).status(), v1::STORE_STATUS_STORED) << i;
  }
  EXPECT_EQ(response.outcomes(4).reason(), v1::REJECT_REASON_NO_SPACE);
  ExpectBlocks(client_.Fetch(FetchOf(prompt, 0, 4)),
               {payloads[0], payloads[1], payloads[2], payloads[3]});
}

TEST_F(KvCacheServiceTest, ResetWhileStoring) {
  const std::string model = client_.Register("m", {100});
  const v1::Prompt prompt = TokenPrompt(model, 1, 2);
  const std::vector<std::string> payloads = Payloads(1, 2, 100);
  v1::StoreResponse response;
  grpc::ClientContext context;
  auto stream = client_.stub().Store(&context, &response);
  stream->Write(HeaderOf(prompt, 0, 2));
  v1::StoreRequest message;
  *message.add_pieces() = PieceOf(0, payloads[0], 0, 100);
  stream->Write(message);
  uint32_t found = 0;
  for (int i = 0; i < 100'000 && found == 0; ++i) found = client_.Found(prompt);
  ASSERT_EQ(found, 1u);
  ASSERT_TRUE(server_.manager().ResetModel(*ModelId::FromBytes(model)).ok());
  message.Clear();
  *message.add_pieces() = PieceOf(1, payloads[1], 0, 100);
  stream->Write(message);
  stream->WritesDone();
  ASSERT_TRUE(stream->Finish().ok());
  EXPECT_EQ(response.outcomes(1).reason(), v1::REJECT_REASON_RESET);
  EXPECT_EQ(client_.Found(prompt), 0u);
  client_.StoreAll(prompt, 0, payloads);
  EXPECT_EQ(client_.Found(prompt), 2u);
}

struct SizeCase {
  uint64_t part_bytes;
  uint32_t blocks;
};

class PartSizeTest : public ::testing::TestWithParam<SizeCase> {};

// The default message limit of gRPC is 4 MiB: parts around it and far above, and many small ones.
TEST_P(PartSizeTest, RoundTrips) {
  const SizeCase size = GetParam();
  TestServerOptions options;
  options.ram_bytes = 160 * kMiB;
  TestServer server(options);
  ServiceClient client(server.address());
  const std::string model = client.Register("m", {size.part_bytes});
  const v1::Prompt prompt = TokenPrompt(model, 1, size.blocks);
  const std::vector<std::string> payloads = Payloads(1, size.blocks, size.part_bytes);
  client.StoreAll(prompt, 0, payloads);
  EXPECT_EQ(client.Found(prompt), size.blocks);
  const ServiceClient::Fetched fetched = client.Fetch(FetchOf(prompt, 0, size.blocks));
  ExpectBlocks(fetched, payloads);
  // Messages are filled to the limit, so no more than it takes.
  const uint64_t total = size.part_bytes * size.blocks;
  EXPECT_LE(fetched.messages, (total + kMiB - 1) / kMiB);
}

INSTANTIATE_TEST_SUITE_P(
    Sizes, PartSizeTest,
    ::testing::Values(SizeCase{1, 3}, SizeCase{2047, 10}, SizeCase{2048, 10}, SizeCase{kMiB - 1, 3},
                      SizeCase{kMiB, 3}, SizeCase{kMiB + 1, 3}, SizeCase{4089446, 3},
                      SizeCase{4 * kMiB, 3}, SizeCase{4299162, 3}, SizeCase{16 * kMiB, 2},
                      SizeCase{64 * kMiB, 2}, SizeCase{64 << 10, 512}),
    [](const auto& info) { return absl::StrCat(info.param.part_bytes, "x", info.param.blocks); });

// With a slower tier below RAM, fetching and storing go through the executor.
TEST(LowerTierTest, BlocksBeyondRamComeBack) {
  TestServerOptions options;
  options.ram_bytes = 8 * kMiB;
  options.ssd_bytes = 64 * kMiB;
  TestServer server(options);
  ServiceClient client(server.address());
  const std::string model = client.Register("m", {kMiB});
  std::vector<v1::Prompt> prompts;
  for (uint32_t i = 0; i < 6; ++i) {
    prompts.push_back(TokenPrompt(model, i, 4));
    client.StoreAll(prompts[i], 0, Payloads(i, 4, kMiB));
  }
  EXPECT_GT(server.manager().stats().tiers[static_cast<int>(TierKind::kSsd)].blocks, 0u);
  for (int round = 0; round < 2; ++round) {
    for (uint32_t i = 0; i < 6; ++i) {
      EXPECT_EQ(client.Found(prompts[i]), 4u);
      ExpectBlocks(client.Fetch(FetchOf(prompts[i], 0, 4)), Payloads(i, 4, kMiB));
    }
  }
}

// The wait for the slower tier is that tier's, and is in the lease's time.
TEST(LowerTierTest, FetchesMeasureTheTierTheyWaitFor) {
  TestServerOptions options;
  options.ram_bytes = 8 * kMiB;
  options.ssd_bytes = 64 * kMiB;
  options.service.prefill_tokens_per_second = 1000;
  TestServer server(options);
  ServiceClient client(server.address());
  const std::string model = client.Register("m", {kMiB});
  for (uint32_t i = 0; i < 4; ++i) {
    client.StoreAll(TokenPrompt(model, i, 4), 0, Payloads(i, 4, kMiB));
  }
  const uint64_t lease = client.Lease(TokenPrompt(model, 0, 4), 60'000);
  server.ssd()->read_gate().Close(4);
  ServiceClient::Fetched fetched;
  {
    ThreadPool other(1);
    other.Run([&] { fetched = client.Fetch(FetchOf(lease, 0, 4)); });
    server.ssd()->read_gate().WaitForHeld(2);  // all are at least asked for
    server.clock().Advance(std::chrono::milliseconds(200));
    server.ssd()->read_gate().Open();
  }
  ExpectBlocks(fetched, Payloads(0, 4, kMiB));
  v1::ReleaseRequest release;
  release.set_lease_id(lease);
  release.set_verified_blocks(4);
  v1::ReleaseResponse released;
  grpc::ClientContext context;
  ASSERT_TRUE(client.stub().Release(&context, release, &released).ok());
  server.Stop();
  const ManagerStats stats = server.manager().stats();
  const TierStats& ssd = stats.tiers[static_cast<int>(TierKind::kSsd)];
  ASSERT_TRUE(ssd.speed.measured());
  EXPECT_GT(ssd.speed.LoadSeconds(4 * kMiB), 0.19);
  EXPECT_FALSE(stats.tiers[static_cast<int>(TierKind::kRam)].speed.measured());
  EXPECT_EQ(ssd.fetched_blocks, 4u);
  EXPECT_EQ(stats.verified_blocks, 4u);
  EXPECT_DOUBLE_EQ(stats.prefill_seconds, 16 / 1000.0);
  EXPECT_DOUBLE_EQ(stats.lease_fetch_seconds, 0.2);
}

TEST(LowerTierTest, DurableIsAnsweredOnceItIsOnSsd) {
  TestServerOptions options;
  options.ssd_bytes = 64 * kMiB;
  TestServer server(options);
  ServiceClient client(server.address());
  const v1::Prompt prompt = TokenPrompt(client.Register("m", {kMiB}), 1, 4);
  const auto on_ssd = [&] {
    return server.manager().stats().tiers[static_cast<int>(TierKind::kSsd)].blocks;
  };
  client.StoreAll(prompt, 0, Payloads(1, 3, kMiB));
  EXPECT_EQ(on_ssd(), 0u);
  v1::StoreResponse response;
  const std::vector<std::string> last = {Payloads(1, 4, kMiB)[3]};
  ASSERT_TRUE(client.Store(prompt, 3, last, &response, {}, kMiB, v1::DURABILITY_DURABLE).ok());
  EXPECT_EQ(response.outcomes(0).status(), v1::STORE_STATUS_STORED);
  EXPECT_EQ(on_ssd(), 4u);  // those before it too
  // Naming what is there already is enough.
  client.StoreAll(TokenPrompt(prompt.model_id(), 2, 2), 0, Payloads(2, 2, kMiB));
  ASSERT_TRUE(client
                  .Store(TokenPrompt(prompt.model_id(), 2, 2), 1, {Payloads(2, 2, kMiB)[1]},
                         &response, {}, kMiB, v1::DURABILITY_DURABLE)
                  .ok());
  EXPECT_EQ(response.outcomes(0).status(), v1::STORE_STATUS_ALREADY_PRESENT);
  EXPECT_EQ(on_ssd(), 6u);
}

TEST(LowerTierTest, DurableSaysWhenTheSsdTakesNothing) {
  TestServerOptions options;
  options.ssd_bytes = 64 * kMiB;
  TestServer server(options);
  ServiceClient client(server.address());
  const v1::Prompt prompt = TokenPrompt(client.Register("m", {kMiB}), 1, 2);
  server.ssd()->SetWritable(absl::UnavailableError("disk is full"));
  v1::StoreResponse response;
  ExpectError(
      client.Store(prompt, 0, Payloads(1, 2, kMiB), &response, {}, kMiB, v1::DURABILITY_DURABLE),
      grpc::StatusCode::RESOURCE_EXHAUSTED, {"not durable", "disk is full"});
  ExpectBlocks(client.Fetch(FetchOf(prompt, 0, 2)), Payloads(1, 2, kMiB));
  server.ssd()->SetWritable(absl::OkStatus());
  EXPECT_TRUE(
      client.Store(prompt, 0, Payloads(1, 2, kMiB), &response, {}, kMiB, v1::DURABILITY_DURABLE)
          .ok());
}

// Whose model would be unknown after a restart could not be found.
TEST(LowerTierTest, NothingIsDurableBeforeItsModelIs) {
  std::atomic<bool> full = true;
  TestServerOptions options;
  options.ssd_bytes = 64 * kMiB;
  options.service.save_models = [&full] {
    return full ? absl::ResourceExhaustedError("models: disk is full") : absl::OkStatus();
  };
  TestServer server(options);
  ServiceClient client(server.address());
  const v1::Prompt prompt = TokenPrompt(client.Register("m", {kMiB}), 1, 2);
  v1::StoreResponse response;
  const auto store = [&] {
    return client.Store(prompt, 0, Payloads(1, 2, kMiB), &response, {}, kMiB,
                        v1::DURABILITY_DURABLE);
  };
  ExpectError(store(), grpc::StatusCode::RESOURCE_EXHAUSTED,
              {"not durable", "models: disk is full"});
  ExpectBlocks(client.Fetch(FetchOf(prompt, 0, 2)), Payloads(1, 2, kMiB));
  full = false;
  EXPECT_TRUE(store().ok());
}

TEST(LowerTierTest, AModelThatCannotBeSavedIsRefusedAndTheReasonTold) {
  TestServerOptions options;
  options.ssd_bytes = 64 * kMiB;
  std::atomic<bool> broken = true;
  options.service.save_model = [&broken](const ModelSpec&) {
    return broken ? absl::UnavailableError("models: disk is broken") : absl::OkStatus();
  };
  TestServer server(options);
  ServiceClient client(server.address());
  v1::RegisterModelRequest request;
  request.mutable_spec()->set_name("m");
  request.mutable_spec()->set_block_tokens(4);
  request.mutable_spec()->set_pack_order(v1::PACK_ORDER_OPAQUE);
  request.mutable_spec()->add_explicit_part_bytes(kMiB);
  v1::RegisterModelResponse response;
  grpc::ClientContext first, second;
  ExpectError(client.stub().RegisterModel(&first, request, &response),
              grpc::StatusCode::UNAVAILABLE, {"models: disk is broken"});
  EXPECT_EQ(server.manager().stats().models, 0u);
  broken = false;
  EXPECT_TRUE(client.stub().RegisterModel(&second, request, &response).ok());
}

TEST(RecordingTest, LookupsAreRecordedButForThoseOfAStore) {
  TempFolder folder;
  const SteadyClock clock{};
  ThreadPool writer(1);
  Recorder recorder(folder / "recordings", &writer, &clock);
  TestServerOptions options;
  options.service.recorder = &recorder;
  TestServer server(options);
  ServiceClient client(server.address());
  const std::string model = client.Register("secret-name", {64});
  v1::LookupRequest request;
  *request.mutable_prompt() = TokenPrompt(model, 1, 3);
  request.mutable_prompt()->add_tokens(1);
  v1::LookupResponse response;
  ASSERT_TRUE(client.Lookup(request, &response).ok());  // before it is on

  ASSERT_TRUE(recorder.Start({}).ok());
  ASSERT_TRUE(client.Lookup(request, &response).ok());
  request.set_before_store(true);
  ASSERT_TRUE(client.Lookup(request, &response).ok());
  request.set_before_store(false);
  request.mutable_prompt()->clear_tokens();
  for (int i = 0; i < 2; ++i) request.mutable_prompt()->add_engine_hashes("12345678");
  ASSERT_TRUE(client.Lookup(request, &response).ok());
  const absl::StatusOr<RecordingStatus> ended = recorder.Stop();
  ASSERT_TRUE(ended.ok()) << ended.status();
  EXPECT_EQ(ended->requests, 2u);
  std::ostringstream text;
  text << std::ifstream(ended->files.back()).rdbuf();
  std::vector<std::string> lines;
  std::istringstream in(text.str());
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  ASSERT_EQ(lines.size(), 2u) << text.str();
  EXPECT_NE(lines[0].find("\"block_tokens\":4,\"input_length\":13,"), std::string::npos);
  EXPECT_EQ(std::count(lines[0].begin(), lines[0].end(), ','), 5 + 2);
  EXPECT_NE(lines[1].find("\"input_length\":8,"), std::string::npos);
  EXPECT_EQ(std::count(lines[1].begin(), lines[1].end(), ','), 5 + 1);
  server.Stop();
  writer.WaitIdle();
}

}  // namespace
}  // namespace kvtier
