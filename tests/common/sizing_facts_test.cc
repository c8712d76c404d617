// The published shapes and what they cost: figures that a capacity planner can check by hand.
#include <gtest/gtest.h>

#include "common/model_spec.h"

namespace kvtier {
namespace {

constexpr uint64_t kKiB = 1024;
constexpr uint64_t kMiB = kKiB * 1024;
constexpr uint64_t kGiB = kMiB * 1024;

ModelSpec Grouped(uint32_t layers, uint32_t kv_heads, uint32_t head_dim, DType dtype) {
  ModelSpec spec;
  spec.name = "some model";
  spec.dtype = dtype;
  spec.layer_groups = {{GroupedAttention{kv_heads, head_dim, 0}, layers, 0}};
  return spec;
}

ModelSpec DeepSeekV3() {
  ModelSpec spec = Grouped(61, 1, 1, DType::kBf16);
  spec.layer_groups[0].attention = LatentAttention{512, 64};
  return spec;
}

TEST(SizingFacts, Llama3With70B) {
  const ModelSpec spec = Grouped(80, 8, 128, DType::kBf16);
  EXPECT_EQ(BytesPerToken(spec), 327680u);
  EXPECT_EQ(BytesPerToken(spec), 320 * kKiB);
  EXPECT_EQ(BytesPerSequence(spec, 8192) * 2, 5 * kGiB);
  EXPECT_EQ(BytesPerSequence(spec, 131072), 40 * kGiB);
}

TEST(SizingFacts, Llama3With70BAsMhaAndMqa) {
  const ModelSpec mha = Grouped(80, 64, 128, DType::kBf16);
  EXPECT_EQ(BytesPerToken(mha) * 2, 5 * kMiB);
  EXPECT_EQ(BytesPerSequence(mha, 131072), 320 * kGiB);
  const ModelSpec mqa = Grouped(80, 1, 128, DType::kBf16);
  EXPECT_EQ(BytesPerToken(mqa), 40 * kKiB);
  EXPECT_EQ(BytesPerSequence(mqa, 131072), 5 * kGiB);
}

TEST(SizingFacts, Llama3With8B) {
  EXPECT_EQ(BytesPerToken(Grouped(32, 8, 128, DType::kBf16)), 128 * kKiB);
  EXPECT_EQ(BytesPerToken(Grouped(32, 8, 128, DType::kFp8)), 64 * kKiB);
}

TEST(SizingFacts, LlamaWith7B) {
  const ModelSpec spec = Grouped(32, 32, 128, DType::kFp16);
  EXPECT_EQ(BytesPerToken(spec), 524288u);
  EXPECT_EQ(BytesPerSequence(spec, 2048), kGiB);
}

TEST(SizingFacts, DeepSeekV3) {
  EXPECT_EQ(BytesPerToken(DeepSeekV3()), 70272u);
  EXPECT_EQ(BytesPerSequence(DeepSeekV3(), 131072), uint64_t{70272} * 131072);
  EXPECT_NEAR(static_cast<double>(BytesPerSequence(DeepSeekV3(), 131072)) / kGiB, 8.6, 0.05);
}

TEST(SizingFacts, DeepSeekV3AsNaiveMha) {
  ModelSpec naive = Grouped(61, 128, 192, DType::kBf16);
  std::get<GroupedAttention>(naive.layer_groups[0].attention).value_head_dim = 128;
  EXPECT_EQ(BytesPerToken(naive), 61u * 128 * (192 + 128) * 2);
  EXPECT_NEAR(static_cast<double>(BytesPerToken(naive)) / kMiB, 4.8, 0.05);
  EXPECT_NEAR(static_cast<double>(BytesPerToken(naive)) / 70272, 71, 0.5);
}

TEST(SizingFacts, TensorParallelismKeepsTheTotalUntilHeadsRunOut) {
  ModelSpec spec = Grouped(80, 8, 128, DType::kBf16);
  for (const uint32_t ranks : {1u, 2u, 4u, 8u}) {
    spec.tensor_parallel = ranks;
    EXPECT_EQ(BytesPerToken(spec), 327680u) << ranks;
    EXPECT_EQ(RankBytesPerToken(spec, spec.layer_groups[0]), 327680u / ranks);
  }
  spec.tensor_parallel = 32;  // each head four times
  EXPECT_EQ(BytesPerToken(spec), 327680u * 4);
  EXPECT_EQ(RankBytesPerToken(spec, spec.layer_groups[0]), 327680u / 8);
}

TEST(SizingFacts, LatentsAreOnEveryRank) {
  ModelSpec spec = DeepSeekV3();
  spec.tensor_parallel = 8;
  EXPECT_EQ(RankBytesPerToken(spec, spec.layer_groups[0]), 70272u);
  EXPECT_EQ(BytesPerToken(spec), 70272u * 8);
}

TEST(SizingFacts, WindowedLayersHoldTheirWindowAtMost) {
  ModelSpec spec = Grouped(32, 8, 128, DType::kBf16);
  spec.layer_groups[0].window_tokens = 4096;
  EXPECT_EQ(BytesPerSequence(spec, 4096), 4096 * 128 * kKiB);
  EXPECT_EQ(BytesPerSequence(spec, 4095), 4095 * 128 * kKiB);
  EXPECT_EQ(BytesPerSequence(spec, 100000), 4096 * 128 * kKiB);
}

TEST(SizingFacts, HybridModelsSumTheirLayers) {
  ModelSpec spec = Grouped(10, 8, 128, DType::kBf16);
  LayerGroup windowed = spec.layer_groups[0];
  windowed.window_tokens = 1024;
  spec.layer_groups.push_back(windowed);
  spec.layer_groups.push_back({StateLayers{5000}, 3, 0});
  const uint64_t per_token = 2 * 10 * 8 * 128 * 2;
  EXPECT_EQ(BytesPerToken(spec), 2 * per_token);
  EXPECT_EQ(BytesPerSequence(spec, 1000), 2000 * per_token + 15000);
  EXPECT_EQ(BytesPerSequence(spec, 5000), (5000 + 1024) * per_token + 15000);
}

}  // namespace
}  // namespace kvtier
