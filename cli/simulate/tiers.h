// RAM over SSD, simulated: what `kvtier simulate --tiers` compares.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/simulate/simulated_cache.h"
#include "common/status.h"

namespace kvtier::cli {

// The first three are references of their own, block by block and with least recently used, leaf
// first, in both tiers: what could be had. kLog is what kvtierd runs, by its own code.
enum class TierMode {
  kExclusive,  // a block is in one tier: promotion takes it off the SSD, leaving RAM writes it
  kInclusive,  // all that is stored is written to SSD at once
  kLazy,       // written when RAM drops what the SSD lacks; promotion keeps the copy on SSD
  kLog,        // lazy; the SSD is a log of segments (docs/ARCHITECTURE.md, "The SSD")
};
inline constexpr TierMode kTierModes[] = {TierMode::kExclusive, TierMode::kInclusive,
                                          TierMode::kLazy, TierMode::kLog};
std::string_view TierModeName(TierMode mode);  // "exclusive", ...
// INVALID_ARGUMENT naming the text and what is allowed.
absl::StatusOr<TierMode> ParseTierMode(const std::string& text);

// In blocks.
struct TierSizes {
  uint64_t ram = 0;
  uint64_t ssd = 0;
  uint64_t segment = 0;  // of the log; 0: a 64th of the SSD, from 1 to 1024
};

struct TierCounts {
  uint64_t ram_hits = 0;
  uint64_t ssd_hits = 0;
  uint64_t ssd_writes = 0;  // blocks, what the log writes again included
};

// Not thread-safe. Request returns the hits of both tiers.
class SimulatedTiers : public SimulatedCache {
 public:
  virtual TierCounts counts() const = 0;
};

// REQUIRES: sizes.ram > 0 and sizes.ssd > 0.
std::unique_ptr<SimulatedTiers> MakeTiers(TierMode mode, const TierSizes& sizes);

}  // namespace kvtier::cli
