// Replies of the operators' API as documents and tables.
#pragma once

#include <string>

#include "cli/json_output.h"
#include "kvtier/v1/admin.pb.h"

namespace kvtier::cli {

// "gpu", "ram", "ssd"; and back. Errors of ParseTier: INVALID_ARGUMENT.
std::string TierName(v1::Tier tier);
absl::StatusOr<v1::Tier> ParseTier(const std::string& name);

// A model id as operators write it: 32 hex digits; as the API has it: 16 bytes. Errors:
// INVALID_ARGUMENT.
absl::StatusOr<std::string> ParseModelId(const std::string& hex);

Json StatusJson(const v1::GetStatusResponse& status);
std::string StatusText(const v1::GetStatusResponse& status);

Json RecordingJson(const v1::RecordingStatus& recording);
std::string RecordingText(const v1::RecordingStatus& recording);

Json ModelsJson(const v1::ListModelsResponse& models);
std::string ModelsText(const v1::ListModelsResponse& models);

}  // namespace kvtier::cli
