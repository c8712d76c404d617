// The suites over SsdTier, on a real filesystem.
#include "storage/ssd_tier.h"
#include "tests/contract/tier_contract.h"
#include "tests/support/temp_folder.h"

namespace kvtier {
namespace {

struct Machine {
  TempFolder folder;
  SteadyClock clock;
};

absl::StatusOr<TierUnderTest> Make(uint64_t capacity) {
  auto machine = std::make_shared<Machine>();
  const auto open = [machine = machine.get(),
                     capacity]() -> absl::StatusOr<std::unique_ptr<LogTier>> {
    SsdTierOptions options;
    options.directory = machine->folder / "ssd";
    options.capacity_bytes = capacity;
    options.clock = &machine->clock;
    return SsdTier::Open(std::move(options));
  };
  TierUnderTest made;
  KVTIER_ASSIGN_OR_RETURN(made.tier, open());
  made.backing = std::move(machine);
  made.restart = open;
  return made;
}

const auto kSsd = testing::Values(TierFactory{"Ssd", TierKind::kSsd, Make});
INSTANTIATE_TEST_SUITE_P(SsdTier, TierContractTest, kSsd, TierFactoryName);
INSTANTIATE_TEST_SUITE_P(SsdTier, LogTierContractTest, kSsd, TierFactoryName);

}  // namespace
}  // namespace kvtier
