// Streams that stall, are cut or outlive their time: they end, hold nothing any more, and hurt
// nobody else.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "tests/service/service_client.h"

namespace kvtier {
namespace {

using grpc::StatusCode;
using std::chrono::seconds;

constexpr uint64_t kMiB = 1 << 20;

class KvCacheStreamsTest : public ::testing::Test {
 protected:
  static TestServerOptions Options() {
    TestServerOptions options;
    options.ram_bytes = 128 * kMiB;
    options.max_streams_per_client = 3;
    return options;
  }
  // Asks until it is so; each question is a round trip to the server.
  void WaitUntilFound(const v1::Prompt& prompt, uint32_t blocks) {
    uint32_t found = 0;
    for (int i = 0; i < 1'000'000 && found != blocks; ++i) found = client_.Found(prompt);
    ASSERT_EQ(found, blocks);
  }
  // A Store that has sent its first block and half of its second, and then nothing.
  std::unique_ptr<ServiceClient::StoreStream> HalfStore(grpc::ClientContext* context,
                                                        const v1::Prompt& prompt) {
    auto stream = client_.stub().Store(context, &half_response_);
    stream->Write(HeaderOf(prompt, 0, 2));
    v1::StoreRequest message;
    *message.add_pieces() = PieceOf(0, payloads_[0], 0, kMiB);
    stream->Write(message);
    message.Clear();
    *message.add_pieces() = PieceOf(1, payloads_[1], 0, kMiB / 2);
    stream->Write(message);
    WaitUntilFound(prompt, 1);
    return stream;
  }
  // A call's last slices come back from gRPC a moment after the call has ended.
  void ExpectNothingHeld() {
    EXPECT_TRUE(server_.registry().WaitIdle(seconds(20)));
    const auto limit = std::chrono::steady_clock::now() + seconds(20);
    while (server_.manager().stats().pinned_blocks > 0 &&
           std::chrono::steady_clock::now() < limit) {
      std::this_thread::yield();
    }
    EXPECT_EQ(server_.manager().stats().pinned_blocks, 0u);
    EXPECT_EQ(server_.registry().open_streams(), 0u);
  }

  TestServer server_{Options()};
  ServiceClient client_{server_.address()};
  const std::string model_ = client_.Register("m", {kMiB});
  const std::vector<std::string> payloads_ = {PayloadBytes(1, kMiB), PayloadBytes(2, kMiB)};
  v1::StoreResponse half_response_;
};

TEST_F(KvCacheStreamsTest, FrozenStoreEndsAtTheServersDeadline) {
  const v1::Prompt prompt = TokenPrompt(model_, 1, 2);
  grpc::ClientContext context;
  auto frozen = HalfStore(&context, prompt);
  // Meanwhile others can look, and store the same blocks.
  ServiceClient other(server_.address());
  EXPECT_EQ(other.Found(prompt), 1u);
  server_.clock().Advance(seconds(29));
  server_.Tick();
  EXPECT_EQ(server_.registry().open_streams(), 1u);
  server_.clock().Advance(seconds(1));
  server_.Tick();
  ExpectError(frozen->Finish(), StatusCode::DEADLINE_EXCEEDED, {"deadline"});
  ExpectNothingHeld();
  EXPECT_EQ(other.Found(prompt), 1u);
  other.StoreAll(prompt, 1, {payloads_[1]});
  const ServiceClient::Fetched fetched = other.Fetch(FetchOf(prompt, 0, 2));
  ASSERT_EQ(fetched.blocks.size(), 2u);
  EXPECT_TRUE(fetched.blocks[1] == payloads_[1]);
}

TEST_F(KvCacheStreamsTest, OthersCanStoreWhatAFrozenStoreNames) {
  const v1::Prompt prompt = TokenPrompt(model_, 1, 2);
  grpc::ClientContext context;
  auto frozen = HalfStore(&context, prompt);
  ServiceClient other(server_.address());
  v1::StoreResponse response;
  ASSERT_TRUE(other.Store(prompt, 0, payloads_, &response).ok());
  EXPECT_EQ(response.outcomes(0).status(), v1::STORE_STATUS_ALREADY_PRESENT);
  EXPECT_EQ(response.outcomes(1).status(), v1::STORE_STATUS_STORED);
  // The frozen one wakes up: its second block is a no-op now.
  v1::StoreRequest message;
  *message.add_pieces() = PieceOf(1, payloads_[1], kMiB / 2, kMiB / 2);
  ASSERT_TRUE(frozen->Write(message));
  frozen->WritesDone();
  ASSERT_TRUE(frozen->Finish().ok());
  EXPECT_EQ(half_response_.outcomes(0).status(), v1::STORE_STATUS_STORED);
  EXPECT_EQ(half_response_.outcomes(1).status(), v1::STORE_STATUS_ALREADY_PRESENT);
  ExpectNothingHeld();
}

TEST_F(KvCacheStreamsTest, CancelledStoreLeavesItsWholePartsOnly) {
  const v1::Prompt prompt = TokenPrompt(model_, 1, 2);
  grpc::ClientContext context;
  auto stream = HalfStore(&context, prompt);
  context.TryCancel();
  EXPECT_EQ(stream->Finish().error_code(), StatusCode::CANCELLED);
  ExpectNothingHeld();
  EXPECT_EQ(client_.Found(prompt), 1u);
  EXPECT_EQ(server_.manager().stats().tiers[1].usage.used_bytes, kMiB);
  client_.StoreAll(prompt, 1, {payloads_[1]});
}

TEST_F(KvCacheStreamsTest, ClientDeadlineEndsAStore) {
  const v1::Prompt prompt = TokenPrompt(model_, 1, 2);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(300));
  auto stream = HalfStore(&context, prompt);
  EXPECT_EQ(stream->Finish().error_code(), StatusCode::DEADLINE_EXCEEDED);
  ExpectNothingHeld();
}

// Readers that take one message and no more: nobody else waits, the server keeps no copy of what
// they do not read, and their time ends.
TEST_F(KvCacheStreamsTest, SlowReadersCostNothingAndEnd) {
  const v1::Prompt prompt = TokenPrompt(model_, 1, 64);
  std::vector<std::string> payloads;
  for (int i = 0; i < 64; ++i) payloads.push_back(PayloadBytes(i, kMiB));
  client_.StoreAll(prompt, 0, payloads);

  struct SlowReader {
    explicit SlowReader(const std::string& address) : client(address) {}
    ServiceClient client;
    grpc::ClientContext context;
    std::unique_ptr<ServiceClient::FetchStream> stream;
  };
  std::vector<std::unique_ptr<SlowReader>> readers;
  v1::FetchResponse message;
  for (int i = 0; i < 8; ++i) {
    readers.push_back(std::make_unique<SlowReader>(server_.address()));
    SlowReader& reader = *readers.back();
    reader.stream = reader.client.stub().Fetch(&reader.context, FetchOf(prompt, 0, 64));
    ASSERT_TRUE(reader.stream->Read(&message));
  }
  EXPECT_EQ(server_.registry().open_streams(), 8u);
  const ServiceClient::Fetched fetched = client_.Fetch(FetchOf(prompt, 0, 2));
  ASSERT_EQ(fetched.blocks.size(), 2u);
  EXPECT_TRUE(fetched.blocks[1] == payloads[1]);
  // The bytes stay where they are while they are being read, whatever else is stored.
  const v1::Prompt more = TokenPrompt(model_, 2, 64);
  client_.StoreAll(more, 0, payloads);
  server_.clock().Advance(seconds(30));
  server_.Tick();
  for (const auto& reader : readers) {
    int messages = 1;
    while (reader->stream->Read(&message)) {
      const v1::Piece& piece = message.pieces(0);
      ASSERT_TRUE(piece.payload() == payloads[piece.block()].substr(piece.offset(), kMiB));
      ++messages;
    }
    EXPECT_LT(messages, 64);
    EXPECT_NE(reader->stream->Finish().error_code(), StatusCode::OK);
  }
  ExpectNothingHeld();
  EXPECT_EQ(client_.Found(more), 64u);
}

TEST_F(KvCacheStreamsTest, CancelledFetchLetsGo) {
  const v1::Prompt prompt = TokenPrompt(model_, 1, 40);
  std::vector<std::string> payloads(40, PayloadBytes(1, kMiB));
  client_.StoreAll(prompt, 0, payloads);
  grpc::ClientContext context;
  auto stream = client_.stub().Fetch(&context, FetchOf(prompt, 0, 40));
  v1::FetchResponse message;
  ASSERT_TRUE(stream->Read(&message));
  context.TryCancel();
  while (stream->Read(&message)) {
  }
  EXPECT_EQ(stream->Finish().error_code(), StatusCode::CANCELLED);
  ExpectNothingHeld();
}

TEST_F(KvCacheStreamsTest, StreamsPerClientAreLimited) {
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<ServiceClient::StoreStream>> streams;
  for (uint32_t i = 0; i < 3; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    streams.push_back(HalfStore(contexts.back().get(), TokenPrompt(model_, i, 2)));
  }
  v1::StoreResponse response;
  grpc::ClientContext context;
  auto fourth = client_.stub().Store(&context, &response);
  ExpectError(fourth->Finish(), StatusCode::RESOURCE_EXHAUSTED,
              {"concurrent streams of this client: 3, the limit is 3"});
  ASSERT_EQ(context.GetServerTrailingMetadata().count("retry-delay-ms"), 1u);
  const v1::Prompt prompt = TokenPrompt(model_, 9, 2);
  ServiceClient other(server_.address());
  other.StoreAll(prompt, 0, payloads_);
  for (auto& one : contexts) one->TryCancel();
  for (auto& one : streams) EXPECT_EQ(one->Finish().error_code(), StatusCode::CANCELLED);
  ExpectNothingHeld();
  EXPECT_TRUE(client_.Fetch(FetchOf(prompt, 0, 2)).status.ok());
}

TEST_F(KvCacheStreamsTest, DrainRefusesNewCallsAndLetsOldOnesEnd) {
  const v1::Prompt prompt = TokenPrompt(model_, 1, 2);
  grpc::ClientContext context;
  auto stream = HalfStore(&context, prompt);
  server_.registry().StartDrain();
  v1::LookupRequest lookup;
  *lookup.mutable_prompt() = prompt;
  v1::LookupResponse found;
  ExpectError(client_.Lookup(lookup, &found), StatusCode::UNAVAILABLE, {"draining"});
  ExpectError(client_.Fetch(FetchOf(prompt, 0, 1)).status, StatusCode::UNAVAILABLE, {"draining"});
  v1::StoreResponse response;
  ExpectError(client_.Store(prompt, 0, payloads_, &response), StatusCode::UNAVAILABLE,
              {"draining"});
  EXPECT_FALSE(server_.registry().WaitIdle(Duration::zero()));
  v1::StoreRequest message;
  *message.add_pieces() = PieceOf(1, payloads_[1], kMiB / 2, kMiB / 2);
  ASSERT_TRUE(stream->Write(message));
  stream->WritesDone();
  ASSERT_TRUE(stream->Finish().ok());
  EXPECT_EQ(half_response_.outcomes(1).status(), v1::STORE_STATUS_STORED);
  ExpectNothingHeld();
}

// The server goes while everything is under way.
TEST_F(KvCacheStreamsTest, StopEndsStreams) {
  const v1::Prompt prompt = TokenPrompt(model_, 1, 2);
  grpc::ClientContext context;
  auto store = HalfStore(&context, prompt);
  const v1::Prompt fetched = TokenPrompt(model_, 2, 40);
  client_.StoreAll(fetched, 0, std::vector<std::string>(40, payloads_[0]));
  grpc::ClientContext fetch_context;
  auto fetch = client_.stub().Fetch(&fetch_context, FetchOf(fetched, 0, 40));
  v1::FetchResponse message;
  ASSERT_TRUE(fetch->Read(&message));
  server_.Stop();
  EXPECT_FALSE(store->Finish().ok());
  while (fetch->Read(&message)) {
  }
  EXPECT_FALSE(fetch->Finish().ok());
  EXPECT_EQ(server_.registry().open_streams(), 0u);
}

}  // namespace
}  // namespace kvtier
