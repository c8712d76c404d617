// What kvtierd keeps of a trace in RAM and on SSD: its own TierManager, over tiers without payload.
#pragma once

#include "cli/simulate/tiers.h"
#include "common/clock.h"
#include "common/executor.h"
#include "common/prompt.h"
#include "storage/tier_manager.h"

namespace kvtier::cli {

// One engine, one request at a time, as `kvtier replay --clients 1` does it: Lookup with a lease,
// Fetch what is there, Store the rest, Release. The daemon's threads run between requests, and
// where a request waits for them; so the same trace gives the same figures. Time stands still.
//
// Blocks of kPartBytes stand for blocks of any size: enough that what a record takes besides its
// payload does not count.
class LogTiers final : public SimulatedTiers {
 public:
  static constexpr uint64_t kPartBytes = 64 << 10;

  explicit LogTiers(const TierSizes& sizes);

  void Grow(EntryId /*end*/) override {}
  uint32_t Request(std::span<const EntryId> path) override;
  TierCounts counts() const override;

  TierManager& manager() { return manager_; }  // for tests

 private:
  PromptRef Prompt(std::span<const EntryId> path) const;
  void Fetch(const LookupResult& found);
  void Store(std::span<const EntryId> path, uint32_t first);

  const std::string root_;
  const BlockKey root_key_;
  const std::unique_ptr<DeviceMemory> memory_;
  ManualClock clock_;
  ManualExecutor general_, reader_, writer_;
  TierManager manager_;
  TierCounts counts_;  // writes: the manager's
};

}  // namespace kvtier::cli
