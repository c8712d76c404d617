// Replays a trace through simulated caches, all policies and capacities in one pass: no server, no
// payload, file order.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/json_output.h"
#include "cli/simulate/options.h"
#include "common/clock.h"
#include "common/status.h"

namespace kvtier::cli {

// What two tiers did with one convention's blocks.
struct TierRatios {
  double ram = 0;  // hit ratios; together the hit ratio
  double ssd = 0;
  double writes_per_block = 0;  // blocks written to SSD per block of the trace
};

// Hit ratio: blocks of the longest prefixes that were there over all blocks, from a cold start.
// Empty for a convention that was not asked for.
struct SimulationRow {
  std::string policy;
  uint64_t capacity_blocks = 0;
  std::optional<double> hit_ratio_all;
  std::optional<double> hit_ratio_full;
  // With two tiers; capacity_blocks is RAM's.
  std::optional<TierMode> tiers;
  uint64_t ssd_capacity_blocks = 0;
  std::optional<TierRatios> tiers_all;
  std::optional<TierRatios> tiers_full;
  double seconds = 0;  // of the policy, all conventions together
};

struct SimulationReport {
  uint64_t requests = 0;
  uint64_t skipped_lines = 0;
  uint64_t blocks_all = 0;  // references
  uint64_t blocks_full = 0;
  uint64_t distinct_blocks = 0;         // in convention all
  double parse_seconds = 0;             // the last time the trace was read
  double number_seconds = 0;            // finding each block in the index, once for all rows
  std::optional<double> plain_seconds;  // a hash map's find for each reference of convention all
  double curve_seconds = 0;
  std::vector<SimulationRow> rows;
  std::vector<SimulationRow> curve;  // of lru; sizes on a logarithmic scale, the last has all
};

// Errors: INVALID_ARGUMENT (options; a line that is no request; a trace without a block; one that
// is no regular file and would have to be read twice, for MIN or a share of the distinct blocks),
// NOT_FOUND, DATA_LOSS (trace). `progress` takes lines for people: that the trace is read twice,
// what memory MIN will need, and every 2 s of `clock` how far the pass is.
// Memory grows with the distinct blocks, not with the trace; but MIN keeps all references.
absl::StatusOr<SimulationReport> Simulate(const SimulateOptions& options,
                                          const std::function<void(std::string_view)>& progress,
                                          const Clock& clock = SteadyClock());

Json SimulationJson(const SimulateOptions& options, const SimulationReport& report);
std::string SimulationText(const SimulateOptions& options, const SimulationReport& report);

}  // namespace kvtier::cli
