// FetchShared: what it names is what was stored, for as long as the lease lasts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <limits>
#include <set>

#include "tests/service/shared_calls.h"
#include "tests/support/open_files.h"

namespace kvtier {
namespace {

using grpc::StatusCode;

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kPart = 10'000;  // no multiple of anything

std::vector<std::string> Payloads(uint64_t seed, uint32_t blocks, uint64_t bytes = kPart) {
  std::vector<std::string> out;
  for (uint32_t i = 0; i < blocks; ++i) out.push_back(PayloadBytes(seed * 1000 + i, bytes));
  return out;
}

std::vector<v1::BlockStatus> StatusesOf(const SharedCalls::Fetched& fetched) {
  std::vector<v1::BlockStatus> out;
  for (const v1::SharedBlock& block : fetched.blocks) out.push_back(block.status());
  return out;
}

TestServerOptions Shared(uint64_t ram_bytes = 64 * kMiB, uint64_t ssd_bytes = 0) {
  TestServerOptions options;
  options.ram_bytes = ram_bytes;
  options.ssd_bytes = ssd_bytes;
  options.shared_memory = true;
  return options;
}

class FetchSharedTest : public ::testing::Test {
 protected:
  explicit FetchSharedTest(TestServerOptions options = Shared()) : server_(std::move(options)) {}

  static void ExpectBlocks(const SharedCalls::Fetched& fetched,
                           const std::vector<std::string>& want) {
    ASSERT_TRUE(fetched.status.ok()) << fetched.status.error_message();
    ASSERT_EQ(fetched.bytes.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      ASSERT_TRUE(fetched.bytes[i].has_value()) << "block " << i;
      ASSERT_TRUE(*fetched.bytes[i] == want[i]) << "block " << i;
    }
  }

  TestServer server_;
  ServiceClient client_{server_.address()};
  RawSharedClient session_ = RawSharedClient::Joined(server_.shared_memory()->socket_path());
  SharedCalls calls_{&client_, &session_};
  const std::string model_ = client_.Register("m", {kPart});
};

TEST_F(FetchSharedTest, RegisterTellsTheSocket) {
  v1::RegisterModelRequest request;
  request.mutable_spec()->set_name("other");
  request.mutable_spec()->set_block_tokens(4);
  request.mutable_spec()->add_explicit_part_bytes(100);
  request.mutable_spec()->set_layout_fingerprint("test");
  request.mutable_spec()->set_pack_order(v1::PACK_ORDER_OPAQUE);
  v1::RegisterModelResponse response;
  grpc::ClientContext context;
  ASSERT_TRUE(client_.stub().RegisterModel(&context, request, &response).ok());
  EXPECT_EQ(response.shared_memory_socket(), server_.shared_memory()->socket_path());

  TestServer plain;
  ServiceClient of_plain(plain.address());
  grpc::ClientContext second;
  ASSERT_TRUE(of_plain.stub().RegisterModel(&second, request, &response).ok());
  EXPECT_EQ(response.shared_memory_socket(), "");
}

TEST_F(FetchSharedTest, NamesWhereTheBytesLie) {
  const v1::Prompt prompt = TokenPrompt(model_, 1, 20);
  const std::vector<std::string> payloads = Payloads(1, 20);
  client_.StoreAll(prompt, 0, payloads);
  const uint64_t lease = client_.Lease(prompt, 1000);
  const SharedCalls::Fetched all = calls_.Fetch(calls_.FetchOf(lease, 0, 20));
  ExpectBlocks(all, payloads);
  EXPECT_EQ(all.messages, 1u);
  ExpectBlocks(calls_.Fetch(calls_.FetchOf(lease, 7, 9)), {payloads[7], payloads[8]});
  const SharedMemoryCounters& counters = server_.shared_memory()->counters();
  EXPECT_EQ(counters.fetched_blocks.value(), 22u);
  EXPECT_EQ(counters.fetched_bytes.value(), 22 * kPart);
  EXPECT_EQ(server_.manager().stats().fetched_blocks, 22u);
  EXPECT_EQ(server_.stats().of(Rpc::kFetchShared).by_code[0].value(), 2u);
}

TEST_F(FetchSharedTest, PartsHaveTheirOwnPlaces) {
  const std::string model = client_.Register("parts", {300, 200, 5000, 1}, 4, 2);
  const v1::Prompt prompt = TokenPrompt(model, 1, 2);
  const uint64_t sizes[] = {300, 200, 5000, 1};
  for (uint32_t i = 0; i < 4; ++i) {
    v1::Part part;
    part.set_layer_group(i / 2);
    part.set_rank(i % 2);
    client_.StoreAll(prompt, 0, Payloads(i, 2, sizes[i]), part);
  }
  const uint64_t lease = client_.Lease(prompt, 1000);
  for (uint32_t i = 0; i < 4; ++i) {
    v1::FetchSharedRequest request = calls_.FetchOf(lease, 0, 2);
    request.mutable_part()->set_layer_group(i / 2);
    request.mutable_part()->set_rank(i % 2);
    ExpectBlocks(calls_.Fetch(request), Payloads(i, 2, sizes[i]));
  }
}

// More blocks than one message has: still all of them, in order.
TEST_F(FetchSharedTest, ManyBlocksComeInSeveralMessages) {
  const std::string model = client_.Register("small", {16}, 1);
  constexpr uint32_t kBlocks = 10'000;
  const v1::Prompt prompt = TokenPrompt(model, 1, kBlocks, 1);
  const std::vector<std::string> payloads = Payloads(1, kBlocks, 16);
  for (uint32_t i = 0; i < kBlocks; i += 4000) {
    const uint32_t end = std::min(kBlocks, i + 4000);
    client_.StoreAll(prompt, i, {payloads.begin() + i, payloads.begin() + end});
  }
  const uint64_t lease = client_.Lease(prompt, 1000);
  const SharedCalls::Fetched fetched = calls_.Fetch(calls_.FetchOf(lease, 0, kBlocks));
  ExpectBlocks(fetched, payloads);
  EXPECT_EQ(fetched.messages, 3u);
}

TEST_F(FetchSharedTest, Refusals) {
  const v1::Prompt prompt = TokenPrompt(model_, 1, 2);
  client_.StoreAll(prompt, 0, Payloads(1, 2));
  const uint64_t lease = client_.Lease(prompt, 1000);
  const v1::FetchSharedRequest good = calls_.FetchOf(lease, 0, 2);
  const auto refused = [&](auto change) {
    v1::FetchSharedRequest request = good;
    change(&request);
    return calls_.Fetch(request).status;
  };
  using Request = v1::FetchSharedRequest;
  ExpectError(refused([](Request* r) { r->set_session_id(std::string(16, 'x')); }),
              StatusCode::NOT_FOUND, {"session_id"});
  ExpectError(refused([](Request* r) { r->clear_session_id(); }), StatusCode::INVALID_ARGUMENT,
              {"session_id has 0 bytes"});
  ExpectError(refused([](Request* r) { r->mutable_session_id()->pop_back(); }),
              StatusCode::INVALID_ARGUMENT, {"session_id has 15 bytes"});
  ExpectError(refused([](Request* r) { r->mutable_session_id()->push_back('x'); }),
              StatusCode::INVALID_ARGUMENT, {"session_id has 17 bytes"});
  ExpectError(refused([](Request* r) { r->clear_lease_id(); }), StatusCode::INVALID_ARGUMENT,
              {"lease_id"});
  ExpectError(refused([](Request* r) { r->set_lease_id(r->lease_id() + 1); }),
              StatusCode::NOT_FOUND, {"lease"});
  ExpectError(refused([](Request* r) { r->set_last_block(3); }), StatusCode::INVALID_ARGUMENT,
              {"last_block"});
  ExpectError(refused([](Request* r) { r->set_first_block(2); }), StatusCode::INVALID_ARGUMENT,
              {"first_block"});
  ExpectError(refused([](Request* r) { r->mutable_part()->set_rank(1); }),
              StatusCode::INVALID_ARGUMENT, {"part.rank"});
  EXPECT_TRUE(calls_.Fetch(good).status.ok());
  server_.clock().Advance(std::chrono::seconds(1));
  ExpectError(calls_.Fetch(good).status, StatusCode::NOT_FOUND, {"lease"});
}

TEST_F(FetchSharedTest, ADaemonWithoutSharedMemoryKnowsNoSession) {
  TestServer plain;
  ServiceClient client(plain.address());
  SharedCalls calls(&client, &session_);
  ExpectError(calls.Fetch(calls.FetchOf(1, 0, 1)).status, StatusCode::NOT_FOUND,
              {"no shared memory"});
}

TEST_F(FetchSharedTest, WhatTheClientTellsAtReleaseIsMeasured) {
  const v1::Prompt prompt = TokenPrompt(model_, 1, 2);
  client_.StoreAll(prompt, 0, Payloads(1, 2));
  const uint64_t lease = client_.Lease(prompt, 1000);
  ASSERT_TRUE(calls_.Fetch(calls_.FetchOf(lease, 0, 2)).status.ok());
  EXPECT_FALSE(server_.manager().speeds().speed(TierKind::kRam).measured());
  v1::ReleaseRequest release;
  release.set_lease_id(lease);
  release.set_shared_bytes(2 * kPart);
  const auto tell = [&](double seconds) {
    release.set_shared_seconds(seconds);
    v1::ReleaseResponse response;
    grpc::ClientContext context;
    return client_.stub().Release(&context, release, &response);
  };
  for (const double seconds : {-1.0, 1.1e6, std::numeric_limits<double>::quiet_NaN()}) {
    ExpectError(tell(seconds), StatusCode::INVALID_ARGUMENT, {"shared_seconds"});
  }
  EXPECT_TRUE(tell(0.01).ok());
  EXPECT_NEAR(server_.manager().speeds().speed(TierKind::kRam).LoadSeconds(kPart), 0.005, 1e-6);
}

// Churn far beyond RAM does not touch what a lease names, and does once it has ended.
TEST_F(FetchSharedTest, BytesStayUntilTheLeaseEnds) {
  const v1::Prompt prompt = TokenPrompt(model_, 1, 20);
  const std::vector<std::string> payloads = Payloads(1, 20);
  client_.StoreAll(prompt, 0, payloads);
  const uint64_t lease = client_.Lease(prompt, 1000);
  const SharedCalls::Fetched fetched = calls_.Fetch(calls_.FetchOf(lease, 0, 20));
  ExpectBlocks(fetched, payloads);
  const auto intact = [&] {
    uint32_t right = 0;
    for (uint32_t i = 0; i < 20; ++i) {
      const v1::SharedBlock& at = fetched.blocks[i];
      const char* bytes = reinterpret_cast<const char*>(session_.Map(at.region()).data());
      right += payloads[i] == std::string_view(bytes + at.offset(), at.bytes());
    }
    return right;
  };
  const auto churn = [&](uint32_t seed) {
    for (uint32_t i = 0; i < 20; ++i) {
      client_.StoreAll(TokenPrompt(model_, seed + i, 400), 0, Payloads(seed + i, 400));
    }
  };
  churn(100);
  EXPECT_EQ(intact(), 20u);
  server_.clock().Advance(std::chrono::seconds(1));
  server_.Tick();
  churn(200);
  EXPECT_EQ(intact(), 0u);  // it was in the way
}

TEST_F(FetchSharedTest, ShrinkingRetiresWhatIsMapped) {
  const v1::Prompt prompt = TokenPrompt(model_, 1, 4000);
  for (uint32_t i = 0; i < 4000; i += 1000) {
    client_.StoreAll(prompt, i, Payloads(i, 1000));
  }
  const uint64_t lease = client_.Lease(prompt, 1000);
  const SharedCalls::Fetched fetched = calls_.Fetch(calls_.FetchOf(lease, 0, 4000));
  ASSERT_TRUE(fetched.status.ok());
  // Under the lease nothing may move, so nothing is given up.
  EXPECT_TRUE(server_.manager().SetCapacity(TierKind::kRam, 8 * kMiB).ok());
  EXPECT_EQ(server_.shared_memory()->stats().retired_regions, 0u);
  EXPECT_GT(server_.manager().stats().tiers[1].usage.backed_bytes, 32 * kMiB);

  server_.clock().Advance(std::chrono::seconds(1));
  server_.Tick();
  EXPECT_LE(server_.manager().stats().tiers[1].usage.backed_bytes, 8 * kMiB);
  const uint64_t retired = server_.shared_memory()->stats().retired_bytes;
  EXPECT_GT(retired, 24 * kMiB);
  EXPECT_EQ(CountOpenFiles().memfd_bytes,
            retired + server_.manager().stats().tiers[1].usage.backed_bytes);
  std::set<uint64_t> regions;
  for (const v1::SharedBlock& block : fetched.blocks) regions.insert(block.region());
  for (const uint64_t region : regions) session_.Unmap(region);
  EXPECT_EQ(server_.shared_memory()->stats().retired_bytes, 0u);
  EXPECT_LE(CountOpenFiles().memfd_bytes, 8 * kMiB);
}

class FetchSharedSsdTest : public FetchSharedTest {
 protected:
  FetchSharedSsdTest() : FetchSharedTest(Shared(kMiB, 64 * kMiB)) {}
  void WriteOut(const v1::Prompt& prompt, const std::vector<std::string>& payloads) {
    v1::StoreResponse response;
    const grpc::Status status =
        client_.Store(prompt, 0, payloads, &response, {}, kMiB, v1::DURABILITY_DURABLE);
    ASSERT_TRUE(status.ok()) << status.error_message();
  }
};

TEST_F(FetchSharedSsdTest, BringsWhatIsOnSsdToRam) {
  const v1::Prompt prompt = TokenPrompt(model_, 1, 50);
  const std::vector<std::string> payloads = Payloads(1, 50);
  WriteOut(prompt, payloads);
  WriteOut(TokenPrompt(model_, 2, 90), Payloads(2, 90));  // pushes the first out of RAM
  const uint64_t before = server_.manager().stats().tiers[1].promotions;
  const uint64_t lease = client_.Lease(prompt, 1000);
  ExpectBlocks(calls_.Fetch(calls_.FetchOf(lease, 0, 50)), payloads);
  EXPECT_GT(server_.manager().stats().tiers[1].promotions, before);
}

// A lease on more than RAM holds: what has no room is said to be so, and comes by Fetch.
TEST_F(FetchSharedSsdTest, SaysWhatHasNoRoom) {
  const v1::Prompt prompt = TokenPrompt(model_, 1, 200);
  const std::vector<std::string> payloads = Payloads(1, 200);
  WriteOut(prompt, payloads);
  const uint64_t lease = client_.Lease(prompt, 1000);
  v1::FetchSharedRequest request = calls_.FetchOf(lease, 0, 200);
  const SharedCalls::Fetched short_one = calls_.Fetch(request);
  ASSERT_TRUE(short_one.status.ok()) << short_one.status.error_message();
  ASSERT_LT(short_one.blocks.size(), 200u);  // it ends at the first
  EXPECT_EQ(short_one.blocks.back().status(), v1::BLOCK_STATUS_NOT_SHARED);
  EXPECT_EQ(short_one.blocks.back().region(), 0u);

  request.set_allow_gaps(true);
  const SharedCalls::Fetched whole = calls_.Fetch(request);
  ASSERT_TRUE(whole.status.ok()) << whole.status.error_message();
  ASSERT_EQ(whole.blocks.size(), 200u);
  EXPECT_THAT(StatusesOf(whole), testing::Contains(v1::BLOCK_STATUS_OK));
  EXPECT_THAT(StatusesOf(whole), testing::Contains(v1::BLOCK_STATUS_NOT_SHARED));
  EXPECT_GT(server_.shared_memory()->counters().not_shared_blocks.value(), 1u);
  const ServiceClient::Fetched rest = client_.Fetch(FetchOf(lease, 0, 200));
  for (uint32_t i = 0; i < 200; ++i) {
    EXPECT_TRUE(rest.blocks[i] == payloads[i]) << i;
    EXPECT_TRUE(!whole.bytes[i] || whole.bytes[i] == payloads[i]) << i;
  }
}

TEST_F(FetchSharedSsdTest, WhatCannotBeReadIsAMiss) {
  const v1::Prompt prompt = TokenPrompt(model_, 1, 10);
  const std::vector<std::string> payloads = Payloads(1, 10);
  WriteOut(prompt, payloads);
  WriteOut(TokenPrompt(model_, 2, 95), Payloads(2, 95));
  const uint64_t lease = client_.Lease(prompt, 1000);
  server_.ssd()->FailReads(1, absl::DataLossError("damaged"));
  v1::FetchSharedRequest request = calls_.FetchOf(lease, 0, 10);
  request.set_allow_gaps(true);
  const SharedCalls::Fetched fetched = calls_.Fetch(request);
  ASSERT_EQ(fetched.blocks.size(), 10u);
  uint32_t missed = 0;
  for (uint32_t i = 0; i < 10; ++i) {
    missed += fetched.blocks[i].status() == v1::BLOCK_STATUS_MISS;
    EXPECT_TRUE(!fetched.bytes[i] || fetched.bytes[i] == payloads[i]) << i;
  }
  EXPECT_EQ(missed, 1u);
}

}  // namespace
}  // namespace kvtier
