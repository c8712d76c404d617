#include "common/model_spec.h"

#include <algorithm>
#include <limits>

#include "absl/strings/ascii.h"

namespace kvtier {
namespace {

constexpr size_t kMaxNameBytes = 256;
constexpr size_t kMaxFingerprintBytes = 64;
constexpr uint32_t kMaxBlockTokens = 4096;
constexpr uint32_t kMaxGroups = 64;
constexpr uint32_t kMaxLayers = 1024;
constexpr uint32_t kMaxDimension = 65536;
constexpr uint32_t kMaxRanks = 1024;
// Each block's entry in the index has 32 bytes for each part.
constexpr uint32_t kMaxParts = 4096;
// With these limits no product below passes 2^57: layers 2^10, heads 2^16, key + value 2^17,
// element 2^2, tokens 2^12.
constexpr uint64_t kMaxStateBytes = uint64_t{1} << 40;

constexpr std::string_view kSpecTag = "kvtier-spec-1";  // the number is the encoding's version

absl::Status CheckRange(const std::string& field, uint64_t value, uint64_t least, uint64_t most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", value, ", the limits are ", least, " and ", most));
}

absl::Status CheckBytes(const char* field, size_t size, size_t least, size_t most) {
  if (size >= least && size <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " has ", size, " bytes, the limits are ", least, " and ", most));
}

absl::Status CheckGrouped(const std::string& field, const GroupedAttention& attention,
                          uint32_t ranks) {
  KVTIER_RETURN_IF_ERROR(CheckRange(field + ".kv_heads", attention.kv_heads, 1, kMaxDimension));
  KVTIER_RETURN_IF_ERROR(CheckRange(field + ".head_dim", attention.head_dim, 1, kMaxDimension));
  KVTIER_RETURN_IF_ERROR(
      CheckRange(field + ".value_head_dim", attention.value_head_dim, 0, kMaxDimension));
  if (attention.kv_heads % ranks == 0 || ranks % attention.kv_heads == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, ".kv_heads is ", attention.kv_heads,
                                                 ", tensor_parallel is ", ranks,
                                                 ": one must divide the other"));
}

absl::Status CheckLatent(const std::string& field, const LatentAttention& attention) {
  KVTIER_RETURN_IF_ERROR(
      CheckRange(field + ".kv_lora_rank", attention.kv_lora_rank, 1, kMaxDimension));
  return CheckRange(field + ".rope_head_dim", attention.rope_head_dim, 0, kMaxDimension);
}

absl::Status CheckState(const std::string& field, const LayerGroup& group, uint32_t ranks) {
  const uint64_t bytes = std::get<StateLayers>(group.attention).state_bytes;
  KVTIER_RETURN_IF_ERROR(CheckRange(field + ".state_bytes", bytes, 1, kMaxStateBytes));
  KVTIER_RETURN_IF_ERROR(CheckRange(field + ".window_tokens", group.window_tokens, 0, 0));
  if (bytes % ranks == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, ".state_bytes is ", bytes,
                                                 ", not a multiple of tensor_parallel, ", ranks));
}

absl::Status CheckGroup(const std::string& field, const LayerGroup& group, uint32_t ranks) {
  KVTIER_RETURN_IF_ERROR(CheckRange(field + ".layers", group.layers, 1, kMaxLayers));
  if (const auto* grouped = std::get_if<GroupedAttention>(&group.attention)) {
    return CheckGrouped(field, *grouped, ranks);
  }
  if (const auto* latent = std::get_if<LatentAttention>(&group.attention)) {
    return CheckLatent(field, *latent);
  }
  return CheckState(field, group, ranks);
}

absl::Status CheckGroups(const ModelSpec& spec) {
  KVTIER_RETURN_IF_ERROR(CheckRange("layer_groups.size", spec.layer_groups.size(), 1, kMaxGroups));
  if (spec.dtype == DType::kUnspecified) {
    return absl::InvalidArgumentError("dtype is unspecified, layer_groups need it");
  }
  KVTIER_RETURN_IF_ERROR(CheckRange("explicit_groups", spec.explicit_groups, 1, 1));
  for (size_t i = 0; i < spec.layer_groups.size(); ++i) {
    KVTIER_RETURN_IF_ERROR(CheckGroup(absl::StrCat("layer_groups[", i, "]"), spec.layer_groups[i],
                                      spec.tensor_parallel));
  }
  return absl::OkStatus();
}

absl::Status CheckExplicit(const ModelSpec& spec) {
  KVTIER_RETURN_IF_ERROR(CheckRange("explicit_groups", spec.explicit_groups, 1, kMaxGroups));
  const uint64_t expected = uint64_t{spec.explicit_groups} * spec.tensor_parallel;
  if (spec.explicit_part_bytes.size() == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("explicit_part_bytes has ", spec.explicit_part_bytes.size(),
                   " elements, explicit_groups * tensor_parallel is ", expected));
}

absl::Status CheckShape(const ModelSpec& spec) {
  if (spec.explicit_part_bytes.empty()) {
    if (!spec.layer_groups.empty()) return CheckGroups(spec);
    return absl::InvalidArgumentError("layer_groups and explicit_part_bytes are both empty");
  }
  if (spec.layer_groups.empty()) return CheckExplicit(spec);
  return absl::InvalidArgumentError(absl::StrCat("explicit_part_bytes has ",
                                                 spec.explicit_part_bytes.size(),
                                                 " elements, with layer_groups it must be empty"));
}

uint64_t ValueDim(const GroupedAttention& attention) {
  return attention.value_head_dim == 0 ? attention.head_dim : attention.value_head_dim;
}

uint64_t RankPartBytes(const ModelSpec& spec, const LayerGroup& group) {
  if (const auto* state = std::get_if<StateLayers>(&group.attention)) {
    return group.layers * (state->state_bytes / spec.tensor_parallel);
  }
  return RankBytesPerToken(spec, group) * spec.block_tokens;
}

uint64_t Saturated(unsigned __int128 value) {
  constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();
  return value > kMost ? kMost : static_cast<uint64_t>(value);
}

// Each field goes in as its number, then its value: integers in 8 bytes, strings after their
// length, lists after their count.
class SpecEncoder {
 public:
  void Number(uint8_t field, uint64_t value) {
    out_.push_back(static_cast<char>(field));
    Fixed(value);
  }
  void Text(uint8_t field, std::string_view value) {
    Number(field, value.size());
    out_.append(value);
  }
  void Group(const LayerGroup& group) {
    Number(1, group.attention.index());
    if (const auto* grouped = std::get_if<GroupedAttention>(&group.attention)) {
      Number(2, grouped->kv_heads);
      Number(3, grouped->head_dim);
      Number(4, grouped->value_head_dim);
    } else if (const auto* latent = std::get_if<LatentAttention>(&group.attention)) {
      Number(5, latent->kv_lora_rank);
      Number(6, latent->rope_head_dim);
    } else {
      Number(7, std::get<StateLayers>(group.attention).state_bytes);
    }
    Number(8, group.layers);
    Number(9, group.window_tokens);
  }
  std::string Take() { return std::move(out_); }

 private:
  void Fixed(uint64_t value) {
    for (int shift = 0; shift < 64; shift += 8) out_.push_back(static_cast<char>(value >> shift));
  }

  std::string out_ = std::string(kSpecTag);
};

}  // namespace

uint32_t DTypeBytes(DType dtype) {
  switch (dtype) {
    case DType::kFp32:
      return 4;
    case DType::kBf16:
    case DType::kFp16:
      return 2;
    case DType::kFp8:
    case DType::kInt8:
      return 1;
    case DType::kUnspecified:
      break;
  }
  return 0;
}

std::string_view DTypeName(DType dtype) {
  switch (dtype) {
    case DType::kFp32:
      return "fp32";
    case DType::kBf16:
      return "bf16";
    case DType::kFp16:
      return "fp16";
    case DType::kFp8:
      return "fp8";
    case DType::kInt8:
      return "int8";
    case DType::kUnspecified:
      break;
  }
  return "unspecified";
}

absl::StatusOr<DType> ParseDType(std::string_view name) {
  struct Alias {
    std::string_view name;
    DType dtype;
  };
  static constexpr Alias kAliases[] = {
      {"fp32", DType::kFp32},         {"float32", DType::kFp32},    {"float", DType::kFp32},
      {"bf16", DType::kBf16},         {"bfloat16", DType::kBf16},   {"fp16", DType::kFp16},
      {"float16", DType::kFp16},      {"half", DType::kFp16},       {"fp8", DType::kFp8},
      {"float8", DType::kFp8},        {"fp8_e4m3", DType::kFp8},    {"fp8_e5m2", DType::kFp8},
      {"float8_e4m3fn", DType::kFp8}, {"float8_e5m2", DType::kFp8}, {"int8", DType::kInt8},
  };
  std::string lower = absl::AsciiStrToLower(absl::string_view(name.data(), name.size()));
  if (lower.rfind("torch.", 0) == 0) lower.erase(0, 6);
  for (const Alias& alias : kAliases) {
    if (alias.name == lower) return alias.dtype;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "dtype is '", std::string(name), "', one of fp32, bf16, fp16, fp8, int8 is needed"));
}

absl::Status ValidateSpec(const ModelSpec& spec, const SpecLimits& limits) {
  KVTIER_RETURN_IF_ERROR(CheckBytes("name", spec.name.size(), 1, kMaxNameBytes));
  KVTIER_RETURN_IF_ERROR(CheckBytes("revision", spec.revision.size(), 0, kMaxNameBytes));
  KVTIER_RETURN_IF_ERROR(
      CheckBytes("layout_fingerprint", spec.layout_fingerprint.size(), 0, kMaxFingerprintBytes));
  KVTIER_RETURN_IF_ERROR(CheckRange("block_tokens", spec.block_tokens, 1, kMaxBlockTokens));
  KVTIER_RETURN_IF_ERROR(CheckRange("tensor_parallel", spec.tensor_parallel, 1, kMaxRanks));
  KVTIER_RETURN_IF_ERROR(CheckRange("dtype", static_cast<uint64_t>(spec.dtype), 0,
                                    static_cast<uint64_t>(DType::kInt8)));
  KVTIER_RETURN_IF_ERROR(CheckRange("pack_order", static_cast<uint64_t>(spec.pack_order), 0,
                                    static_cast<uint64_t>(PackOrder::kOpaque)));
  KVTIER_RETURN_IF_ERROR(CheckShape(spec));
  KVTIER_RETURN_IF_ERROR(
      CheckRange("parts (layer groups * tensor_parallel)", PartCount(spec), 1, kMaxParts));
  const std::vector<uint64_t> parts = PartBytes(spec);
  for (size_t i = 0; i < parts.size(); ++i) {
    KVTIER_RETURN_IF_ERROR(
        CheckRange(absl::StrCat("part_bytes[", i, "]"), parts[i], 1, limits.part_bytes));
  }
  return absl::OkStatus();
}

std::string CanonicalSpec(const ModelSpec& spec) {
  SpecEncoder encoder;
  encoder.Text(1, spec.name);
  encoder.Text(2, spec.revision);
  encoder.Number(3, spec.block_tokens);
  encoder.Number(4, static_cast<uint64_t>(spec.dtype));
  encoder.Number(5, spec.layer_groups.size());
  for (const LayerGroup& group : spec.layer_groups) encoder.Group(group);
  encoder.Number(6, spec.tensor_parallel);
  encoder.Number(7, static_cast<uint64_t>(spec.pack_order));
  encoder.Text(8, spec.layout_fingerprint);
  encoder.Number(9, spec.explicit_part_bytes.size());
  for (const uint64_t bytes : spec.explicit_part_bytes) encoder.Number(1, bytes);
  encoder.Number(10, spec.explicit_groups);
  return encoder.Take();
}

ModelId SpecId(const ModelSpec& spec) { return Digest128::Of(CanonicalSpec(spec)); }

uint32_t GroupCount(const ModelSpec& spec) {
  return spec.explicit_part_bytes.empty() ? static_cast<uint32_t>(spec.layer_groups.size())
                                          : spec.explicit_groups;
}

uint32_t PartCount(const ModelSpec& spec) { return GroupCount(spec) * spec.tensor_parallel; }

uint64_t RankBytesPerToken(const ModelSpec& spec, const LayerGroup& group) {
  const uint64_t layer_bytes = uint64_t{group.layers} * DTypeBytes(spec.dtype);
  if (const auto* grouped = std::get_if<GroupedAttention>(&group.attention)) {
    const uint64_t heads = std::max(grouped->kv_heads / spec.tensor_parallel, 1u);
    return layer_bytes * heads * (grouped->head_dim + ValueDim(*grouped));
  }
  if (const auto* latent = std::get_if<LatentAttention>(&group.attention)) {
    return layer_bytes * (uint64_t{latent->kv_lora_rank} + latent->rope_head_dim);
  }
  return 0;
}

uint64_t BytesPerToken(const ModelSpec& spec) {
  if (!spec.explicit_part_bytes.empty()) return BlockBytes(spec) / spec.block_tokens;
  uint64_t total = 0;
  for (const LayerGroup& group : spec.layer_groups) {
    total += RankBytesPerToken(spec, group) * spec.tensor_parallel;
  }
  return total;
}

uint64_t BytesPerSequence(const ModelSpec& spec, uint64_t tokens) {
  using Wide = unsigned __int128;
  if (!spec.explicit_part_bytes.empty()) {
    return Saturated(Wide{BlockBytes(spec)} * tokens / spec.block_tokens);
  }
  Wide total = 0;
  for (const LayerGroup& group : spec.layer_groups) {
    if (const auto* state = std::get_if<StateLayers>(&group.attention)) {
      total += Wide{group.layers} * state->state_bytes;
      continue;
    }
    const uint64_t held =
        group.window_tokens == 0 ? tokens : std::min<uint64_t>(tokens, group.window_tokens);
    total += Wide{RankBytesPerToken(spec, group)} * spec.tensor_parallel * held;
  }
  return Saturated(total);
}

std::vector<uint64_t> PartBytes(const ModelSpec& spec) {
  if (!spec.explicit_part_bytes.empty()) return spec.explicit_part_bytes;
  std::vector<uint64_t> parts;
  parts.reserve(PartCount(spec));
  for (const LayerGroup& group : spec.layer_groups) {
    parts.insert(parts.end(), spec.tensor_parallel, RankPartBytes(spec, group));
  }
  return parts;
}

uint64_t BlockBytes(const ModelSpec& spec) {
  uint64_t total = 0;
  for (const uint64_t bytes : PartBytes(spec)) total += bytes;
  return total;
}

}  // namespace kvtier
