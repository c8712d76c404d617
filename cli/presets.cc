#include "cli/presets.h"

namespace kvtier::cli {
namespace {

// Layers that attend alike are added up here: only their number matters for sizes, not their order.
struct Shape {
  const char* name;
  DType dtype;
  uint32_t full_layers;
  uint32_t window_layers;
  uint32_t window_tokens;
  uint32_t kv_heads;
  uint32_t head_dim;
};

constexpr DType kBf16 = DType::kBf16;
constexpr DType kFp16 = DType::kFp16;

constexpr Shape kShapes[] = {
    {"gpt2", DType::kFp32, 12, 0, 0, 12, 64},
    {"llama-7b", kFp16, 32, 0, 0, 32, 128},
    {"llama-13b", kFp16, 40, 0, 0, 40, 128},
    {"llama-2-7b", kFp16, 32, 0, 0, 32, 128},
    {"llama-2-13b", kFp16, 40, 0, 0, 40, 128},
    {"llama-2-70b", kFp16, 80, 0, 0, 8, 128},
    {"llama-3-8b", kBf16, 32, 0, 0, 8, 128},
    {"llama-3-70b", kBf16, 80, 0, 0, 8, 128},
    {"llama-3-70b-mha", kBf16, 80, 0, 0, 64, 128},  // what grouped queries save
    {"llama-3-70b-mqa", kBf16, 80, 0, 0, 1, 128},   // what one head would cost
    {"llama-3.1-405b", kBf16, 126, 0, 0, 8, 128},
    {"llama-3.2-1b", kBf16, 16, 0, 0, 8, 64},
    {"llama-3.2-3b", kBf16, 28, 0, 0, 8, 128},
    {"qwen2.5-0.5b", kBf16, 24, 0, 0, 2, 64},
    {"qwen2.5-7b", kBf16, 28, 0, 0, 4, 128},
    {"qwen2.5-14b", kBf16, 48, 0, 0, 8, 128},
    {"qwen2.5-32b", kBf16, 64, 0, 0, 8, 128},
    {"qwen2.5-72b", kBf16, 80, 0, 0, 8, 128},
    {"qwen3-8b", kBf16, 36, 0, 0, 8, 128},
    {"qwen3-30b-a3b", kBf16, 48, 0, 0, 4, 128},
    {"qwen3-235b-a22b", kBf16, 94, 0, 0, 4, 128},
    {"mistral-7b", kBf16, 0, 32, 4096, 8, 128},  // v0.1; later versions attend to everything
    {"mixtral-8x7b", kBf16, 32, 0, 0, 8, 128},
    {"gemma-2-9b", kBf16, 21, 21, 4096, 8, 256},
    {"gemma-2-27b", kBf16, 23, 23, 4096, 16, 128},
    {"gemma-3-12b", kBf16, 8, 40, 1024, 8, 256},
    {"gemma-3-27b", kBf16, 10, 52, 1024, 16, 128},
    {"gpt-oss-20b", kBf16, 12, 12, 128, 8, 64},
    {"gpt-oss-120b", kBf16, 18, 18, 128, 8, 64},
};

struct LatentShape {
  const char* name;
  uint32_t layers;
};
constexpr LatentShape kLatentShapes[] = {
    {"deepseek-v2-lite", 27}, {"deepseek-v2", 60}, {"deepseek-v3", 61}, {"deepseek-r1", 61}};

ModelSpec Named(const char* name, DType dtype) {
  ModelSpec spec;
  spec.name = name;
  spec.dtype = dtype;
  return spec;
}

ModelSpec FromShape(const Shape& shape) {
  ModelSpec spec = Named(shape.name, shape.dtype);
  const GroupedAttention attention{shape.kv_heads, shape.head_dim, 0};
  if (shape.full_layers > 0) spec.layer_groups.push_back({attention, shape.full_layers, 0});
  if (shape.window_layers > 0) {
    spec.layer_groups.push_back({attention, shape.window_layers, shape.window_tokens});
  }
  return spec;
}

}  // namespace

std::vector<ModelSpec> Presets() {
  std::vector<ModelSpec> presets;
  for (const Shape& shape : kShapes) presets.push_back(FromShape(shape));
  for (const LatentShape& shape : kLatentShapes) {
    ModelSpec& spec = presets.emplace_back(Named(shape.name, kBf16));
    spec.layer_groups.push_back({LatentAttention{512, 64}, shape.layers, 0});
  }
  // What the latents save: DeepSeek-V3 with every head's key and value kept.
  ModelSpec& naive = presets.emplace_back(Named("deepseek-v3-naive-mha", kBf16));
  naive.layer_groups.push_back({GroupedAttention{128, 192, 128}, 61, 0});
  return presets;
}

absl::StatusOr<ModelSpec> FindPreset(std::string_view name) {
  std::string names;
  for (ModelSpec& spec : Presets()) {
    if (spec.name == name) return std::move(spec);
    absl::StrAppend(&names, names.empty() ? "" : ", ", spec.name);
  }
  return absl::NotFoundError(
      absl::StrCat("preset is '", std::string(name), "', there are: ", names));
}

}  // namespace kvtier::cli
