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
  grpc::Status Send(const SharedCalls::Store& store) {
    v1::StoreResponse response;
    return calls_.Send(store, &response);
  }

  // With whatever is in the region.
  grpc::Status Begin(const SharedCalls::Store& store, grpc::ClientContext* context) {
    v1::StoreResponse response;
    return client_.stub().StoreShared(context, store.request, &response);
  }
  grpc::Status Begin(const SharedCalls::Store& store) {
    grpc::ClientContext context;
    return Begin(store, &context);
  }
  SharedCounter Counter(uint64_t offset) { return SharedCounter(session_.store().data() + offset); }

  TestServer server_;
  ServiceClient client_{server_.address()};
  RawSharedClient session_ = RawSharedClient::Joined(server_.shared_memory()->socket_path());
  SharedCalls calls_{&client_, &session_};
  const std::string model_ = client_.Register("m", {kPart});
};

TEST_F(StoreSharedTest, StoresWhatComesThroughTheRegion) {
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

TEST_F(StoreSharedTest, GoesOnWhereItEnded) {
  const v1::Prompt prompt = TokenPrompt(model_, 1, 10);
  const std::vector<std::string> payloads = Payloads(1, 10);
  calls_.StoreAll(calls_.StoreOf(prompt, 0, {payloads.begin(), payloads.begin() + 5}));
  calls_.StoreAll(calls_.StoreOf(prompt, 5, {payloads.begin() + 5, payloads.end()}));
  ExpectStored(prompt, payloads);
}

TEST_F(StoreSharedTest, StoresMoreThanTheRegionHolds) {
  const v1::Prompt prompt = TokenPrompt(model_, 1, 150);
  const std::vector<std::string> payloads = Payloads(1, 150);
  calls_.StoreAll(calls_.StoreOf(prompt, 0, payloads));
  ExpectStored(prompt, payloads);
}

TEST_F(StoreSharedTest, StoresPartsLargerThanTheRegion) {
  const std::string model = client_.Register("large", {kRegion + 1});
  const v1::Prompt prompt = TokenPrompt(model, 1, 3);
  const std::vector<std::string> payloads = Payloads(1, 3, kRegion + 1);
  calls_.StoreAll(calls_.StoreOf(prompt, 0, payloads));
  ExpectStored(prompt, payloads);
}

TEST_F(StoreSharedTest, PartsOfABlockComeOneByOne) {
  const std::string model = client_.Register("parts", {70'000, 1}, 4, 2);
  const v1::Prompt prompt = TokenPrompt(model, 1, 2);
  calls_.StoreAll(calls_.StoreOf(prompt, 0, Payloads(1, 2, 70'000)));
  EXPECT_EQ(client_.Found(prompt), 0u);
  SharedCalls::Store second = calls_.StoreOf(prompt, 0, Payloads(2, 2, 1));
  second.request.mutable_header()->mutable_part()->set_layer_group(1);
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
  SharedCalls::Store store = calls_.StoreOf(longer, 0, other);
  ASSERT_TRUE(calls_.Send(store, &response).ok());
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(response.outcomes(i).status(), v1::STORE_STATUS_ALREADY_PRESENT);
  }
  EXPECT_EQ(response.outcomes(3).status(), v1::STORE_STATUS_STORED);
  EXPECT_EQ(response.checksum_mismatches(), 1u);
  // The same message again, and again without checksums: nothing changes.
  ASSERT_TRUE(calls_.Send(store, &response).ok());
  EXPECT_EQ(response.outcomes(3).status(), v1::STORE_STATUS_ALREADY_PRESENT);
  store.request.set_unverified(true);
  ASSERT_TRUE(calls_.Send(store, &response).ok());
  EXPECT_EQ(response.checksum_mismatches(), 0u);
  ExpectStored(longer, {payloads[0], payloads[1], payloads[2], other[3]});
  EXPECT_EQ(server_.shared_memory()->stats().stored_blocks, 4u);
}

TEST_F(StoreSharedTest, AWrongChecksumIsRejected) {
  const v1::Prompt prompt = TokenPrompt(model_, 1, 3);
  const std::vector<std::string> payloads = Payloads(1, 3);
  SharedCalls::Store store = calls_.StoreOf(prompt, 0, payloads);
  store.payloads[1][99'999] ^= 1;
  v1::StoreResponse response;
  ASSERT_TRUE(calls_.Send(store, &response).ok());
  EXPECT_EQ(response.outcomes(0).status(), v1::STORE_STATUS_STORED);
  EXPECT_EQ(response.outcomes(1).status(), v1::STORE_STATUS_REJECTED);
  EXPECT_EQ(response.outcomes(1).reason(), v1::REJECT_REASON_CHECKSUM);
  EXPECT_EQ(response.outcomes(2).reason(), v1::REJECT_REASON_NO_PARENT);
  EXPECT_EQ(client_.Found(prompt), 1u);
  EXPECT_EQ(server_.manager().stats().checksum_failures, 1u);
  store.payloads[1][99'999] ^= 1;
  ASSERT_TRUE(calls_.Send(store, &response).ok());
  ExpectStored(prompt, payloads);
}

TEST_F(StoreSharedTest, UnverifiedTakesWhatItFinds) {
  const v1::Prompt prompt = TokenPrompt(model_, 1, 2);
  const std::vector<std::string> payloads = Payloads(1, 2);
  SharedCalls::Store store = calls_.StoreOf(prompt, 0, payloads);
  store.checksums = {0, 0};
  store.request.set_unverified(true);
  calls_.StoreAll(store);
  ExpectStored(prompt, payloads);  // with the right checksums
}

// The client says that more is there than the ring can have.
TEST_F(StoreSharedTest, WhatIsFilledInIsWithinTheRing) {
  const v1::Prompt prompt = TokenPrompt(model_, 1, 30);
  const SharedCalls::Store store = calls_.StoreOf(prompt, 0, Payloads(1, 30));
  constexpr uint32_t kLines = (kRegion - StoreRing::kRingOffset) / StoreRing::kLine;
  for (const uint32_t filled : {kLines + 1, UINT32_MAX}) {
    Counter(0).Set(filled);
    ExpectError(Begin(store), StatusCode::INVALID_ARGUMENT,
                {absl::StrCat(filled, " lines"), absl::StrCat(kLines)});
    EXPECT_EQ(client_.Found(prompt), 0u);
    EXPECT_EQ(server_.manager().stats().tiers[1].usage.used_bytes, 0u);
  }
  calls_.StoreAll(store);
}

// As one that was stopped in the middle.
TEST_F(StoreSharedTest, AClientThatFillsNothingInIsGivenUp) {
  const v1::Prompt prompt = TokenPrompt(model_, 1, 30);
  const SharedCalls::Store store = calls_.StoreOf(prompt, 0, Payloads(1, 30));
  StoreRingWriter ring(session_.store());
  const std::atomic<bool> stop{false};
  ring.Fill(ring.Room(kPart / 2, stop).size());
  ring.Flush();
  ExpectError(Begin(store), StatusCode::ABORTED, {"has filled nothing in for 2 s"});
  EXPECT_EQ(client_.Found(prompt), 0u);
  EXPECT_EQ(server_.manager().stats().tiers[1].usage.used_bytes, 0u);
  calls_.StoreAll(store);
}

TEST_F(StoreSharedTest, ARegionServesOneCallAtATime) {
  const v1::Prompt prompt = TokenPrompt(model_, 1, 5);
  const SharedCalls::Store store = calls_.StoreOf(prompt, 0, Payloads(1, 5));
  StoreRingWriter ring(session_.store());
  const std::atomic<bool> stop{false};
  grpc::Status first;
  ThreadPool caller(1);
  caller.Run([&] { first = Begin(store); });
  // The daemon takes the first part's bytes, and waits.
  SharedCalls::Store begun = store;
  begun.payloads.resize(1);
  ASSERT_TRUE(SharedCalls::Fill(begun, &ring, stop));
  while (Counter(StoreRing::kLine).Get() == 0) Counter(StoreRing::kLine).Await(0);
  ExpectError(Begin(store), StatusCode::ABORTED, {"serves another call"});
  begun.payloads.assign(store.payloads.begin() + 1, store.payloads.end());
  begun.checksums.assign(store.checksums.begin() + 1, store.checksums.end());
  ASSERT_TRUE(SharedCalls::Fill(begun, &ring, stop));
  caller.WaitIdle();
  EXPECT_TRUE(first.ok()) << first.error_message();
  ExpectStored(prompt, store.payloads);
}

TEST_F(StoreSharedTest, AClientThatGoesLeavesNothing) {
  const v1::Prompt prompt = TokenPrompt(model_, 1, 5);
  const SharedCalls::Store store = calls_.StoreOf(prompt, 0, Payloads(1, 5));
  StoreRingWriter ring(session_.store());
  const std::atomic<bool> stop{false};
  grpc::Status ended;
  grpc::ClientContext context;
  ThreadPool caller(1);
  caller.Run([&] { ended = Begin(store, &context); });
  ring.Fill(ring.Room(kPart / 2, stop).size());
  ring.Flush();
  while (Counter(StoreRing::kLine).Get() == 0) Counter(StoreRing::kLine).Await(0);
  context.TryCancel();
  caller.WaitIdle();
  EXPECT_EQ(ended.error_code(), StatusCode::CANCELLED);
  ASSERT_TRUE(server_.registry().WaitIdle(std::chrono::seconds(20)));
  EXPECT_EQ(client_.Found(prompt), 0u);
  EXPECT_EQ(server_.manager().stats().tiers[1].usage.used_bytes, 0u);
  calls_.StoreAll(store);
}

// Else calls would be more than there are sessions, and others wait for a thread. With its region
// still mapped a client could fill in a line now and then for as long as its call may run.
TEST_F(StoreSharedTest, ACallEndsWithItsSession) {
  RawSharedClient other = RawSharedClient::Joined(server_.shared_memory()->socket_path());
  const SharedCalls::Store store =
      SharedCalls(&client_, &other).StoreOf(TokenPrompt(model_, 1, 5), 0, Payloads(1, 5));
  const Mapping kept(other.store_fd(), kRegion, /*writable=*/true);
  StoreRingWriter ring(kept.bytes());
  const std::atomic<bool> stop{false};
  grpc::Status ended;
  ThreadPool caller(1);
  caller.Run([&] { ended = Begin(store); });
  ring.Fill(ring.Room(kPart / 2, stop).size());
  ring.Flush();
  SharedCounter taken(kept.bytes().data() + StoreRing::kLine);
  while (taken.Get() == 0) taken.Await(0);
  { const RawSharedClient ends = std::move(other); }
  caller.WaitIdle();
  ExpectError(ended, StatusCode::ABORTED, {"the session has ended"});
  EXPECT_EQ(client_.Found(TokenPrompt(model_, 1, 5)), 0u);
  EXPECT_EQ(server_.manager().stats().tiers[1].usage.used_bytes, 0u);
}

// More than RAM holds: the leading ones are kept, and nobody waits for the rest.
TEST_F(StoreSharedTest, EndsWhereNoRoomIs) {
  const v1::Prompt prompt = TokenPrompt(model_, 1, 1000);
  const SharedCalls::Store store = calls_.StoreOf(prompt, 0, Payloads(1, 1000));
  v1::StoreResponse response;
  const grpc::Status status = calls_.Send(store, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  const uint32_t found = client_.Found(prompt);
  EXPECT_GT(found, 600u);
  EXPECT_LT(found, 680u);
  ASSERT_EQ(response.outcomes_size(), 1000);
  for (int i = 0; i < 1000; ++i) {
    const bool stored = static_cast<uint32_t>(i) < found;
    EXPECT_EQ(response.outcomes(i).status(),
              stored ? v1::STORE_STATUS_STORED : v1::STORE_STATUS_REJECTED);
    if (stored) continue;
    EXPECT_EQ(response.outcomes(i).reason(), v1::REJECT_REASON_NO_SPACE);
  }
  // The daemon took what was stored, and at most what was on its way.
  EXPECT_LE(uint64_t{Counter(StoreRing::kLine).Get()} * StoreRing::kLine,
            found * StoreRing::StreamBytes(kPart));
}

TEST_F(StoreSharedTest, Refusals) {
  const v1::Prompt prompt = TokenPrompt(model_, 1, 2);
  const SharedCalls::Store good = calls_.StoreOf(prompt, 0, Payloads(1, 2));
  const auto refused = [&](auto change) {
    SharedCalls::Store store = good;
    change(&store.request);
    return Send(store);
  };
  using Request = v1::StoreSharedRequest;
  ExpectError(refused([](Request* r) { r->set_session_id(std::string(16, 'x')); }),
              StatusCode::NOT_FOUND, {"session_id"});
  ExpectError(refused([](Request* r) { r->mutable_session_id()->pop_back(); }),
              StatusCode::INVALID_ARGUMENT, {"session_id has 15 bytes"});
  ExpectError(refused([](Request* r) { r->clear_header(); }), StatusCode::INVALID_ARGUMENT,
              {"header"});
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
  const SharedCalls::Store mine = calls_.StoreOf(TokenPrompt(model_, 1, 1), 0, Payloads(1, 1));
  SharedCalls::Store theirs = mine;
  {
    SharedCalls calls(&client_, &other);
    theirs = calls.StoreOf(TokenPrompt(model_, 2, 1), 0, Payloads(2, 1));
    calls.StoreAll(theirs);
    const RawSharedClient ends = std::move(other);
  }
  // The daemon sees the end a moment later; until then the replay is a no-op.
  grpc::Status status;
  do {
    status = Send(theirs);
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
    const grpc::Status status = calls_.Send(calls_.StoreOf(prompt, 0, Payloads(i, 20)), &response);
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
  SharedCalls::Store store = calls_.StoreOf(prompt, 0, Payloads(1, 5));
  calls_.StoreAll(store);
  EXPECT_EQ(server_.ssd()->usage().used_bytes, 0u);
  store = calls_.StoreOf(TokenPrompt(model_, 1, 6), 5, Payloads(9, 1));
  store.request.mutable_header()->set_durability(v1::DURABILITY_DURABLE);
  calls_.StoreAll(store);
  EXPECT_EQ(server_.ssd()->usage().used_bytes, 6 * kPart);
  server_.ssd()->SetWritable(absl::UnavailableError("full"));
  store = calls_.StoreOf(TokenPrompt(model_, 2, 1), 0, Payloads(10, 1));
  store.request.mutable_header()->set_durability(v1::DURABILITY_DURABLE);
  ExpectError(Send(store), StatusCode::RESOURCE_EXHAUSTED, {"held in RAM, but not durable"});
  ExpectStored(TokenPrompt(model_, 2, 1), Payloads(10, 1));
}

}  // namespace
}  // namespace kvtier
