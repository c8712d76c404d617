// A model's attention shape, and from it the bytes of a token, a block and a part: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/block_key.h"
#include "common/status.h"

namespace kvtier {

enum class DType : uint8_t {
  kUnspecified = 0,
  kFp32 = 1,
  kBf16 = 2,
  kFp16 = 3,
  kFp8 = 4,
  kInt8 = 5
};
uint32_t DTypeBytes(DType dtype);                         // 0 for kUnspecified
std::string_view DTypeName(DType dtype);                  // "bf16"
absl::StatusOr<DType> ParseDType(std::string_view name);  // also "float16", "bfloat16", ...

enum class PackOrder : uint8_t {
  kUnspecified = 0,
  kLayerKvTokenHead = 1,
  kHeadFirst = 2,
  kOpaque = 3
};

// MHA (kv_heads = query heads), GQA, MQA (kv_heads = 1).
struct GroupedAttention {
  uint32_t kv_heads = 0;        // of the whole model
  uint32_t head_dim = 0;        // elements of a key
  uint32_t value_head_dim = 0;  // elements of a value; 0 = head_dim
};
// MLA: one latent per layer and token, without a factor 2 and without heads.
struct LatentAttention {
  uint32_t kv_lora_rank = 0;
  uint32_t rope_head_dim = 0;
};
// Linear attention, state space: a fixed size per sequence.
struct StateLayers {
  uint64_t state_bytes = 0;  // per layer and sequence, over all ranks
};
struct LayerGroup {
  std::variant<GroupedAttention, LatentAttention, StateLayers> attention;
  uint32_t layers = 0;
  uint32_t window_tokens = 0;  // 0 = full attention
};

struct ModelSpec {
  std::string name;
  std::string revision;
  uint32_t block_tokens = 16;
  DType dtype = DType::kUnspecified;
  std::vector<LayerGroup> layer_groups;
  uint32_t tensor_parallel = 1;
  PackOrder pack_order = PackOrder::kUnspecified;
  std::string layout_fingerprint;
  std::vector<uint64_t> explicit_part_bytes;  // group-major; instead of layer_groups
  uint32_t explicit_groups = 1;
};

struct SpecLimits {
  uint64_t part_bytes = uint64_t{64} << 20;
};

// INVALID_ARGUMENT naming field, value and limit.
absl::Status ValidateSpec(const ModelSpec& spec, const SpecLimits& limits = {});

// What follows takes a valid spec.

// The length-prefixed encoding whose digest is the ModelId; covers every field.
std::string CanonicalSpec(const ModelSpec& spec);
ModelId SpecId(const ModelSpec& spec);

uint32_t GroupCount(const ModelSpec& spec);
uint32_t PartCount(const ModelSpec& spec);  // groups * tensor_parallel

// Bytes that one more token adds on one rank of one group / over all ranks and groups (windows not
// reached). Heads are split over the ranks; with tensor_parallel > kv_heads each head is held by
// tensor_parallel / kv_heads ranks; latents are held by all. State layers add nothing per token.
uint64_t RankBytesPerToken(const ModelSpec& spec, const LayerGroup& group);
uint64_t BytesPerToken(const ModelSpec& spec);  // tensor_parallel as in the spec
// All ranks together, for a sequence of `tokens`: windowed layers hold at most their window.
uint64_t BytesPerSequence(const ModelSpec& spec, uint64_t tokens);

// Group-major. A part of a state group holds the state at the block's end.
std::vector<uint64_t> PartBytes(const ModelSpec& spec);
uint64_t BlockBytes(const ModelSpec& spec);

}  // namespace kvtier
