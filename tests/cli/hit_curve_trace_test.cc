// The online hit-ratio curve against the exact one on real traces: fed with the trace's references,
// and through the daemon's own TierManager.
#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "cli/trace.h"
#include "common/prompt.h"
#include "gtest/gtest.h"
#include "storage/hit_curve.h"
#include "tests/support/tier_fixture.h"

namespace kvtier {
namespace {

constexpr uint64_t kPart = 4096;  // bytes, a whole page

using Prompts = std::vector<std::vector<uint32_t>>;  // block ids

// Empty when the trace is not there.
Prompts ReadTrace(const std::string& file) {
  const char* folder = std::getenv("KVTIER_TRACES");
  const std::filesystem::path path =
      (folder != nullptr ? std::filesystem::path(folder)
                         : std::filesystem::path(KVTIER_SOURCE_DIR) / "../shared/traces") /
      file;
  Prompts prompts;
  if (!std::filesystem::exists(path)) return prompts;
  const auto trace = cli::OpenTrace(path.string(), {.block_tokens = 512});
  EXPECT_TRUE(trace.ok()) << trace.status();
  while (true) {
    const auto request = (*trace)->Next();
    EXPECT_TRUE(request.ok()) << request.status();
    if (!request.ok() || !request->has_value()) return prompts;
    prompts.emplace_back((*request)->hash_ids.begin(), (*request)->hash_ids.end());
  }
}

// Leaf-first LRU at every size at once, exactly: what a prompt's blocks have before them in order
// of last use.
class ExactCurve {
 public:
  explicit ExactCurve(const Prompts& prompts) {
    size_t references = 0;
    for (const auto& prompt : prompts) references += prompt.size();
    tree_.resize(references + 1);
    for (const auto& prompt : prompts) Add(prompt);
  }
  static constexpr uint32_t kNever = UINT32_MAX;
  // One for each reference, in blocks, the block itself included.
  const std::vector<uint32_t>& distances() const { return distances_; }
  size_t distinct() const { return last_.size(); }
  std::vector<double> HitRatios() const {
    std::vector<double> ratios(distinct() + 1);
    for (const uint32_t distance : distances_) {
      if (distance != kNever) ratios[distance] += 1. / static_cast<double>(distances_.size());
    }
    for (size_t i = 1; i < ratios.size(); ++i) ratios[i] += ratios[i - 1];
    return ratios;
  }

 private:
  void Add(const std::vector<uint32_t>& prompt) {
    for (const uint32_t id : prompt) {
      const auto it = last_.find(id);
      distances_.push_back(
          it == last_.end() ? kNever : static_cast<uint32_t>(last_.size()) - Before(it->second));
    }
    for (size_t i = prompt.size(); i-- > 0;) {
      const auto [it, added] = last_.try_emplace(prompt[i], now_);
      if (!added) Change(std::exchange(it->second, now_), -1);
      Change(now_++, 1);
    }
  }
  void Change(size_t time, int by) {
    for (size_t i = time + 1; i < tree_.size(); i += i & (~i + 1)) tree_[i] += by;
  }
  uint32_t Before(size_t time) const {
    int sum = 0;
    for (size_t i = time; i > 0; i -= i & (~i + 1)) sum += tree_[i];
    return static_cast<uint32_t>(sum);
  }

  absl::flat_hash_map<uint32_t, size_t> last_;
  std::vector<int> tree_;
  std::vector<uint32_t> distances_;
  size_t now_ = 0;
};

struct Errors {
  double mean = 0;
  double largest = 0;
};

// Over sizes from 0.25 % to 100 % of the distinct blocks, 25 for each power of ten.
Errors Compare(const HitRatioCurve& estimate, const std::vector<double>& exact) {
  Errors errors;
  int sizes = 0;
  const auto distinct = static_cast<double>(exact.size() - 1);
  for (double share = .0025; share < 1; share *= std::pow(10, .04), ++sizes) {
    const auto blocks = static_cast<uint64_t>(share * distinct);
    const double error = std::abs(estimate.HitRatio(blocks * kPart) - exact[blocks]);
    errors.mean += error;
    errors.largest = std::max(errors.largest, error);
  }
  errors.mean /= sizes;
  return errors;
}

// What a server whose tiers hold `capacity` blocks tells its curve.
void Feed(const Prompts& prompts, const ExactCurve& exact, uint64_t capacity, HitCurve* curve) {
  curve->SetCapacity(capacity * kPart);
  size_t reference = 0;
  for (const auto& prompt : prompts) {
    PathSampler sampler = curve->Sampler();
    uint64_t hits = 0;
    for (uint32_t depth = 0; depth < prompt.size(); ++depth) {
      hits += exact.distances()[reference++] <= capacity;
      const uint32_t id = prompt[depth];
      sampler.Take(depth, BlockKey::Of({reinterpret_cast<const char*>(&id), sizeof(id)}));
    }
    std::vector<SampledBlock> found, stored;
    for (const SampledBlock& block : sampler.sampled()) {
      (block.depth < hits ? found : stored).push_back(block);
    }
    curve->AddLookup({0, kPart, found}, prompt.size(), hits);
    if (hits < prompt.size()) curve->AddStore({0, kPart, stored}, prompt.size() - hits, found);
  }
}

struct Case {
  const char* name;
  const char* file;
  double capacity;  // share of distinct blocks
  uint32_t most_samples;
  int salts;
};

class HitCurveTraceTest : public ::testing::TestWithParam<Case> {};

TEST_P(HitCurveTraceTest, EstimateIsNearTheExactCurve) {
  const Prompts prompts = ReadTrace(GetParam().file);
  if (prompts.empty()) GTEST_SKIP() << "no trace " << GetParam().file << "; set KVTIER_TRACES";
  const ExactCurve exact(prompts);
  const std::vector<double> ratios = exact.HitRatios();
  Errors sum, worst;
  double rate = 0;
  for (int salt = 0; salt < GetParam().salts; ++salt) {
    HitCurve curve({GetParam().most_samples, static_cast<uint64_t>(salt) * 0x9E3779B97F4A7C15});
    Feed(prompts, exact, static_cast<uint64_t>(GetParam().capacity * exact.distinct()), &curve);
    const Errors errors = Compare(curve.Curve(std::nullopt, true), ratios);
    EXPECT_LE(errors.mean, .01) << "salt " << salt;
    EXPECT_LE(errors.largest, .03) << "salt " << salt;
    sum = {sum.mean + errors.mean, sum.largest + errors.largest};
    worst = {std::max(worst.mean, errors.mean), std::max(worst.largest, errors.largest)};
    rate = curve.stats().rate;
  }
  std::printf(
      "%s: 1 block in %.0f; mean error %.4f (worst of %d salts %.4f), largest %.4f (%.4f)\n",
      GetParam().name, 1 / rate, sum.mean / GetParam().salts, GetParam().salts, worst.mean,
      sum.largest / GetParam().salts, worst.largest);
}

constexpr char kConversation[] = "mooncake_conversation.jsonl.zst";
constexpr char kWeka[] = "weka_A_merged_b512.jsonl.zst";
constexpr uint32_t kDefault = HitCurveOptions().most_samples;

// The small ghost samples chat as coarsely as agent sessions are.
INSTANTIATE_TEST_SUITE_P(Traces, HitCurveTraceTest,
                         ::testing::Values(Case{"conversation_1", kConversation, .01, kDefault, 5},
                                           Case{"conversation_5", kConversation, .05, kDefault, 5},
                                           Case{"conversation_25", kConversation, .25, kDefault, 5},
                                           Case{"conversation_small", kConversation, .05, 8192, 20},
                                           Case{"weka_1", kWeka, .01, kDefault, 4},
                                           Case{"weka_5", kWeka, .05, kDefault, 4}),
                         [](const auto& info) { return std::string(info.param.name); });

// The manager's own calls, at one size of RAM, predict the exact hit ratio at others.
TEST(HitCurveManagerTest, OneSizePredictsOthers) {
  const Prompts prompts = ReadTrace(kConversation);
  if (prompts.empty()) GTEST_SKIP() << "no trace " << kConversation << "; set KVTIER_TRACES";
  const std::vector<double> exact = ExactCurve(prompts).HitRatios();
  const ModelSpec model = OpaqueModel("trace", {kPart}, /*block_tokens=*/1);
  TierFixture fixture({.ram = 9140 * kPart});
  ASSERT_TRUE(fixture.manager().AddModel(model).ok());
  for (const auto& tokens : prompts) {
    const uint32_t hits = fixture.Found(model, tokens);
    PromptRef prompt = fixture.Prompt(model, tokens);
    const auto count = static_cast<uint32_t>(tokens.size());
    if (hits == count) continue;
    const auto session = fixture.manager().BeginStore(prompt, hits, count - hits, 0);
    ASSERT_TRUE(session.ok()) << session.status();
    for (uint32_t block = hits; block < count; ++block) {
      if ((*session)->Reserve(block, fixture.deadline())) (*session)->Commit(block, 0);
    }
  }
  const auto curve = fixture.manager().Curve(SpecId(model), false);
  ASSERT_TRUE(curve.ok()) << curve.status();
  const Errors errors = Compare(*curve, exact);
  std::printf(
      "manager at 9140 blocks: mean error %.4f, largest %.4f; at 18279 %.4f (%.4f), at 45698 %.4f "
      "(%.4f)\n",
      errors.mean, errors.largest, curve->HitRatio(18279 * kPart), exact[18279],
      curve->HitRatio(45698 * kPart), exact[45698]);
  EXPECT_LE(errors.mean, .01);
  EXPECT_LE(errors.largest, .03);
}

}  // namespace
}  // namespace kvtier
