// The attention shapes of well-known models, as in their published configurations.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/model_spec.h"
#include "common/status.h"

namespace kvtier::cli {

// In the order in which `kvtier size --list` prints them.
std::vector<ModelSpec> Presets();

// Errors: NOT_FOUND, with the names there are.
absl::StatusOr<ModelSpec> FindPreset(std::string_view name);

}  // namespace kvtier::cli
