// kvtier size: what a model's KV costs.
#include <memory>

#include "cli/commands.h"
#include "cli/hf_config.h"
#include "cli/presets.h"
#include "cli/sizing.h"
#include "common/bytes.h"

namespace kvtier::cli {
namespace {

struct SizeOptions {
  bool list = false;
  std::string preset;
  std::string hf_config;
  uint32_t layers = 0;
  uint32_t kv_heads = 0;
  uint32_t head_dim = 0;
  uint32_t value_head_dim = 0;
  uint32_t kv_lora_rank = 0;
  uint32_t rope_head_dim = 0;
  uint32_t window = 0;
  std::optional<uint32_t> window_layers;
  std::string dtype;
  uint64_t context = 8192;
  uint64_t new_tokens = 256;
  std::optional<uint64_t> batch;
  uint32_t block_tokens = 16;
  uint32_t tensor_parallel = 1;
  std::optional<std::string> gpu_memory;
  double usable = 0.9;
  std::optional<std::string> weights;
  std::optional<std::string> bandwidth;
};

absl::StatusOr<std::optional<uint64_t>> OptionalBytes(const char* option,
                                                      std::optional<std::string> text) {
  if (!text) return std::optional<uint64_t>();
  if (text->size() > 2 && text->compare(text->size() - 2, 2, "/s") == 0) {
    text->resize(text->size() - 2);
  }
  absl::StatusOr<uint64_t> bytes = ParseBytes(*text);
  if (!bytes.ok()) return Annotate(bytes.status(), option);
  return std::optional<uint64_t>(*bytes);
}

absl::StatusOr<ModelSpec> SpecFromFlags(const SizeOptions& options) {
  ModelSpec spec;
  spec.name = "free shape";
  spec.dtype = DType::kBf16;
  LayerGroup group;
  group.layers = options.layers;
  if (options.kv_lora_rank > 0) {
    group.attention = LatentAttention{options.kv_lora_rank, options.rope_head_dim};
  } else {
    group.attention = GroupedAttention{options.kv_heads, options.head_dim, options.value_head_dim};
  }
  const uint32_t windowed =
      options.window == 0 ? 0 : options.window_layers.value_or(options.layers);
  if (windowed > options.layers) {
    return absl::InvalidArgumentError(
        absl::StrCat("window-layers is ", windowed, ", there are ", options.layers, " layers"));
  }
  if (windowed < options.layers || options.layers == 0) {
    group.layers = options.layers - windowed;
    spec.layer_groups.push_back(group);
  }
  if (windowed > 0) {
    group.layers = windowed;
    group.window_tokens = options.window;
    spec.layer_groups.push_back(group);
  }
  return spec;
}

// The flag asks: this model, but with so many KV heads.
absl::Status OverrideKvHeads(uint32_t kv_heads, ModelSpec* spec) {
  for (LayerGroup& group : spec->layer_groups) {
    auto* grouped = std::get_if<GroupedAttention>(&group.attention);
    if (grouped == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("kv-heads is ", kv_heads, ", ", spec->name, " has latents without heads"));
    }
    grouped->kv_heads = kv_heads;
  }
  return absl::OkStatus();
}

absl::StatusOr<ModelSpec> SpecOf(const SizeOptions& options) {
  std::optional<DType> dtype;
  if (!options.dtype.empty()) {
    KVTIER_ASSIGN_OR_RETURN(dtype, ParseDType(options.dtype));
  }
  const bool from_flags = options.preset.empty() && options.hf_config.empty();
  if (from_flags && options.layers == 0) {
    return absl::InvalidArgumentError(
        "which model? Give --preset, --hf-config, or a shape by --layers and what follows it");
  }
  absl::StatusOr<ModelSpec> spec = from_flags ? SpecFromFlags(options)
                                   : !options.preset.empty()
                                       ? FindPreset(options.preset)
                                       : SpecFromHfConfigFile(options.hf_config, dtype);
  if (!spec.ok()) return spec.status();
  if (!from_flags && options.kv_heads > 0) {
    KVTIER_RETURN_IF_ERROR(OverrideKvHeads(options.kv_heads, &*spec));
  }
  if (dtype) spec->dtype = *dtype;
  spec->block_tokens = options.block_tokens;
  spec->tensor_parallel = options.tensor_parallel;
  return spec;
}

absl::Status RunList(Output& output) {
  Json documents = Json::array();
  Table table;
  table.Row({"preset", "dtype", "bytes/token", ""});
  for (const ModelSpec& spec : Presets()) {
    const uint64_t bytes = BytesPerToken(spec);
    const std::string dtype(DTypeName(spec.dtype));
    documents.push_back({{"preset", spec.name}, {"dtype", dtype}, {"bytes_per_token", bytes}});
    table.Row({spec.name, dtype, WithCommas(bytes), FormatBytes(bytes)});
  }
  output.Print({{"presets", documents}}, table.ToString());
  return absl::OkStatus();
}

absl::Status RunSize(const SizeOptions& options, Output& output) {
  if (options.list) return RunList(output);
  SizingQuestion question;
  KVTIER_ASSIGN_OR_RETURN(question.model, SpecOf(options));
  question.context_tokens = options.context;
  question.new_tokens = options.new_tokens;
  question.batch = options.batch;
  question.usable_fraction = options.usable;
  KVTIER_ASSIGN_OR_RETURN(question.gpu_memory_bytes,
                          OptionalBytes("gpu-memory", options.gpu_memory));
  KVTIER_ASSIGN_OR_RETURN(question.weights_bytes, OptionalBytes("weights", options.weights));
  KVTIER_ASSIGN_OR_RETURN(question.bandwidth_bytes, OptionalBytes("bandwidth", options.bandwidth));
  KVTIER_ASSIGN_OR_RETURN(const SizingAnswer answer, Size(question));
  output.Print(SizingJson(question, answer), SizingText(question, answer));
  return absl::OkStatus();
}

void AddShapeOptions(CLI::App* command, SizeOptions* options) {
  auto* preset = command->add_option("--preset", options->preset, "A model by name; see --list");
  auto* file = command->add_option("--hf-config", options->hf_config,
                                   "A Hugging Face config.json of the model");
  auto* layers = command->add_option("--layers", options->layers,
                                     "Free shape: layers, with --kv-heads and --head-dim, or with "
                                     "--kv-lora-rank and --rope-head-dim");
  preset->excludes(file)->excludes(layers);
  file->excludes(layers);
  auto* heads = command->add_option("--kv-heads", options->kv_heads,
                                    "KV heads (not query heads); overrides the preset's");
  auto* dim = command->add_option("--head-dim", options->head_dim, "Elements of one key");
  auto* value = command->add_option("--value-head-dim", options->value_head_dim,
                                    "Elements of one value (default: as --head-dim)");
  auto* rank = command->add_option("--kv-lora-rank", options->kv_lora_rank, "Latent attention");
  auto* rope = command->add_option("--rope-head-dim", options->rope_head_dim, "Latent attention");
  auto* window = command->add_option("--window", options->window, "Sliding window, tokens");
  auto* window_layers = command->add_option("--window-layers", options->window_layers,
                                            "Layers with the window (default: all)");
  for (auto* option : {dim, value, rank, rope, window}) option->needs(layers);
  rank->excludes(heads)->excludes(dim);
  rope->needs(rank);
  window_layers->needs(window);
}

void AddUseOptions(CLI::App* command, SizeOptions* options) {
  command->add_option("--dtype", options->dtype,
                      "fp32, bf16, fp16, fp8 or int8 (default: the model's; bf16 for free shapes)");
  command->add_option("--context", options->context, "Tokens of each sequence")
      ->capture_default_str();
  command
      ->add_option("--new-tokens", options->new_tokens,
                   "Tokens generated after it, for the work with and without a cache")
      ->capture_default_str();
  command->add_option("--batch", options->batch,
                      "Sequences in a decode step (default: the batch limit, or 1)");
  command->add_option("--block-tokens", options->block_tokens, "Tokens per block")
      ->capture_default_str();
  command->add_option("--tp", options->tensor_parallel, "Tensor-parallel ranks")
      ->capture_default_str();
  command->add_option("--gpu-memory", options->gpu_memory,
                      "Memory of all GPUs together, for instance 640GB; needs --weights");
  command->add_option("--usable", options->usable, "Usable share of it")->capture_default_str();
  command->add_option("--weights,--weights-bytes", options->weights,
                      "Weights on all GPUs together, for instance 140GB");
  command->add_option("--bandwidth", options->bandwidth,
                      "Memory bandwidth of all GPUs together, for instance 26.8TB/s");
}

}  // namespace

void AddSizeCommand(CLI::App& parent, Invocation* invocation) {
  CLI::App* command = AddCommand(
      parent, "size", "Bytes of KV per token, sequence and block; how many sequences fit",
      "kvtier size --preset llama-3-70b --context 8192 --gpu-memory 640GB --weights 140GB "
      "--bandwidth 26.8TB/s\n  kvtier size --layers 32 --kv-heads 8 --head-dim 128 --dtype fp8",
      invocation);
  auto options = std::make_shared<SizeOptions>();
  command->add_flag("--list", options->list, "Print the presets");
  AddShapeOptions(command, options.get());
  AddUseOptions(command, options.get());
  command->callback([options, invocation] {
    invocation->run = [options](Output& output) { return RunSize(*options, output); };
  });
}

}  // namespace kvtier::cli
