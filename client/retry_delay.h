// Carries the daemon's `retry-delay-ms` in a status; kvtier::RetryDelay reads it.
#pragma once

#include <string_view>

#include "common/status.h"

namespace kvtier::client_internal {

// `milliseconds` as the trailing metadata has it. What is no number is left out.
void SetRetryDelay(absl::Status* status, std::string_view milliseconds);

}  // namespace kvtier::client_internal
