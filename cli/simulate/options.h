// What `kvtier simulate` is asked for.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/simulate/tiers.h"
#include "cli/trace.h"
#include "common/status.h"

namespace kvtier::cli {

// "1828": blocks; "5%": of the trace's distinct blocks, nearest; "64MiB": bytes.
struct CapacitySpec {
  enum class Unit { kBlocks, kPercent, kBytes };
  Unit unit = Unit::kBlocks;
  double value = 0;
};
// INVALID_ARGUMENT naming the text and what is allowed.
absl::StatusOr<CapacitySpec> ParseCapacity(const std::string& text);

// The two ways to count a trace's requests; they decide what is stored, too, so each is a
// simulation of its own. kAll: every id is a block. kFull: the id of a partial block is dropped.
enum class Convention { kAll, kFull };
inline constexpr Convention kConventions[] = {Convention::kAll, Convention::kFull};

struct SimulateOptions {
  std::string trace;
  TraceReaderOptions reader;
  std::vector<std::string> policies = {"lru"};
  std::vector<CapacitySpec> capacities;
  uint64_t block_bytes = 0;  // of payload; 0: unknown, capacities cannot be bytes
  // RAM over SSD: of each capacity over each SSD capacity, in each way. Empty: one tier.
  std::vector<TierMode> tiers;
  std::vector<CapacitySpec> ssd_capacities;
  uint64_t segment_blocks = 0;  // TierSizes::segment; up to 65,536
  std::vector<Convention> conventions = {Convention::kAll, Convention::kFull};
  bool curve = false;   // exact hit ratios of lru from one block to all
  bool timing = false;  // measure a plain walk of a hash map beside the policies
};

// Names that `policies` may have, each with a line for people.
struct PolicyName {
  std::string_view name;
  std::string_view meaning;
};
std::span<const PolicyName> PolicyNames();

// INVALID_ARGUMENT naming field, value and limit.
absl::Status CheckOptions(const SimulateOptions& options);

// In blocks. `distinct` blocks are in the trace; only percentages need it. INVALID_ARGUMENT when it
// is less than one block.
absl::StatusOr<uint64_t> CapacityBlocks(const CapacitySpec& capacity, uint64_t distinct,
                                        uint64_t block_bytes);

}  // namespace kvtier::cli
