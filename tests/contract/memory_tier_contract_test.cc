// The Tier suite over memory tiers.
#include <gmock/gmock.h>

#include "storage/memory_tier.h"
#include "tests/contract/tier_contract.h"
#include "tests/support/fake_device_memory.h"

namespace kvtier {
namespace {

constexpr uint64_t kKiB = 1024;

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

// What a tier of slots promises on top of the suite.
class SlotTierContractTest : public TierContractTest {};

TEST_P(SlotTierContractTest, TakesOfABatchWhatFits) {
  FillUp(256 * kKiB);
  for (int i = 0; i < 2; ++i) Erase(0);
  const std::vector<absl::Status> statuses = Write({256 * kKiB, 256 * kKiB, 256 * kKiB});
  EXPECT_TRUE(statuses[0].ok());
  EXPECT_TRUE(statuses[1].ok());
  EXPECT_EQ(statuses[2].code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(statuses[2].message()), testing::HasSubstr(absl::StrCat(256 * kKiB)));
  for (const WrittenPart& part : stored_) EXPECT_EQ(Read(part), absl::OkStatus());
}

TEST_P(SlotTierContractTest, HoldsTheBlocksItSaysItHolds) {
  const std::vector<std::vector<uint64_t>> blocks = {
      {64 * kKiB}, {40000, 40000}, {64 * kKiB, 40000}};
  for (const std::vector<uint64_t>& parts : blocks) {
    const uint64_t said = tier_->BlocksFor(parts, 64);
    EXPECT_GT(said, 0u);
    uint64_t held = 0;
    while (held <= said && testing::Value(Write(parts), testing::Each(absl::OkStatus()))) ++held;
    EXPECT_EQ(held, said);
    while (!stored_.empty()) Erase(0);
  }
}

const auto kMemoryTiers = testing::Values(
    TierFactory{"RamOverHost", TierKind::kRam,
                [](uint64_t capacity) { return Over(TierKind::kRam, MakeHostMemory(), capacity); }},
    TierFactory{"RamPrefaulted", TierKind::kRam, Prefaulted},
    TierFactory{"GpuOverFake", TierKind::kGpu,
                [](uint64_t capacity) {
                  return Over(TierKind::kGpu, std::make_shared<FakeDeviceMemory>(), capacity);
                }},
    TierFactory{"GpuOverCuda", TierKind::kGpu, OverCuda});

INSTANTIATE_TEST_SUITE_P(MemoryTier, TierContractTest, kMemoryTiers, TierFactoryName);
INSTANTIATE_TEST_SUITE_P(MemoryTier, SlotTierContractTest, kMemoryTiers, TierFactoryName);

}  // namespace
}  // namespace kvtier
