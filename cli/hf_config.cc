#include "cli/hf_config.h"

#include <initializer_list>
#include <iterator>

#include "cli/json_output.h"
#include "cli/read_file.h"

namespace kvtier::cli {
namespace {

constexpr uint64_t kMostFieldValue = 1u
                                     << 24;  // far above any dimension; keeps arithmetic in range

// Null and absent mean the same in these files.
bool Has(const Json& config, const char* field) {
  const auto found = config.find(field);
  return found != config.end() && !found->is_null();
}

absl::StatusOr<uint32_t> Number(const Json& config, const char* field) {
  const Json& value = config.at(field);
  if (value.is_number_unsigned() && value.get<uint64_t>() <= kMostFieldValue) {
    return static_cast<uint32_t>(value.get<uint64_t>());
  }
  return absl::InvalidArgumentError(absl::StrCat(
      field, " is ", value.dump(), ", a whole number from 0 to ", kMostFieldValue, " is needed"));
}

// The first of the fields that is there.
absl::StatusOr<uint32_t> Required(const Json& config, std::initializer_list<const char*> fields) {
  std::string names;
  for (const char* field : fields) {
    if (Has(config, field)) return Number(config, field);
    absl::StrAppend(&names, names.empty() ? "" : " or ", field);
  }
  return absl::InvalidArgumentError(absl::StrCat("field ", names, " is missing"));
}

absl::StatusOr<uint32_t> Optional(const Json& config, const char* field, uint32_t otherwise) {
  return Has(config, field) ? Number(config, field) : absl::StatusOr<uint32_t>(otherwise);
}

std::string Text(const Json& config, const char* field) {
  return Has(config, field) && config.at(field).is_string() ? config.at(field).get<std::string>()
                                                            : "";
}

bool Flag(const Json& config, const char* field) {
  return Has(config, field) && config.at(field).is_boolean() && config.at(field).get<bool>();
}

// `config` is `root` or a part of it.
absl::StatusOr<DType> ConfigDType(const Json& config, const Json& root) {
  for (const Json* level : {&config, &root}) {
    for (const char* field : {"torch_dtype", "dtype"}) {
      if (!Text(*level, field).empty()) return ParseDType(Text(*level, field));
    }
  }
  return absl::InvalidArgumentError("field torch_dtype is missing: give --dtype");
}

absl::StatusOr<uint32_t> KvHeads(const Json& config, uint32_t heads) {
  if (Text(config, "model_type") == "falcon" && !Flag(config, "new_decoder_architecture")) {
    return Flag(config, "multi_query") ? 1u : heads;
  }
  for (const char* field : {"num_key_value_heads", "num_kv_heads"}) {
    if (Has(config, field)) return Number(config, field);
  }
  return heads;  // multi-head attention: older files do not name the KV heads
}

absl::StatusOr<uint32_t> HeadDim(const Json& config, uint32_t heads) {
  if (Has(config, "head_dim")) return Number(config, "head_dim");
  KVTIER_ASSIGN_OR_RETURN(const uint32_t hidden, Required(config, {"hidden_size", "n_embd"}));
  if (heads != 0 && hidden % heads == 0) return hidden / heads;
  return absl::InvalidArgumentError(absl::StrCat("hidden size ", hidden, " is no multiple of ",
                                                 heads,
                                                 " attention heads and head_dim is missing"));
}

absl::StatusOr<std::variant<GroupedAttention, LatentAttention, StateLayers>> Attention(
    const Json& config) {
  if (Has(config, "kv_lora_rank")) {
    KVTIER_ASSIGN_OR_RETURN(const uint32_t rank, Number(config, "kv_lora_rank"));
    KVTIER_ASSIGN_OR_RETURN(const uint32_t rope, Required(config, {"qk_rope_head_dim"}));
    return LatentAttention{rank, rope};
  }
  KVTIER_ASSIGN_OR_RETURN(const uint32_t heads,
                          Required(config, {"num_attention_heads", "n_head"}));
  KVTIER_ASSIGN_OR_RETURN(const uint32_t kv_heads, KvHeads(config, heads));
  KVTIER_ASSIGN_OR_RETURN(const uint32_t head_dim, HeadDim(config, heads));
  return GroupedAttention{kv_heads, head_dim, 0};
}

// How many layers are windowed, from the list of each layer's kind.
absl::StatusOr<uint32_t> WindowLayersListed(const Json& config, uint32_t layers) {
  const Json& kinds = config.at("layer_types");
  if (!kinds.is_array() || kinds.size() != layers) {
    return absl::InvalidArgumentError(
        absl::StrCat("layer_types is no list of ", layers, " elements"));
  }
  uint32_t windowed = 0;
  for (size_t i = 0; i < kinds.size(); ++i) {
    if (kinds[i] == "sliding_attention") {
      ++windowed;
    } else if (kinds[i] != "full_attention") {
      return absl::InvalidArgumentError(absl::StrCat("layer_types[", i, "] is ", kinds[i].dump(),
                                                     ", only full_attention and sliding_attention "
                                                     "are understood"));
    }
  }
  return windowed;
}

// Older files leave it to the model's code; these are its rules.
absl::StatusOr<uint32_t> WindowLayersByModel(const Json& config, uint32_t layers) {
  const std::string type = Text(config, "model_type");
  if (type == "mistral" || type == "mixtral" || type == "phi3" || type == "starcoder2") {
    return layers;
  }
  if (type == "gemma2") return (layers + 1) / 2;  // layers 0, 2, 4, ...
  if (type == "gemma3_text" || type == "gemma3" || type == "cohere2") {
    KVTIER_ASSIGN_OR_RETURN(const uint32_t pattern,
                            Optional(config, "sliding_window_pattern", type == "cohere2" ? 4 : 6));
    if (pattern == 0) return absl::InvalidArgumentError("sliding_window_pattern is 0");
    return layers - layers / pattern;  // every pattern-th layer attends to everything
  }
  if (type.rfind("qwen2", 0) == 0 || type.rfind("qwen3", 0) == 0) {
    KVTIER_ASSIGN_OR_RETURN(const uint32_t first, Required(config, {"max_window_layers"}));
    return first < layers ? layers - first : 0;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "sliding_window is set, and which layers of model_type '", type,
      "' it covers is not known: give the shape by --layers, --window and --window-layers"));
}

absl::StatusOr<uint32_t> WindowLayers(const Json& config, uint32_t layers) {
  if (Has(config, "layer_types")) return WindowLayersListed(config, layers);
  if (!Has(config, "sliding_window")) return 0;
  if (Has(config, "use_sliding_window") && !Flag(config, "use_sliding_window")) return 0;
  return WindowLayersByModel(config, layers);
}

// Models that also see or hear keep the language model's fields one level down.
const Json& LanguageModel(const Json& config) {
  if (Has(config, "num_hidden_layers") || !Has(config, "text_config")) return config;
  return config.at("text_config").is_object() ? config.at("text_config") : config;
}

absl::StatusOr<std::vector<LayerGroup>> LayerGroups(const Json& config) {
  KVTIER_ASSIGN_OR_RETURN(const uint32_t layers,
                          Required(config, {"num_hidden_layers", "n_layer"}));
  KVTIER_ASSIGN_OR_RETURN(const auto attention, Attention(config));
  KVTIER_ASSIGN_OR_RETURN(const uint32_t windowed, WindowLayers(config, layers));
  std::vector<LayerGroup> groups;
  if (windowed < layers) groups.push_back({attention, layers - windowed, 0});
  if (windowed > 0) {
    KVTIER_ASSIGN_OR_RETURN(const uint32_t window, Required(config, {"sliding_window"}));
    groups.push_back({attention, windowed, window});
  }
  return groups;
}

}  // namespace

absl::StatusOr<ModelSpec> SpecFromHfConfig(std::string_view json, const std::string& name,
                                           std::optional<DType> dtype) {
  const Json root = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!root.is_object()) return absl::InvalidArgumentError(name + ": not a JSON object");
  const Json& config = LanguageModel(root);
  ModelSpec spec;
  spec.name = name;
  absl::StatusOr<std::vector<LayerGroup>> groups = LayerGroups(config);
  if (!groups.ok()) return Annotate(groups.status(), name);
  spec.layer_groups = *std::move(groups);
  const absl::StatusOr<DType> own = dtype ? *dtype : ConfigDType(config, root);
  if (!own.ok()) return Annotate(own.status(), name);
  spec.dtype = *own;
  return spec;
}

absl::StatusOr<ModelSpec> SpecFromHfConfigFile(const std::string& path,
                                               std::optional<DType> dtype) {
  KVTIER_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  return SpecFromHfConfig(text, path, dtype);
}

}  // namespace kvtier::cli
