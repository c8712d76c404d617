// What a running daemon's figures say about its tier sizes: pure functions, from the figures to
// numbers and words. `kvtier advise` gathers the figures.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/json_output.h"

namespace kvtier::cli {

struct AdviceInput {
  struct Point {
    uint64_t capacity_bytes = 0;
    double hit_ratio = 0;
  };
  struct Tier {
    bool on = false;
    uint64_t capacity_bytes = 0;
    // Of fetches lately, as clients see it; 0: not measured yet.
    double bytes_per_second = 0;
    double first_byte_seconds = 0;
    // Estimated hit ratio at other capacities, ascending. RAM: of hits in RAM. SSD: of hits in RAM
    // and on SSD together, with RAM as it is.
    std::vector<Point> curve;
  };
  Tier ram, ssd;
  // Of the requests that the curves rest on.
  uint64_t requests = 0;
  uint64_t blocks = 0;
  uint64_t hit_blocks = 0;
  uint64_t sampled_references = 0;
  double requests_per_hour = 0;
  // Means over the blocks held; 0: no model.
  double block_tokens = 0;
  double block_bytes = 0;
  double prefill_tokens_per_second = 0;  // of the engine; 0: not known
};

// One choice of sizes.
struct AdviceRow {
  std::string what;  // "now", "RAM x2", "SSD /2"
  uint64_t ram_bytes = 0;
  uint64_t ssd_bytes = 0;
  double ram_hit_ratio = 0;
  double hit_ratio = 0;  // both tiers
  // Per 1,000 requests: time to compute what is found - time to fetch it. A tier that is slower
  // than recomputing saves nothing. Empty while the rate, a speed or the block size is not known.
  std::optional<double> saved_seconds;
};

// What fetching from a tier costs, beside recomputing.
struct TierCost {
  std::string tier;  // "RAM", "SSD"
  double seconds_per_token = 0;
  double break_even_tokens_per_second = 0;  // an engine faster than that had better recompute
  std::optional<bool> slower_than_recomputing;
};

// Where more, or less, of a tier makes no difference of half a point.
struct FlatRange {
  std::string tier;
  // The least capacity that finds within half a point of what the largest does; empty when the
  // curve still rises at its end.
  std::optional<uint64_t> enough_bytes;
  // The least capacity within half a point of now's; the capacity now when less loses more.
  uint64_t spare_down_to_bytes = 0;
};

struct Advice {
  AdviceInput input;
  double measured_hit_ratio = 0;
  double estimated_hit_ratio = 0;  // at the sizes now
  std::vector<AdviceRow> rows;     // first: now
  std::vector<TierCost> costs;     // of the tiers that are measured
  std::vector<FlatRange> flat;
  std::vector<std::string> warnings;
  std::vector<std::string> sentences;  // what to do, most important first
};

inline constexpr double kFlat = 0.005;               // half a point of hit ratio
inline constexpr uint64_t kEnoughReferences = 1000;  // with fewer the curve is a guess

// Linear between the points, over the logarithm of the capacity; the nearest end's value outside.
double HitRatioAt(const std::vector<AdviceInput::Point>& curve, uint64_t capacity_bytes);

Advice Advise(const AdviceInput& input);
Json AdviceJson(const Advice& advice);
std::string AdviceText(const Advice& advice);

}  // namespace kvtier::cli
