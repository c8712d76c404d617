// The Tier suite over memory tiers.
#include "storage/memory_tier.h"
#include "tests/contract/tier_contract.h"
#include "tests/support/fake_device_memory.h"

namespace kvtier {
namespace {

TierUnderTest Over(TierKind kind, std::shared_ptr<DeviceMemory> device, uint64_t capacity) {
  TierUnderTest made;
  made.tier = std::make_unique<MemoryTier>(kind, device.get(), capacity);
  made.backing = std::move(device);
  return made;
}

absl::StatusOr<TierUnderTest> Prefaulted(uint64_t capacity) {
  std::shared_ptr<DeviceMemory> device = MakeHostMemory();
  auto tier = std::make_unique<MemoryTier>(TierKind::kRam, device.get(), capacity);
  KVTIER_RETURN_IF_ERROR(tier->pool().Prefault(nullptr));
  TierUnderTest made;
  made.backing = std::move(device);
  made.tier = std::move(tier);
  return made;
}

absl::StatusOr<TierUnderTest> OverCuda(uint64_t capacity) {
  KVTIER_ASSIGN_OR_RETURN(std::shared_ptr<DeviceMemory> device, MakeCudaMemory(0));
  return Over(TierKind::kGpu, std::move(device), capacity);
}

INSTANTIATE_TEST_SUITE_P(MemoryTier, TierContractTest,
                         testing::Values(TierFactory{"RamOverHost", TierKind::kRam,
                                                     [](uint64_t capacity) {
                                                       return Over(TierKind::kRam, MakeHostMemory(),
                                                                   capacity);
                                                     }},
                                         TierFactory{"RamPrefaulted", TierKind::kRam, Prefaulted},
                                         TierFactory{"GpuOverFake", TierKind::kGpu,
                                                     [](uint64_t capacity) {
                                                       return Over(
                                                           TierKind::kGpu,
                                                           std::make_shared<FakeDeviceMemory>(),
                                                           capacity);
                                                     }},
                                         TierFactory{"GpuOverCuda", TierKind::kGpu, OverCuda}),
                         TierFactoryName);

}  // namespace
}  // namespace kvtier
