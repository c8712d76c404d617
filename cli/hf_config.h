// Reads the attention shape from a Hugging Face config.json.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "common/model_spec.h"
#include "common/status.h"

namespace kvtier::cli {

// Understands Llama and everything with its field names (Qwen2/3, Mistral, Mixtral, Phi-3),
// GPT-2's, Falcon's, sliding windows of Mistral, Qwen2, Gemma 2 and 3 and of any model with
// layer_types, and the latents of DeepSeek V2/V3. `dtype` overrides the file's. Layers that attend
// alike are added up. Errors: INVALID_ARGUMENT naming the missing or unusable field; nothing is
// guessed.
absl::StatusOr<ModelSpec> SpecFromHfConfig(std::string_view json, const std::string& name,
                                           std::optional<DType> dtype);

// The same from a file. Errors: NOT_FOUND too.
absl::StatusOr<ModelSpec> SpecFromHfConfigFile(const std::string& path, std::optional<DType> dtype);

}  // namespace kvtier::cli
