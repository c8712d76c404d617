// The replay against the real service in this process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/replay.h"
#include "cli/replay_payload.h"
#include "common/prompt.h"
#include "kvtier/client.h"
#include "tests/support/test_server.h"

namespace kvtier::cli {
namespace {

constexpr uint64_t kBlockBytes = 4096;

class ReplayServer : public ::testing::Test {
 protected:
  static TestServerOptions ServerWith(uint64_t blocks) {
    TestServerOptions options;
    options.ram_bytes = blocks * kBlockBytes;
    return options;
  }

  ReplayOptions Options(const TestServer& server) {
    ReplayOptions options;
    options.server = server.address();
    options.block_bytes = kBlockBytes;
    return options;
  }

  static std::unique_ptr<TraceSource> Trace(uint64_t requests = 200) {
    GeneratorOptions options;
    options.requests = requests;
    return MakeGenerator(options);
  }

  static ReplayReport Run(const ReplayOptions& options) {
    const auto trace = Trace();
    absl::StatusOr<ReplayReport> report = Replay(options, *trace, [](const std::string&) {});
    EXPECT_TRUE(report.ok()) << report.status();
    return report.ok() ? *report : ReplayReport();
  }
};

TEST_F(ReplayServer, VerifiesEveryHitAndHitsAllTheSecondTime) {
  TestServer server(ServerWith(16384));
  const ReplayReport first = Run(Options(server));
  EXPECT_EQ(first.requests, 200u);
  EXPECT_GT(first.hit_blocks, first.blocks / 4);
  EXPECT_LT(first.hit_blocks, first.blocks);
  EXPECT_EQ(first.verified_blocks, first.hit_blocks);
  EXPECT_EQ(first.wrong_blocks, 0u);
  EXPECT_EQ(first.stored_blocks, first.blocks - first.hit_blocks);
  EXPECT_EQ(first.fetched_bytes, first.hit_blocks * kBlockBytes);
  EXPECT_EQ(first.hit_blocks_by_tier[static_cast<size_t>(CacheTier::kRam)], first.hit_blocks);
  EXPECT_TRUE(CheckReplay(first).ok());

  const ReplayReport second = Run(Options(server));
  EXPECT_EQ(second.hit_blocks, second.blocks);
  EXPECT_EQ(second.verified_blocks, second.blocks);
  EXPECT_EQ(second.stored_blocks, 0u);

  ReplayOptions stranger = Options(server);
  stranger.tenant = "somebody else";
  EXPECT_EQ(Run(stranger).hit_blocks, first.hit_blocks);
}

TEST_F(ReplayServer, TellsAWrongByte) {
  TestServer server(ServerWith(16384));
  const ReplayOptions options = Options(server);
  // The first request's first block, stored under the identity that the replay uses, with one bit
  // flipped.
  const TraceRequest request = **Trace(1)->Next();
  std::vector<uint32_t> tokens(options.block_tokens);
  BlockTokens(request.hash_ids[0], tokens);
  const auto client = std::move(Client::Connect({.address = options.server})).value();
  const RegisteredModel model = client->RegisterModel(ReplayModel(options)).value();
  Prompt prompt;
  prompt.model = model.id;
  prompt.name.tenant = options.tenant;
  prompt.tokens = tokens;
  const std::string root = CanonicalRoot(model.id, prompt.name, PromptKind::kTokens,
                                         options.block_tokens * sizeof(uint32_t));
  std::vector<std::byte> payload(kBlockBytes);
  FillPayload(BlockKeys(Digest128::Of(root), tokens, options.block_tokens)[0], payload);
  payload[1234] ^= std::byte{1};
  const std::span<const std::byte> payloads[] = {payload};
  ASSERT_EQ(client->Store(prompt, {}, payloads).value().blocks[0].verdict, StoreVerdict::kStored);

  const ReplayReport report = Run(options);
  EXPECT_GT(report.wrong_blocks, 0u);
  EXPECT_EQ(report.verified_blocks, report.hit_blocks - report.wrong_blocks);
  EXPECT_EQ(CheckReplay(report).code(), absl::StatusCode::kDataLoss);
}

TEST_F(ReplayServer, RequestsLongerThanTheTierAreNoError) {
  TestServer server(ServerWith(8));
  const ReplayReport report = Run(Options(server));
  EXPECT_GT(report.rejected_blocks, 0u);
  EXPECT_GT(report.hit_blocks, 0u);
  EXPECT_EQ(report.verified_blocks, report.hit_blocks);
}

TEST_F(ReplayServer, ManyClientsSeeNoWrongByte) {
  TestServer server(ServerWith(300));
  ReplayOptions options = Options(server);
  options.clients = 4;
  const ReplayReport report = Run(options);
  EXPECT_EQ(report.requests, 200u);
  EXPECT_GT(report.hit_blocks, 0u);
  EXPECT_TRUE(CheckReplay(report).ok()) << CheckReplay(report);
}

TEST_F(ReplayServer, StopsAtTheLimit) {
  TestServer server(ServerWith(16384));
  ReplayOptions options = Options(server);
  options.limit = 7;
  EXPECT_EQ(Run(options).requests, 7u);
}

TEST_F(ReplayServer, FullConventionLeavesPartialBlocksOut) {
  TestServer server(ServerWith(16384));
  ReplayOptions options = Options(server);
  const uint64_t all = Run(options).blocks;
  options.full_only = true;
  options.tenant = "full";
  const ReplayReport full = Run(options);
  EXPECT_LT(full.blocks, all);
  EXPECT_GE(full.blocks, all - full.requests);
  EXPECT_EQ(full.verified_blocks, full.hit_blocks);
}

TEST_F(ReplayServer, SaysWhereNobodyAnswers) {
  ReplayOptions options;
  options.server = "unix:/no/such/socket";
  options.block_bytes = kBlockBytes;
  const auto trace = Trace();
  const absl::Status status = Replay(options, *trace, [](const std::string&) {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()),
              ::testing::HasSubstr("cannot reach kvtierd at unix:/no/such/socket"));
}

TEST_F(ReplayServer, ABadTraceStopsAllClients) {
  class BadTrace final : public TraceSource {
   public:
    absl::StatusOr<std::optional<TraceRequest>> Next() override {
      if (++given_ > 5) return absl::InvalidArgumentError("trace:6: not a request");
      TraceRequest request;
      request.input_length = 512;
      request.hash_ids = {given_};
      return std::optional<TraceRequest>(request);
    }

   private:
    uint64_t given_ = 0;
  };
  TestServer server(ServerWith(64));
  ReplayOptions options = Options(server);
  options.clients = 3;
  BadTrace trace;
  const absl::Status status = Replay(options, trace, [](const std::string&) {}).status();
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("trace:6: not a request"));
}

}  // namespace
}  // namespace kvtier::cli
