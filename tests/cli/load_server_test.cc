// The load generator's client against the real service in this process.
#include <gtest/gtest.h>

#include "cli/load_client.h"
#include "cli/replay.h"
#include "cli/replay_payload.h"
#include "common/prompt.h"
#include "tests/support/test_server.h"

namespace kvtier::cli {
namespace {

constexpr uint64_t kBlockBytes = 4096;

class LoadServer : public ::testing::Test {
 protected:
  static LoadClientOptions Options() {
    LoadClientOptions options;
    options.block_bytes = kBlockBytes;
    options.name.tenant = "load";
    return options;
  }

  LoadReport Run(const LoadOptions& load, int clients) {
    std::vector<std::unique_ptr<LoadTarget>> targets;
    for (int i = 0; i < clients; ++i) {
      targets.push_back(MakeLoadClient(options_, client_.get(), model_));
    }
    const std::unique_ptr<TraceSource> trace = MakeGenerator({});
    const std::unique_ptr<Pacer> pacer = MakePacer();
    absl::StatusOr<LoadReport> report =
        RunLoad(load, *trace, targets, *pacer, [](const std::string&) {});
    EXPECT_TRUE(report.ok()) << report.status();
    return std::move(report).value();
  }

  TestServer server_;
  const std::unique_ptr<Client> client_ =
      std::move(Client::Connect({.address = server_.address()})).value();
  const LoadClientOptions options_ = Options();
  const RegisteredModel model_ = client_->RegisterModel(LoadModel(options_)).value();
};

TEST_F(LoadServer, OperationsDoWhatTheySay) {
  const LoadReport nothing = Run({.requests = 20, .mix = {1, 1, 0}}, 1);
  EXPECT_EQ(nothing.rows[0].count + nothing.rows[1].count, 20u);
  EXPECT_EQ(nothing.rows[0].sum.blocks + nothing.rows[1].sum.blocks, 0u);
  const LoadReport stored = Run({.requests = 20, .mix = {0, 0, 1}}, 1);
  EXPECT_GT(stored.rows[2].sum.blocks, 0u);
  EXPECT_LT(stored.rows[2].sum.blocks, stored.rows[2].sum.asked_blocks);  // prompts share prefixes
  EXPECT_EQ(stored.rows[2].sum.bytes, stored.rows[2].sum.blocks * kBlockBytes);
  const LoadReport found = Run({.requests = 20, .mix = {1, 1, 0}}, 1);
  for (const size_t op : {0, 1}) {
    EXPECT_GT(found.rows[op].count, 0u);
    EXPECT_EQ(found.rows[op].sum.blocks, found.rows[op].sum.asked_blocks);
  }
  EXPECT_EQ(found.rows[1].sum.bytes, found.rows[1].sum.blocks * kBlockBytes);
  EXPECT_TRUE(CheckLoad(found).ok()) << CheckLoad(found);
}

TEST_F(LoadServer, ManyClientsAtARateSeeNoWrongByte) {
  const LoadReport report = Run({.rate = 2000, .requests = 300, .mix = {1, 1, 1}}, 4);
  EXPECT_TRUE(CheckLoad(report).ok()) << CheckLoad(report);
  EXPECT_GT(report.rows[1].sum.blocks, 0u);
  EXPECT_EQ(report.sent_late.count(), 300u);
}

TEST_F(LoadServer, TellsAWrongByte) {
  // The first request's first block under the identity that the load uses, with one bit flipped.
  const TraceRequest request = **MakeGenerator({})->Next();
  std::vector<uint32_t> tokens(options_.block_tokens);
  BlockTokens(request.hash_ids[0], tokens);
  Prompt prompt;
  prompt.model = model_.id;
  prompt.name = options_.name;
  prompt.tokens = tokens;
  const std::string root = CanonicalRoot(model_.id, prompt.name, PromptKind::kTokens,
                                         options_.block_tokens * sizeof(uint32_t));
  std::vector<std::byte> payload(kBlockBytes);
  FillPayload(BlockKeys(Digest128::Of(root), tokens, options_.block_tokens)[0], payload);
  payload[1234] ^= std::byte{1};
  const std::span<const std::byte> payloads[] = {payload};
  ASSERT_EQ(client_->Store(prompt, {}, payloads).value().blocks[0].verdict, StoreVerdict::kStored);

  const LoadReport report = Run({.requests = 1, .mix = {0, 1, 0}}, 1);
  EXPECT_EQ(report.rows[1].sum.wrong_blocks, 1u);
  EXPECT_EQ(report.rows[1].sum.blocks, 1u);
  EXPECT_EQ(CheckLoad(report).code(), absl::StatusCode::kDataLoss);
}

TEST_F(LoadServer, AServerThatIsGoneIsCountedAndTheLoadGoesOn) {
  server_.Stop();
  const LoadReport report = Run({.requests = 5, .mix = {1, 0, 0}}, 1);
  EXPECT_EQ(report.rows[0].count, 5u);
  EXPECT_EQ(report.rows[0].errors, 5u);
  EXPECT_EQ(CheckLoad(report).code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace kvtier::cli
