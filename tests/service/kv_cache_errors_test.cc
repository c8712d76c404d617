// What a caller may do wrong: the code of the contract, with field, value and limit, and nothing
// left behind.
#include <grpcpp/impl/codegen/client_unary_call.h>
#include <grpcpp/impl/codegen/rpc_method.h>
#include <grpcpp/support/byte_buffer.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "tests/service/service_client.h"

namespace kvtier {
namespace {

using grpc::StatusCode;

constexpr uint64_t kMiB = 1 << 20;

TestServerOptions SmallLimits() {
  TestServerOptions options;
  options.service.limits.tokens = 1000;
  options.service.limits.engine_hashes = 10;
  options.manager.max_leases_per_client = 2;
  options.max_streams_per_client = 2;
  return options;
}

class KvCacheErrorsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    model_ = client_.Register("m", {100, 100});
    prompt_ = TokenPrompt(model_, 1, 3);
    for (uint32_t rank : {0, 1}) {
      v1::Part part;
      part.set_rank(rank);
      client_.StoreAll(prompt_, 0, {PayloadBytes(1, 100), PayloadBytes(2, 100)}, part);
    }
  }
  // Whatever went wrong, the service goes on, and nothing stays pinned.
  void TearDown() override {
    EXPECT_EQ(client_.Found(prompt_), 2u);
    EXPECT_TRUE(server_.registry().WaitIdle(std::chrono::seconds(10)));
    server_.clock().Advance(std::chrono::hours(1));
    server_.Tick();
    EXPECT_EQ(server_.manager().stats().pinned_blocks, 0u);
    EXPECT_EQ(server_.manager().stats().leases, 0u);
  }

  grpc::Status LookupWith(const std::function<void(v1::LookupRequest*)>& change) {
    v1::LookupRequest request;
    *request.mutable_prompt() = prompt_;
    change(&request);
    v1::LookupResponse response;
    return client_.Lookup(request, &response);
  }
  grpc::Status FetchWith(const std::function<void(v1::FetchRequest*)>& change) {
    v1::FetchRequest request = FetchOf(prompt_, 0, 2);
    change(&request);
    return client_.Fetch(request).status;
  }
  // Sends a header for the third block, then what `change` made of the one piece it takes.
  grpc::Status StoreWith(const std::function<void(v1::StoreRequest*, v1::StoreRequest*)>& change) {
    const std::string payload = PayloadBytes(3, 100);
    v1::StoreRequest header = HeaderOf(prompt_, 2, 1);
    v1::StoreRequest pieces;
    *pieces.add_pieces() = PieceOf(2, payload, 0, 100);
    change(&header, &pieces);
    grpc::ClientContext context;
    auto stream = client_.stub().Store(&context, &stored_);
    stream->Write(header);
    stream->Write(pieces);
    stream->WritesDone();
    return stream->Finish();
  }

  TestServer server_{SmallLimits()};
  ServiceClient client_{server_.address()};
  std::string model_;
  v1::Prompt prompt_;
  v1::StoreResponse stored_;  // of StoreWith
};

TEST_F(KvCacheErrorsTest, Lookup) {
  EXPECT_TRUE(LookupWith([](auto*) {}).ok());
  ExpectError(LookupWith([](auto* r) { r->mutable_prompt()->set_model_id("abc"); }),
              StatusCode::INVALID_ARGUMENT, {"prompt.model_id has 3 bytes, the limit is 16"});
  ExpectError(LookupWith([](auto* r) { r->mutable_prompt()->clear_model_id(); }),
              StatusCode::INVALID_ARGUMENT, {"prompt.model_id has 0 bytes"});
  ExpectError(LookupWith([](auto* r) { r->clear_prompt(); }), StatusCode::INVALID_ARGUMENT,
              {"prompt.model_id has 0 bytes"});
  ExpectError(LookupWith([](auto* r) { r->mutable_prompt()->set_model_id(std::string(16, 'x')); }),
              StatusCode::NOT_FOUND, {"model_id 78787878787878787878787878787878"});
  ExpectError(LookupWith([&](auto* r) { *r->mutable_prompt() = TokenPrompt(model_, 1, 251); }),
              StatusCode::INVALID_ARGUMENT, {"prompt.tokens has 1004 tokens, the limit is 1000"});
  ExpectError(LookupWith([](auto* r) {
                r->mutable_prompt()->clear_tokens();
                for (int i = 0; i < 11; ++i) r->mutable_prompt()->add_engine_hashes("12345678");
              }),
              StatusCode::INVALID_ARGUMENT,
              {"prompt.engine_hashes has 11 hashes, the limit is 10"});
  ExpectError(LookupWith([](auto* r) { r->mutable_prompt()->add_engine_hashes("12345678"); }),
              StatusCode::INVALID_ARGUMENT, {"12 tokens and 1 engine_hashes"});
  ExpectError(LookupWith([](auto* r) {
                r->mutable_prompt()->mutable_namespace_()->set_tenant(std::string(129, 't'));
              }),
              StatusCode::INVALID_ARGUMENT, {"namespace.tenant has 129 bytes, the limit is 128"});
  ExpectError(LookupWith([](auto* r) {
                v1::MediaSpan* span = r->mutable_prompt()->add_media();
                span->set_first_token(10);
                span->set_token_count(3);
                span->set_digest(std::string(16, 'd'));
              }),
              StatusCode::INVALID_ARGUMENT, {"media[0] ends at token 13, the prompt has 12"});
  ExpectError(LookupWith([](auto* r) { r->set_lease_ms(600'001); }), StatusCode::INVALID_ARGUMENT,
              {"lease_ms is 600001, the limits are 1 and 600000"});
  ExpectError(LookupWith([](auto* r) { r->set_promote_to(static_cast<v1::Tier>(9)); }),
              StatusCode::INVALID_ARGUMENT, {"9"});
  for (const double rate : {-1.0, 2e9, std::nan("")}) {
    ExpectError(LookupWith([&](auto* r) { r->set_prefill_tokens_per_second(rate); }),
                StatusCode::INVALID_ARGUMENT,
                {"prefill_tokens_per_second is", "the limits are 0 and 1e+09"});
  }
  EXPECT_TRUE(LookupWith([](auto* r) { r->set_prefill_tokens_per_second(1e9); }).ok());
  EXPECT_EQ(server_.stats().of(Rpc::kLookup).by_code[StatusCode::NOT_FOUND].value(), 1u);
}

// Bytes that no generated stub would send.
TEST_F(KvCacheErrorsTest, MalformedMessages) {
  const auto channel = grpc::CreateChannel(server_.address(), grpc::InsecureChannelCredentials());
  const grpc::internal::RpcMethod method("/kvtier.v1.KvCache/Lookup",
                                         grpc::internal::RpcMethod::NORMAL_RPC, channel);
  for (const std::string& bytes : {std::string("\x0a\xff\xff\xff\x7f", 5), std::string("\x07"),
                                   std::string("\x0a\x02\x1a\x03", 4)}) {
    const grpc::Slice slice(bytes);
    const grpc::ByteBuffer request(&slice, 1);
    grpc::ByteBuffer response;
    grpc::ClientContext context;
    ExpectError(grpc::internal::BlockingUnaryCall<grpc::ByteBuffer, grpc::ByteBuffer>(
                    channel.get(), method, &context, request, &response),
                StatusCode::INVALID_ARGUMENT, {"malformed at byte"});
  }
}

TEST_F(KvCacheErrorsTest, Fetch) {
  EXPECT_TRUE(FetchWith([](auto*) {}).ok());
  ExpectError(FetchWith([](auto* r) { r->set_last_block(4); }), StatusCode::INVALID_ARGUMENT,
              {"[0, 4)", "the prompt has 3 full blocks"});
  ExpectError(FetchWith([](auto* r) { r->set_first_block(2); }), StatusCode::INVALID_ARGUMENT,
              {"[2, 2)"});
  ExpectError(FetchWith([](auto* r) { r->mutable_part()->set_layer_group(1); }),
              StatusCode::INVALID_ARGUMENT, {"part.layer_group is 1, the model has 1"});
  ExpectError(FetchWith([](auto* r) { r->mutable_part()->set_rank(2); }),
              StatusCode::INVALID_ARGUMENT, {"part.rank is 2, the model has 2"});
  ExpectError(FetchWith([](auto* r) { r->clear_prompt(); }), StatusCode::INVALID_ARGUMENT,
              {"prompt and lease_id are missing"});
  ExpectError(FetchWith([](auto* r) {
                r->clear_prompt();
                r->set_lease_id(12345);
              }),
              StatusCode::NOT_FOUND, {"lease_id"});
  ExpectError(FetchWith([](auto* r) { r->mutable_prompt()->set_model_id(std::string(16, 'x')); }),
              StatusCode::NOT_FOUND, {"model_id"});
}

TEST_F(KvCacheErrorsTest, StoreHeader) {
  ExpectError(StoreWith([](auto* h, auto*) { h->clear_header(); }), StatusCode::INVALID_ARGUMENT,
              {"header is missing"});
  ExpectError(StoreWith([](auto* h, auto* p) { p->Swap(h); }), StatusCode::INVALID_ARGUMENT,
              {"header is missing"});
  ExpectError(StoreWith([](auto* h, auto* p) { *p->mutable_header() = h->header(); }),
              StatusCode::INVALID_ARGUMENT, {"header is given again"});
  ExpectError(StoreWith([](auto* h, auto* p) { h->MergeFrom(*p); }), StatusCode::INVALID_ARGUMENT,
              {"pieces has 1 elements in the message with the header, the limit is 0"});
  ExpectError(StoreWith([](auto* h, auto*) { h->mutable_header()->set_block_count(2); }),
              StatusCode::INVALID_ARGUMENT, {"block_count is 2", "first_block 2", "3 full blocks"});
  ExpectError(StoreWith([](auto* h, auto*) { h->mutable_header()->set_block_count(0); }),
              StatusCode::INVALID_ARGUMENT, {"block_count is 0"});
  ExpectError(StoreWith([](auto* h, auto*) { h->mutable_header()->mutable_part()->set_rank(7); }),
              StatusCode::INVALID_ARGUMENT, {"part.rank is 7"});
  ExpectError(StoreWith([](auto* h, auto*) {
                h->mutable_header()->set_durability(v1::DURABILITY_DURABLE);
              }),
              StatusCode::FAILED_PRECONDITION, {"header.durability is DURABLE", "SSD tier"});
  ExpectError(StoreWith([](auto* h, auto*) {
                h->mutable_header()->set_durability(static_cast<v1::Durability>(5));
              }),
              StatusCode::INVALID_ARGUMENT, {"header.durability is 5"});
  ExpectError(StoreWith([](auto* h, auto*) {
                h->mutable_header()->mutable_prompt()->set_model_id(std::string(16, 'x'));
              }),
              StatusCode::NOT_FOUND, {"model_id"});
  v1::StoreResponse response;
  grpc::ClientContext context;
  auto stream = client_.stub().Store(&context, &response);
  stream->WritesDone();
  ExpectError(stream->Finish(), StatusCode::INVALID_ARGUMENT, {"header is missing"});
}

TEST_F(KvCacheErrorsTest, StorePieces) {
  const auto piece = [](auto change) {
    return [change](v1::StoreRequest*, v1::StoreRequest* p) { change(p->mutable_pieces(0)); };
  };
  ExpectError(StoreWith(piece([](auto* p) { p->set_block(3); })), StatusCode::INVALID_ARGUMENT,
              {"piece.block is 3", "[2, 3)"});
  ExpectError(StoreWith(piece([](auto* p) { p->set_block(1); })), StatusCode::INVALID_ARGUMENT,
              {"piece.block is 1", "[2, 3)"});
  ExpectError(StoreWith(piece([](auto* p) { p->set_offset(1); })), StatusCode::INVALID_ARGUMENT,
              {"piece.offset is 1", "end at 0"});
  ExpectError(StoreWith(piece([](auto* p) { p->set_part_bytes(99); })),
              StatusCode::INVALID_ARGUMENT, {"piece.part_bytes is 99", "100 bytes"});
  ExpectError(StoreWith(piece([](auto* p) { p->set_payload(std::string(101, 'x')); })),
              StatusCode::INVALID_ARGUMENT, {"piece.payload has 101 bytes", "1 and 100"});
  ExpectError(StoreWith(piece([](auto* p) { p->clear_payload(); })), StatusCode::INVALID_ARGUMENT,
              {"piece.payload has 0 bytes"});
  const auto second = [](auto change) {
    return [change](v1::StoreRequest*, v1::StoreRequest* p) {
      const std::string payload = p->pieces(0).payload();
      p->mutable_pieces(0)->set_payload(payload.substr(0, 60));
      *p->add_pieces() = p->pieces(0);
      p->mutable_pieces(1)->set_offset(60);
      p->mutable_pieces(1)->set_payload(payload.substr(60));
      change(p->mutable_pieces(1));
    };
  };
  ExpectError(StoreWith(second([](auto* p) { p->set_offset(61); })), StatusCode::INVALID_ARGUMENT,
              {"piece.offset is 61 in block 2", "end at 60"});
  ExpectError(StoreWith(second([](auto* p) { p->set_offset(59); })), StatusCode::INVALID_ARGUMENT,
              {"piece.offset is 59 in block 2", "end at 60"});
  ExpectError(StoreWith(second([](auto* p) { p->mutable_payload()->push_back('x'); })),
              StatusCode::INVALID_ARGUMENT, {"piece.payload has 41 bytes", "1 and 40"});
  ExpectError(StoreWith([](auto*, auto* p) { *p->add_pieces() = p->pieces(0); }),
              StatusCode::INVALID_ARGUMENT, {"piece.block is 2", "the next in order is 3"});
}

TEST_F(KvCacheErrorsTest, TheLastPieceSaysTheChecksum) {
  const auto in_two = [](uint64_t first, int64_t error) {
    return [=](v1::StoreRequest*, v1::StoreRequest* p) {
      const std::string payload = p->pieces(0).payload();
      const uint64_t checksum = p->pieces(0).checksum();
      p->mutable_pieces(0)->set_payload(payload.substr(0, 60));
      *p->add_pieces() = p->pieces(0);
      p->mutable_pieces(0)->set_checksum(first);
      p->mutable_pieces(1)->set_offset(60);
      p->mutable_pieces(1)->set_payload(payload.substr(60));
      p->mutable_pieces(1)->set_checksum(checksum + error);
    };
  };
  ASSERT_TRUE(StoreWith(in_two(0, 1)).ok());
  EXPECT_EQ(stored_.outcomes(0).status(), v1::STORE_STATUS_REJECTED);
  EXPECT_EQ(stored_.outcomes(0).reason(), v1::REJECT_REASON_CHECKSUM);
  ASSERT_TRUE(StoreWith(in_two(0, 0)).ok());
  EXPECT_EQ(stored_.outcomes(0).status(), v1::STORE_STATUS_STORED);
  ASSERT_TRUE(StoreWith(in_two(7, 1)).ok());
  EXPECT_EQ(stored_.outcomes(0).status(), v1::STORE_STATUS_ALREADY_PRESENT);
  EXPECT_EQ(stored_.checksum_mismatches(), 1u);
}

TEST_F(KvCacheErrorsTest, PayloadOfOneMessage) {
  const std::string model = client_.Register("big", {2 * kMiB});
  const v1::Prompt prompt = TokenPrompt(model, 1, 1);
  const std::vector<std::string> payloads = {PayloadBytes(1, 2 * kMiB)};
  v1::StoreResponse response;
  ExpectError(client_.Store(prompt, 0, payloads, &response, {}, kMiB + 1),
              StatusCode::INVALID_ARGUMENT,
              {"pieces.payload has 1048577 bytes in one message, the limit is 1048576"});
  EXPECT_EQ(client_.Found(prompt), 0u);
  EXPECT_TRUE(client_.Store(prompt, 0, payloads, &response, {}, kMiB).ok());
  EXPECT_EQ(client_.Found(prompt), 1u);
}

TEST_F(KvCacheErrorsTest, ModelSpecs) {
  v1::RegisterModelRequest request;
  v1::RegisterModelResponse response;
  request.mutable_spec()->set_name("m");
  request.mutable_spec()->set_block_tokens(4097);
  request.mutable_spec()->add_explicit_part_bytes(10);
  grpc::ClientContext context;
  ExpectError(client_.stub().RegisterModel(&context, request, &response),
              StatusCode::INVALID_ARGUMENT, {"block_tokens", "4097", "4096"});
  request.mutable_spec()->set_block_tokens(4);
  request.mutable_spec()->set_explicit_part_bytes(0, 64 * kMiB + 1);
  grpc::ClientContext second;
  ExpectError(client_.stub().RegisterModel(&second, request, &response),
              StatusCode::INVALID_ARGUMENT, {"67108865", "67108864"});
}

TEST_F(KvCacheErrorsTest, LeasesEndAndAreLimited) {
  const uint64_t lease = client_.Lease(prompt_, 1000);
  const v1::FetchRequest fetch = FetchOf(lease, 0, 2);
  EXPECT_TRUE(client_.Fetch(fetch).status.ok());
  ExpectError(client_.Fetch(FetchOf(lease, 0, 3)).status, StatusCode::INVALID_ARGUMENT,
              {"[0, 3)", "the lease has 2 blocks"});
  EXPECT_NE(client_.Lease(prompt_, 1000), 0u);
  v1::LookupRequest lookup;
  *lookup.mutable_prompt() = prompt_;
  lookup.set_lease_ms(1000);
  v1::LookupResponse found;
  grpc::ClientContext context;
  ExpectError(client_.stub().Lookup(&context, lookup, &found), StatusCode::RESOURCE_EXHAUSTED,
              {"open leases of this client: 2, the limit is 2"});
  ASSERT_EQ(context.GetServerTrailingMetadata().count("retry-delay-ms"), 1u);
  // Another connection is another client.
  ServiceClient other(server_.address());
  EXPECT_NE(other.Lease(prompt_, 1000), 0u);

  const auto renew = [&](uint32_t lease_ms) {
    v1::RenewRequest request;
    request.set_lease_id(lease);
    request.set_lease_ms(lease_ms);
    v1::RenewResponse response;
    grpc::ClientContext call;
    return client_.stub().Renew(&call, request, &response);
  };
  EXPECT_TRUE(renew(2000).ok());
  ExpectError(renew(0), StatusCode::INVALID_ARGUMENT, {"lease_ms is 0, the limits are 1 and"});
  server_.clock().Advance(std::chrono::milliseconds(1999));
  EXPECT_TRUE(client_.Fetch(fetch).status.ok());
  server_.clock().Advance(std::chrono::milliseconds(1));
  ExpectError(client_.Fetch(fetch).status, StatusCode::NOT_FOUND, {"lease_id"});
  ExpectError(renew(1000), StatusCode::NOT_FOUND, {"lease_id"});
  const auto release = [&](uint64_t id, uint32_t verified_blocks = 0) {
    v1::ReleaseRequest request;
    request.set_lease_id(id);
    request.set_verified_blocks(verified_blocks);
    v1::ReleaseResponse response;
    grpc::ClientContext call;
    return client_.stub().Release(&call, request, &response);
  };
  ExpectError(release(lease), StatusCode::NOT_FOUND, {"lease_id"});
  server_.Tick();
  const uint64_t fresh = client_.Lease(prompt_, 1000);
  ExpectError(release(fresh, 3), StatusCode::INVALID_ARGUMENT,
              {"verified_blocks is 3, the lease has 2 blocks"});
  EXPECT_TRUE(release(fresh, 2).ok());
  ExpectError(release(fresh), StatusCode::NOT_FOUND, {"lease_id"});
}

TEST_F(KvCacheErrorsTest, RequestIdsComeBack) {
  const auto call = [&](const char* id) {
    v1::LookupRequest request;
    *request.mutable_prompt() = prompt_;
    request.set_lease_ms(999'999);  // an error
    v1::LookupResponse response;
    grpc::ClientContext context;
    if (id != nullptr) context.AddMetadata("kvtier-request-id", id);
    const grpc::Status status = client_.stub().Lookup(&context, request, &response);
    const auto& metadata = context.GetServerInitialMetadata();
    const auto given = metadata.find("kvtier-request-id");
    if (given == metadata.end()) {
      // An error without a message travels as trailers alone.
      const auto& trailing = context.GetServerTrailingMetadata();
      const auto there = trailing.find("kvtier-request-id");
      EXPECT_NE(there, trailing.end());
      return std::make_pair(std::string(), status.error_message());
    }
    return std::make_pair(std::string(given->second.data(), given->second.size()),
                          status.error_message());
  };
  const auto own = call("my-request.7");
  EXPECT_EQ(own.first, "my-request.7");
  EXPECT_NE(own.second.find(" [request my-request.7]"), std::string::npos);
  const auto made = call(nullptr);
  EXPECT_EQ(made.first.size(), 15u);
  EXPECT_NE(made.second.find(" [request " + made.first + "]"), std::string::npos);
  EXPECT_NE(call(nullptr).first, made.first);
  const std::string longest(64, 'i');
  EXPECT_EQ(call(longest.c_str()).first, longest);
  EXPECT_EQ(call((longest + "i").c_str()).first.size(), 15u);
}

TEST(NothingFitsTest, SaysWhenToTryAgain) {
  TestServer server;
  ServiceClient client(server.address());
  const std::string model = client.Register("big", {40 * kMiB});
  const v1::Prompt held = TokenPrompt(model, 1, 1);
  client.StoreAll(held, 0, {PayloadBytes(1, 40 * kMiB)});
  const uint64_t lease = client.Lease(held, 1000);
  const v1::Prompt prompt = TokenPrompt(model, 2, 1);
  const std::string payload = PayloadBytes(2, 40 * kMiB);
  v1::StoreResponse response;
  grpc::ClientContext context;
  auto stream = client.stub().Store(&context, &response);
  stream->Write(HeaderOf(prompt, 0, 1));
  v1::StoreRequest message;
  *message.add_pieces() = PieceOf(0, payload, 0, kMiB);
  stream->Write(message);
  stream->WritesDone();
  ExpectError(stream->Finish(), StatusCode::RESOURCE_EXHAUSTED, {"not one block fits", "41943040"});
  ASSERT_EQ(context.GetServerTrailingMetadata().count("retry-delay-ms"), 1u);
  EXPECT_EQ(client.Found(held), 1u);
  v1::ReleaseRequest release;
  release.set_lease_id(lease);
  v1::ReleaseResponse released;
  grpc::ClientContext call;
  ASSERT_TRUE(client.stub().Release(&call, release, &released).ok());
  client.StoreAll(prompt, 0, {payload});
  EXPECT_EQ(client.Found(prompt), 1u);
  EXPECT_EQ(client.Found(held), 0u);
}

}  // namespace
}  // namespace kvtier
