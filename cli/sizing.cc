#include "cli/sizing.h"

#include <cmath>
#include <limits>

#include "common/bytes.h"

namespace kvtier::cli {
namespace {

constexpr uint64_t kMostTokens = uint64_t{1}
                                 << 31;  // keeps the sums of token passes within 64 bits
constexpr uint64_t kServedPartBytes = SpecLimits{}.part_bytes;

absl::Status CheckRange(const char* name, uint64_t value, uint64_t least, uint64_t most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " is ", value, ", the limits are ", least, " and ", most));
}

uint64_t Multiply(uint64_t a, uint64_t b) {
  uint64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<uint64_t>::max() : product;
}

uint64_t Add(uint64_t a, uint64_t b) {
  uint64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? std::numeric_limits<uint64_t>::max() : sum;
}

absl::Status CheckQuestion(const SizingQuestion& question) {
  // A planner may ask for blocks larger than kvtierd serves; SizingText warns instead.
  SpecLimits limits;
  limits.part_bytes = std::numeric_limits<uint64_t>::max();
  KVTIER_RETURN_IF_ERROR(ValidateSpec(question.model, limits));
  KVTIER_RETURN_IF_ERROR(CheckRange("context", question.context_tokens, 1, kMostTokens));
  KVTIER_RETURN_IF_ERROR(CheckRange("new-tokens", question.new_tokens, 0, kMostTokens));
  if (question.batch && *question.batch == 0) {
    return absl::InvalidArgumentError("batch is 0, the least is 1");
  }
  if (question.gpu_memory_bytes && !question.weights_bytes) {
    return absl::InvalidArgumentError("gpu-memory needs weights: the KV budget is what they leave");
  }
  if (!(question.usable_fraction > 0 && question.usable_fraction <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("usable is ", question.usable_fraction, ", above 0 and at most 1 is needed"));
  }
  if (question.bandwidth_bytes && *question.bandwidth_bytes == 0) {
    return absl::InvalidArgumentError("bandwidth is 0, the least is 1 byte per second");
  }
  return absl::OkStatus();
}

absl::Status AnswerBudget(const SizingQuestion& question, SizingAnswer* answer) {
  if (!question.gpu_memory_bytes) return absl::OkStatus();
  const uint64_t usable = static_cast<uint64_t>(std::llround(
      static_cast<long double>(*question.gpu_memory_bytes) * question.usable_fraction));
  if (*question.weights_bytes > usable) {
    return absl::InvalidArgumentError(absl::StrCat("weights are ", *question.weights_bytes,
                                                   " bytes, the usable GPU memory is ", usable));
  }
  answer->usable_bytes = usable;
  answer->kv_budget_bytes = usable - *question.weights_bytes;
  answer->batch_limit = *answer->kv_budget_bytes / answer->bytes_per_sequence;
  return absl::OkStatus();
}

void AnswerDecode(const SizingQuestion& question, SizingAnswer* answer) {
  answer->batch = question.batch.value_or(answer->batch_limit.value_or(1));
  answer->decode_step_kv_bytes = Multiply(answer->batch, answer->bytes_per_sequence);
  const uint64_t weights = question.weights_bytes.value_or(0);
  answer->decode_step_bytes = Add(weights, answer->decode_step_kv_bytes);
  if (!question.bandwidth_bytes) return;
  const double bandwidth = static_cast<double>(*question.bandwidth_bytes);
  answer->decode_weights_seconds = static_cast<double>(weights) / bandwidth;
  answer->decode_kv_seconds = static_cast<double>(answer->decode_step_kv_bytes) / bandwidth;
}

void AnswerRanks(const SizingQuestion& question, SizingAnswer* answer) {
  ModelSpec unsplit = question.model;
  unsplit.tensor_parallel = 1;
  answer->unsplit_bytes_per_token = BytesPerToken(unsplit);
  answer->rank_bytes_per_token = answer->bytes_per_token / question.model.tensor_parallel;
  if (answer->unsplit_bytes_per_token == 0) return;  // state layers only
  answer->replication = static_cast<double>(answer->bytes_per_token) /
                        static_cast<double>(answer->unsplit_bytes_per_token);
}

Json OrNull(const std::optional<uint64_t>& value) { return value ? Json(*value) : Json(nullptr); }
Json OrNull(const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); }

std::string Bytes(uint64_t bytes) {
  return absl::StrCat(WithCommas(bytes), " (", FormatBytes(bytes), ")");
}

Json GroupJson(const LayerGroup& group) {
  Json json = {{"layers", group.layers}, {"window_tokens", group.window_tokens}};
  if (const auto* grouped = std::get_if<GroupedAttention>(&group.attention)) {
    json["kv_heads"] = grouped->kv_heads;
    json["head_dim"] = grouped->head_dim;
    json["value_head_dim"] =
        grouped->value_head_dim == 0 ? grouped->head_dim : grouped->value_head_dim;
  } else if (const auto* latent = std::get_if<LatentAttention>(&group.attention)) {
    json["kv_lora_rank"] = latent->kv_lora_rank;
    json["rope_head_dim"] = latent->rope_head_dim;
  } else {
    json["state_bytes"] = std::get<StateLayers>(group.attention).state_bytes;
  }
  return json;
}

std::string GroupText(const LayerGroup& group) {
  std::string text = absl::StrCat(group.layers, " layers, ");
  if (const auto* grouped = std::get_if<GroupedAttention>(&group.attention)) {
    absl::StrAppend(&text, grouped->kv_heads, " KV heads of ", grouped->head_dim);
    if (grouped->value_head_dim != 0 && grouped->value_head_dim != grouped->head_dim) {
      absl::StrAppend(&text, " (values ", grouped->value_head_dim, ")");
    }
  } else if (const auto* latent = std::get_if<LatentAttention>(&group.attention)) {
    absl::StrAppend(&text, "latents of ", latent->kv_lora_rank, " + ", latent->rope_head_dim);
  } else {
    const uint64_t bytes = std::get<StateLayers>(group.attention).state_bytes;
    absl::StrAppend(&text, "state of ", bytes, " bytes");
  }
  if (group.window_tokens != 0) absl::StrAppend(&text, ", window ", group.window_tokens);
  return text;
}

uint64_t LargestPart(const SizingAnswer& answer) {
  uint64_t largest = 0;
  for (const uint64_t bytes : answer.part_bytes) largest = std::max(largest, bytes);
  return largest;
}

std::string PartWarning(const SizingAnswer& answer) {
  if (LargestPart(answer) <= kServedPartBytes) return "";
  return absl::StrCat("\nNote: a part of ", FormatBytes(LargestPart(answer)), " is above the ",
                      FormatBytes(kServedPartBytes),
                      " that kvtierd takes: choose fewer --block-tokens or more --tp.\n");
}

void AddBudgetRows(const SizingAnswer& answer, Table* table) {
  if (!answer.batch_limit) return;
  table->Row({"usable GPU memory", Bytes(*answer.usable_bytes)});
  table->Row({"KV budget", Bytes(*answer.kv_budget_bytes)});
  table->Row({"batch limit", WithCommas(*answer.batch_limit) + " sequences"});
}

void AddDecodeRows(const SizingAnswer& answer, Table* table) {
  table->Row({absl::StrCat("read per decode step, batch ", answer.batch),
              Bytes(answer.decode_step_bytes)});
  table->Row({"  of which KV", Bytes(answer.decode_step_kv_bytes)});
  if (!answer.decode_kv_seconds) return;
  const double weights = *answer.decode_weights_seconds;
  table->Row({"decode step takes at least", Milliseconds(weights + *answer.decode_kv_seconds)});
  table->Row({"  weights", Milliseconds(weights)});
  table->Row({"  KV", Milliseconds(*answer.decode_kv_seconds)});
}

}  // namespace

absl::StatusOr<SizingAnswer> Size(const SizingQuestion& question) {
  KVTIER_RETURN_IF_ERROR(CheckQuestion(question));
  SizingAnswer answer;
  answer.bytes_per_token = BytesPerToken(question.model);
  answer.bytes_per_sequence = BytesPerSequence(question.model, question.context_tokens);
  answer.bytes_per_block = BlockBytes(question.model);
  const std::vector<uint64_t> parts = PartBytes(question.model);
  for (size_t i = 0; i < parts.size(); i += question.model.tensor_parallel) {
    answer.part_bytes.push_back(parts[i]);
  }
  AnswerRanks(question, &answer);
  KVTIER_RETURN_IF_ERROR(AnswerBudget(question, &answer));
  AnswerDecode(question, &answer);
  const uint64_t prompt = question.context_tokens;
  const uint64_t fresh = question.new_tokens;
  answer.passes_without_cache = (fresh + 1) * prompt + fresh * (fresh + 1) / 2;
  answer.passes_with_cache = prompt + fresh;
  return answer;
}

Json SizingJson(const SizingQuestion& question, const SizingAnswer& answer) {
  const ModelSpec& model = question.model;
  Json groups = Json::array();
  for (const LayerGroup& group : model.layer_groups) groups.push_back(GroupJson(group));
  std::optional<double> step_seconds;
  if (answer.decode_kv_seconds) {
    step_seconds = *answer.decode_weights_seconds + *answer.decode_kv_seconds;
  }
  return {{"model", model.name},
          {"dtype", std::string(DTypeName(model.dtype))},
          {"layer_groups", groups},
          {"block_tokens", model.block_tokens},
          {"tensor_parallel", model.tensor_parallel},
          {"context_tokens", question.context_tokens},
          {"bytes_per_token", answer.bytes_per_token},
          {"bytes_per_sequence", answer.bytes_per_sequence},
          {"bytes_per_block", answer.bytes_per_block},
          {"part_bytes", answer.part_bytes},
          {"part_bytes_limit", kServedPartBytes},
          {"bytes_per_token_rank", answer.rank_bytes_per_token},
          {"bytes_per_token_unsplit", answer.unsplit_bytes_per_token},
          {"replication", answer.replication},
          {"gpu_memory_bytes", OrNull(question.gpu_memory_bytes)},
          {"usable_bytes", OrNull(answer.usable_bytes)},
          {"weights_bytes", OrNull(question.weights_bytes)},
          {"kv_budget_bytes", OrNull(answer.kv_budget_bytes)},
          {"batch_limit", OrNull(answer.batch_limit)},
          {"batch", answer.batch},
          {"bytes_per_decode_step", answer.decode_step_bytes},
          {"kv_bytes_per_decode_step", answer.decode_step_kv_bytes},
          {"bandwidth_bytes_per_second", OrNull(question.bandwidth_bytes)},
          {"decode_step_seconds", OrNull(step_seconds)},
          {"decode_step_weights_seconds", OrNull(answer.decode_weights_seconds)},
          {"decode_step_kv_seconds", OrNull(answer.decode_kv_seconds)},
          {"new_tokens", question.new_tokens},
          {"token_passes_without_cache", answer.passes_without_cache},
          {"token_passes_with_cache", answer.passes_with_cache}};
}

std::string SizingText(const SizingQuestion& question, const SizingAnswer& answer) {
  const ModelSpec& model = question.model;
  Table table;
  table.Row({"model", model.name});
  for (const LayerGroup& group : model.layer_groups) table.Row({"", GroupText(group)});
  table.Row({"dtype", std::string(DTypeName(model.dtype))});
  table.Row({"bytes per token", Bytes(answer.bytes_per_token)});
  table.Row({absl::StrCat("bytes per sequence of ", WithCommas(question.context_tokens)),
             Bytes(answer.bytes_per_sequence)});
  table.Row(
      {absl::StrCat("bytes per block of ", model.block_tokens), Bytes(answer.bytes_per_block)});
  table.Row({absl::StrCat("per rank and token, tp ", model.tensor_parallel),
             Bytes(answer.rank_bytes_per_token)});
  table.Row({"  total against tp 1", Fixed(answer.replication, 2) + "x"});
  AddBudgetRows(answer, &table);
  AddDecodeRows(answer, &table);
  table.Row(
      {absl::StrCat("token passes for ", WithCommas(question.new_tokens), " new tokens, no cache"),
       WithCommas(answer.passes_without_cache)});
  table.Row({"  with the cache", WithCommas(answer.passes_with_cache)});
  return table.ToString() + PartWarning(answer);
}

}  // namespace kvtier::cli
