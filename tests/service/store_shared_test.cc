// StoreShared: what lies in the store region is stored, and what a client can get wrong hurts
// nobody else.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>

#include "common/block_key.h"
#include "tests/service/shared_calls.h"

namespace kvtier {
namespace {

using grpc::StatusCode;

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kPart = 100'000;  // several pieces, the last one short
constexpr uint64_t kRegion = 2 * kMiB;

std::vector<std::string> Payloads(uint64_t seed, uint32_t blocks, uint64_t bytes = kPart) {
  std::vector<std::string> out;
  for (uint32_t i = 0; i < blocks; ++i) out.push_back(PayloadBytes(seed * 1000 + i, bytes));
  return out;
}

class StoreSharedTest : public ::testing::Test {
 protected:
  static TestServerOptions Options(uint64_t ssd_bytes = 0) {
    TestServerOptions options;
    options.ssd_bytes = ssd_bytes;
    options.shared_memory = true;
    options.shared.store_region_bytes = kRegion;
    return options;
  }
  explicit StoreSharedTest(TestServerOptions options = Options()) : server_(std::move(options)) {}

  void ExpectStored(const v1::Prompt& prompt, const std::vector<std::string>& want) {
    const ServiceClient::Fetched fetched =
        client_.Fetch(FetchOf(prompt, 0, static_cast<uint32_t>(want.size())));
    ASSERT_TRUE(fetched.status.ok()) << fetched.status.error_message();
    ASSERT_EQ(fetched.blocks.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(fetched.blocks[i] == want[i]) << i;
  }
  grpc::Status Refused(const v1::StoreSharedRequest& request) {
    v1::StoreResponse response;
    return calls_.Store(request, &response);
  }

  TestServer server_;
  ServiceClient client_{server_.address()};
  RawSharedClient session_ = RawSharedClient::Joined(server_.shared_memory()->socket_path());
  SharedCalls calls_{&client_, &session_};
  const std::string model_ = client_.Register("m", {kPart});
};

TEST_F(StoreSharedTest, StoresWhatLiesInTheRegion) {
  const v1::Prompt prompt = TokenPrompt(model_, 1, 20);
  const std::vector<std::string> payloads = Payloads(1, 20);
  calls_.StoreAll(calls_.StoreOf(prompt, 0, payloads));
  std::memset(session_.store().data(), 0xee, session_.store().size());  // it is the client's again
  ExpectStored(prompt, payloads);
  const uint64_t lease = client_.Lease(prompt, 1000);
  const SharedCalls::Fetched fetched = calls_.Fetch(calls_.FetchOf(lease, 0, 20));
  ASSERT_EQ(fetched.bytes.size(), 20u);
  for (size_t i = 0; i < 20; ++i) EXPECT_TRUE(fetched.bytes[i] == payloads[i]) << i;
  EXPECT_EQ(server_.shared_memory()->stats().stored_blocks, 20u);
  EXPECT_EQ(server_.shared_memory()->stats().stored_bytes, 20 * kPart);
  EXPECT_EQ(server_.stats().of(Rpc::kStoreShared).by_code[0].value(), 1u);
}

// In two halves, as a client stores more than the region holds; from offsets of no alignment.
TEST_F(StoreSharedTest, GoesOnWhereItEnded) {
  const v1::Prompt prompt = TokenPrompt(model_, 1, 10);
  const std::vector<std::string> payloads = Payloads(1, 10);
  calls_.StoreAll(calls_.StoreOf(prompt, 0, {payloads.begin(), payloads.begin() + 5}, 3));
  calls_.StoreAll(calls_.StoreOf(prompt, 5, {payloads.begin() + 5, payloads.end()}, 1'000'001));
  ExpectStored(prompt, payloads);
}

TEST_F(StoreSharedTest, PartsOfABlockComeOneByOne) {
  const std::string model = client_.Register("parts", {70'000, 1}, 4, 2);
  const v1::Prompt prompt = TokenPrompt(model, 1, 2);
  calls_.StoreAll(calls_.StoreOf(prompt, 0, Payloads(1, 2, 70'000)));
  EXPECT_EQ(client_.Found(prompt), 0u);
  v1::StoreSharedRequest second = calls_.StoreOf(prompt, 0, Payloads(2, 2, 1));
  second.mutable_header()->mutable_part()->set_layer_group(1);
  calls_.StoreAll(second);
  EXPECT_EQ(client_.Found(prompt), 2u);
}

TEST_F(StoreSharedTest, WhatIsThereStays) {
  const v1::Prompt prompt = TokenPrompt(model_, 1, 3);
  const std::vector<std::string> payloads = Payloads(1, 3);
  calls_.StoreAll(calls_.StoreOf(prompt, 0, payloads));
  std::vector<std::string> other = Payloads(1, 4);
  other[1] = PayloadBytes(77, kPart);
  const v1::Prompt longer = TokenPrompt(model_, 1, 4);
  v1::StoreResponse response;
  v1::StoreSharedRequest request = calls_.StoreOf(longer, 0, other);
  ASSERT_TRUE(calls_.Store(request, &response).ok());
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(response.outcomes(i).status(), v1::STORE_STATUS_ALREADY_PRESENT);
  }
  EXPECT_EQ(response.outcomes(3).status(), v1::STORE_STATUS_STORED);
  EXPECT_EQ(response.checksum_mismatches(), 1u);
  // The same message again, and again without checksums: nothing changes.
  ASSERT_TRUE(calls_.Store(request, &response).ok());
  EXPECT_EQ(response.outcomes(3).status(), v1::STORE_STATUS_ALREADY_PRESENT);
  request.set_unverified(true);
  ASSERT_TRUE(calls_.Store(request, &response).ok());
  EXPECT_EQ(response.checksum_mismatches(), 0u);
  ExpectStored(longer, {payloads[0], payloads[1], payloads[2], other[3]});
  EXPECT_EQ(server_.shared_memory()->stats().stored_blocks, 4u);
}

TEST_F(StoreSharedTest, AWrongChecksumIsRejected) {
  const v1::Prompt prompt = TokenPrompt(model_, 1, 2);
  const std::vector<std::string> payloads = Payloads(1, 2);
  v1::StoreSharedRequest request = calls_.StoreOf(prompt, 0, payloads);
  session_.store()[kPart + 99'999] ^= std::byte{1};
  v1::StoreResponse response;
  ASSERT_TRUE(calls_.Store(request, &response).ok());
  EXPECT_EQ(response.outcomes(0).status(), v1::STORE_STATUS_STORED);
  EXPECT_EQ(response.outcomes(1).status(), v1::STORE_STATUS_REJECTED);
  EXPECT_EQ(response.outcomes(1).reason(), v1::REJECT_REASON_CHECKSUM);
  EXPECT_EQ(client_.Found(prompt), 1u);
  EXPECT_EQ(server_.manager().stats().checksum_failures, 1u);
  session_.store()[kPart + 99'999] ^= std::byte{1};
  ASSERT_TRUE(calls_.Store(request, &response).ok());
  ExpectStored(prompt, payloads);
}

TEST_F(StoreSharedTest, UnverifiedTakesWhatItFinds) {
  const v1::Prompt prompt = TokenPrompt(model_, 1, 2);
  const std::vector<std::string> payloads = Payloads(1, 2);
  v1::StoreSharedRequest request = calls_.StoreOf(prompt, 0, payloads);
  for (v1::SharedPayload& payload : *request.mutable_payloads()) payload.clear_checksum();
  request.set_unverified(true);
  calls_.StoreAll(request);
  ExpectStored(prompt, payloads);  // with the right checksums
}

TEST_F(StoreSharedTest, OffsetsAreWithinTheRegion) {
  const v1::Prompt prompt = TokenPrompt(model_, 1, 1);
  const std::vector<std::string> payloads = Payloads(1, 1);
  v1::StoreSharedRequest request = calls_.StoreOf(prompt, 0, payloads, kRegion - kPart);
  const auto at = [&](uint64_t offset) {
    request.mutable_payloads(0)->set_offset(offset);
    return Refused(request);
  };
  for (const uint64_t offset : {kRegion - kPart + 1, kRegion - 1, kRegion, kRegion + 1,
                                UINT64_MAX - kPart + 1, UINT64_MAX, uint64_t{1} << 63}) {
    ExpectError(at(offset), StatusCode::INVALID_ARGUMENT,
                {"payloads[0].offset", absl::StrCat(offset), absl::StrCat(kRegion)});
  }
  EXPECT_EQ(client_.Found(prompt), 0u);
  EXPECT_TRUE(at(kRegion - kPart).ok());  // the last that fits
  ExpectStored(prompt, payloads);
}

// The last of many is wrong: then none was taken.
TEST_F(StoreSharedTest, AllOffsetsAreCheckedFirst) {
  const v1::Prompt prompt = TokenPrompt(model_, 1, 5);
  v1::StoreSharedRequest request = calls_.StoreOf(prompt, 0, Payloads(1, 5));
  request.mutable_payloads(4)->set_offset(kRegion);
  ExpectError(Refused(request), StatusCode::INVALID_ARGUMENT, {"payloads[4].offset"});
  EXPECT_EQ(client_.Found(prompt), 0u);
  EXPECT_EQ(server_.manager().stats().tiers[1].usage.used_bytes, 0u);
}

TEST_F(StoreSharedTest, PartsLargerThanTheRegionAreRefused) {
  const std::string model = client_.Register("large", {kRegion + 1});
  v1::StoreSharedRequest request = calls_.StoreOf(TokenPrompt(model, 1, 1), 0, Payloads(1, 1));
  request.mutable_payloads(0)->set_offset(0);
  ExpectError(Refused(request), StatusCode::INVALID_ARGUMENT,
              {"payloads[0].offset is 0", absl::StrCat(kRegion + 1)});
}

TEST_F(StoreSharedTest, Refusals) {
  const v1::Prompt prompt = TokenPrompt(model_, 1, 2);
  const v1::StoreSharedRequest good = calls_.StoreOf(prompt, 0, Payloads(1, 2));
  const auto refused = [&](auto change) {
    v1::StoreSharedRequest request = good;
    change(&request);
    return Refused(request);
  };
  using Request = v1::StoreSharedRequest;
  ExpectError(refused([](Request* r) { r->set_session_id(std::string(16, 'x')); }),
              StatusCode::NOT_FOUND, {"session_id"});
  ExpectError(refused([](Request* r) { r->mutable_session_id()->pop_back(); }),
              StatusCode::INVALID_ARGUMENT, {"session_id has 15 bytes"});
  ExpectError(refused([](Request* r) { r->clear_header(); }), StatusCode::INVALID_ARGUMENT,
              {"header"});
  ExpectError(refused([](Request* r) { r->mutable_payloads()->RemoveLast(); }),
              StatusCode::INVALID_ARGUMENT, {"payloads has 1", "block_count is 2"});
  ExpectError(refused([](Request* r) { r->add_payloads(); }), StatusCode::INVALID_ARGUMENT,
              {"payloads has 3", "block_count is 2"});
  ExpectError(refused([](Request* r) {
                for (int i = 0; i < 4095; ++i) r->add_payloads();
              }),
              StatusCode::INVALID_ARGUMENT, {"payloads has 4097", "4096"});
  ExpectError(refused([](Request* r) { r->mutable_header()->set_block_count(0); }),
              StatusCode::INVALID_ARGUMENT, {"block_count is 0"});
  ExpectError(refused([](Request* r) { r->mutable_header()->set_first_block(UINT32_MAX); }),
              StatusCode::INVALID_ARGUMENT, {"first_block"});
  ExpectError(refused([](Request* r) { r->mutable_header()->mutable_part()->set_rank(1); }),
              StatusCode::INVALID_ARGUMENT, {"part.rank"});
  ExpectError(
      refused([](Request* r) { r->mutable_header()->set_durability(v1::DURABILITY_DURABLE); }),
      StatusCode::FAILED_PRECONDITION, {"DURABLE"});
  EXPECT_EQ(client_.Found(prompt), 0u);
  calls_.StoreAll(good);
  EXPECT_EQ(client_.Found(prompt), 2u);
}

TEST_F(StoreSharedTest, ASessionThatHasEndedIsNotFound) {
  RawSharedClient other = RawSharedClient::Joined(server_.shared_memory()->socket_path());
  const v1::StoreSharedRequest mine = calls_.StoreOf(TokenPrompt(model_, 1, 1), 0, Payloads(1, 1));
  v1::StoreSharedRequest theirs = mine;
  {
    SharedCalls calls(&client_, &other);
    theirs = calls.StoreOf(TokenPrompt(model_, 2, 1), 0, Payloads(2, 1));
    calls.StoreAll(theirs);
    const RawSharedClient ends = std::move(other);
  }
  // The daemon sees the end a moment later; until then the replay is a no-op.
  grpc::Status status;
  do {
    status = Refused(theirs);
  } while (status.ok());
  ExpectError(status, StatusCode::NOT_FOUND, {"session_id"});
  calls_.StoreAll(mine);
}

TEST_F(StoreSharedTest, NothingFitsIsToldWithTheFirstBlock) {
  // 64 MiB of leased blocks: nothing may leave.
  std::vector<uint64_t> leases;
  for (uint32_t i = 0; i < 36; ++i) {
    const v1::Prompt prompt = TokenPrompt(model_, 100 + i, 20);
    v1::StoreResponse response;
    const grpc::Status status = calls_.Store(calls_.StoreOf(prompt, 0, Payloads(i, 20)), &response);
    if (!status.ok()) {
      ExpectError(status, StatusCode::RESOURCE_EXHAUSTED, {"not one block fits"});
      EXPECT_GT(i, 30u);
      return;
    }
    leases.push_back(client_.Lease(prompt, 1000));
  }
  FAIL() << "more was stored than there is room for";
}

class StoreSharedSsdTest : public StoreSharedTest {
 protected:
  StoreSharedSsdTest() : StoreSharedTest(Options(/*ssd_bytes=*/64 * kMiB)) {}
};

TEST_F(StoreSharedSsdTest, DurableIsOnSsdWhenItIsAcknowledged) {
  const v1::Prompt prompt = TokenPrompt(model_, 1, 5);
  v1::StoreSharedRequest request = calls_.StoreOf(prompt, 0, Payloads(1, 5));
  calls_.StoreAll(request);
  EXPECT_EQ(server_.ssd()->usage().used_bytes, 0u);
  request = calls_.StoreOf(TokenPrompt(model_, 1, 6), 5, Payloads(9, 1));
  request.mutable_header()->set_durability(v1::DURABILITY_DURABLE);
  calls_.StoreAll(request);
  EXPECT_EQ(server_.ssd()->usage().used_bytes, 6 * kPart);
  server_.ssd()->SetWritable(absl::UnavailableError("full"));
  request = calls_.StoreOf(TokenPrompt(model_, 2, 1), 0, Payloads(10, 1));
  request.mutable_header()->set_durability(v1::DURABILITY_DURABLE);
  ExpectError(Refused(request), StatusCode::RESOURCE_EXHAUSTED, {"held in RAM, but not durable"});
  ExpectStored(TokenPrompt(model_, 2, 1), Payloads(10, 1));
}

}  // namespace
}  // namespace kvtier
