#pragma once

#include <string>

#include "common/status.h"

namespace kvtier::cli {

// A whole file's bytes as they are. NOT_FOUND with the system's words when it cannot be read.
absl::StatusOr<std::string> ReadFile(const std::string& path);

}  // namespace kvtier::cli
