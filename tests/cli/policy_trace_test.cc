// The hit ratios of the eviction orders on real traces, from the daemon's own TierManager without a
// server: the figures that independent simulation gives for the same traces.
#include <cstdlib>
#include <filesystem>

#include "cli/trace.h"
#include "gtest/gtest.h"
#include "tests/support/tier_fixture.h"

namespace kvtier {
namespace {

constexpr uint64_t kPart = 4096;  // bytes, a whole page; the policy does not depend on it

struct Case {
  const char* name;
  const char* file;
  uint32_t block_tokens;  // of the trace
  bool full_only;
  uint64_t capacity_blocks;
  double hit_ratio;
  Eviction eviction = Eviction::kLru;
};

std::filesystem::path TraceFolder() {
  const char* folder = std::getenv("KVTIER_TRACES");
  return folder != nullptr ? std::filesystem::path(folder)
                           : std::filesystem::path(KVTIER_SOURCE_DIR) / "../shared/traces";
}

class PolicyTraceTest : public ::testing::TestWithParam<Case> {};

// One request: what is there is touched, the rest is stored.
uint32_t Request(TierFixture* fixture, const ModelSpec& model,
                 const std::vector<uint32_t>& tokens) {
  const uint32_t hits = fixture->Found(model, tokens);
  PromptRef prompt = fixture->Prompt(model, tokens);
  const auto count = static_cast<uint32_t>(prompt.cursor.blocks());
  const auto session = fixture->manager().BeginStore(prompt, 0, count, 0);
  EXPECT_TRUE(session.ok()) << session.status();
  for (uint32_t block = hits; block < count; ++block) {
    if ((*session)->Reserve(block, fixture->deadline())) (*session)->Commit(block, 0);
  }
  return hits;
}

TEST_P(PolicyTraceTest, HitRatioMatchesTheSimulation) {
  const std::filesystem::path path = TraceFolder() / GetParam().file;
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "no trace " << path << "; set KVTIER_TRACES";
  const auto trace = cli::OpenTrace(path.string(), {.block_tokens = GetParam().block_tokens});
  ASSERT_TRUE(trace.ok()) << trace.status();
  const ModelSpec model = OpaqueModel("trace", {kPart}, /*block_tokens=*/1);
  ManagerOptions options;
  options.eviction = GetParam().eviction;
  TierFixture fixture({.ram = GetParam().capacity_blocks * kPart}, options);
  ASSERT_TRUE(fixture.manager().AddModel(model).ok());

  uint64_t blocks = 0, hits = 0;
  while (true) {
    const auto request = (*trace)->Next();
    ASSERT_TRUE(request.ok()) << request.status();
    if (!request->has_value()) break;
    const auto& ids = (*request)->hash_ids;
    const size_t used = cli::UsedBlocks(**request, GetParam().block_tokens, GetParam().full_only);
    if (used == 0) continue;
    blocks += used;
    hits += Request(&fixture, model, {ids.begin(), ids.begin() + static_cast<ptrdiff_t>(used)});
  }
  ASSERT_GT(blocks, 0u);
  const double ratio = static_cast<double>(hits) / static_cast<double>(blocks);
  EXPECT_NEAR(ratio, GetParam().hit_ratio, .0016);
  fixture.manager().CheckInvariants();
}

constexpr char kConversation[] = "mooncake_conversation.jsonl.zst";
constexpr char kMagagent[] = "lmcache_magagent_b16.jsonl.zst";

INSTANTIATE_TEST_SUITE_P(
    Traces, PolicyTraceTest,
    ::testing::Values(Case{"conversation_1", kConversation, 512, false, 1828, .0525},
                      Case{"conversation_5", kConversation, 512, false, 9140, .1958},
                      Case{"conversation_10", kConversation, 512, false, 18279, .2789},
                      Case{"conversation_full_1", kConversation, 512, true, 1828, .0551},
                      Case{"conversation_full_5", kConversation, 512, true, 9140, .2118},
                      Case{"magagent_1", kMagagent, 16, false, 151, .441},
                      Case{"magagent_5", kMagagent, 16, false, 756, .719},
                      Case{"magagent_full_1", kMagagent, 16, true, 151, .442},
                      Case{"magagent_full_5", kMagagent, 16, true, 756, .719},
                      Case{"conversation_1_protected", kConversation, 512, false, 1828, .0601,
                           Eviction::kProtected},
                      Case{"conversation_5_protected", kConversation, 512, false, 9140, .2073,
                           Eviction::kProtected},
                      Case{"magagent_5_protected", kMagagent, 16, false, 756, .7218,
                           Eviction::kProtected}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace kvtier
