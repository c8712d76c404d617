// The calculator behind `kvtier size`: what a model's KV costs, how many sequences fit, what a
// decode step reads. Pure functions over common/model_spec.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cli/json_output.h"
#include "common/model_spec.h"
#include "common/status.h"

namespace kvtier::cli {

struct SizingQuestion {
  ModelSpec model;                           // shape, dtype, block_tokens, tensor_parallel
  uint64_t context_tokens = 0;               // of each sequence
  uint64_t new_tokens = 0;                   // generated after the prompt of context_tokens
  std::optional<uint64_t> batch;             // sequences; without it the batch limit, or 1
  std::optional<uint64_t> gpu_memory_bytes;  // of all GPUs together; needs weights_bytes
  double usable_fraction = 0.9;              // of gpu_memory_bytes
  std::optional<uint64_t> weights_bytes;     // of all GPUs together
  std::optional<uint64_t> bandwidth_bytes;   // per second, all GPUs together
};

struct SizingAnswer {
  uint64_t bytes_per_token = 0;      // all ranks, no window reached
  uint64_t bytes_per_sequence = 0;   // all ranks, context_tokens
  uint64_t bytes_per_block = 0;      // all parts
  std::vector<uint64_t> part_bytes;  // of rank 0, by layer group

  // Tensor parallelism.
  uint64_t rank_bytes_per_token = 0;
  uint64_t unsplit_bytes_per_token = 0;  // with one rank
  double replication = 1;                // bytes_per_token / unsplit_bytes_per_token

  // With gpu_memory_bytes.
  std::optional<uint64_t> usable_bytes;
  std::optional<uint64_t> kv_budget_bytes;
  std::optional<uint64_t> batch_limit;

  uint64_t batch = 1;
  uint64_t decode_step_bytes = 0;  // weights (when known) + the KV of all sequences
  uint64_t decode_step_kv_bytes = 0;
  // With bandwidth_bytes: seconds that a decode step takes at least.
  std::optional<double> decode_weights_seconds;
  std::optional<double> decode_kv_seconds;

  // Token passes through the model: for L prompt and N new tokens, the sum of t over L..L+N, and L
  // + N.
  uint64_t passes_without_cache = 0;
  uint64_t passes_with_cache = 0;
};

// Errors: INVALID_ARGUMENT (the model's shape, context_tokens 0 or above 2^31, memory without
// weights, weights above the usable memory).
absl::StatusOr<SizingAnswer> Size(const SizingQuestion& question);

Json SizingJson(const SizingQuestion& question, const SizingAnswer& answer);
std::string SizingText(const SizingQuestion& question, const SizingAnswer& answer);

}  // namespace kvtier::cli
