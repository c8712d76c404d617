// What the host says about memory.
#pragma once

#include <cstdint>
#include <string>

#include "common/status.h"

namespace kvtier {

// Bytes that this process could still take: the least of the system's available memory and what the
// control groups above it leave. `root` is where proc and sys are mounted ("" outside tests).
absl::StatusOr<uint64_t> AvailableMemory(const std::string& root = "");

// Anonymous and shared memory of this process, pools included.
absl::StatusOr<uint64_t> ProcessMemory(const std::string& root = "");

// INVALID_ARGUMENT, naming both numbers, when `wanted` bytes for `field` are more than 90 % of what
// is available; `held` bytes are the field's already and count as available.
absl::Status CheckHostMemory(const std::string& field, uint64_t wanted, uint64_t held,
                             uint64_t available);

}  // namespace kvtier
