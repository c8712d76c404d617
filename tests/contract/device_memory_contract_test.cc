// What every DeviceMemory promises.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <vector>

#include "common/executor.h"
#include "gpu/device_memory.h"
#include "gpu/shared_host_memory.h"
#include "tests/support/fake_device_memory.h"
#include "tests/support/pool_owner.h"

namespace kvtier {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

struct Factory {
  const char* name;
  std::function<absl::StatusOr<std::unique_ptr<DeviceMemory>>()> make;
};

class DeviceMemoryContractTest : public testing::TestWithParam<Factory> {
 protected:
  void SetUp() override {
    absl::StatusOr<std::unique_ptr<DeviceMemory>> memory = GetParam().make();
    if (absl::IsUnavailable(memory.status())) {
      GTEST_SKIP() << "not tested here: " << memory.status().message();
    }
    ASSERT_TRUE(memory.ok()) << memory.status();
    memory_ = std::move(*memory);
  }
  void TearDown() override {
    for (const Region& region : regions_) memory_->Free(region);
  }

  Region& Allocate(uint64_t bytes) {
    const absl::StatusOr<Region> region = memory_->Allocate(bytes);
    KVTIER_CHECK(region.ok());
    regions_.push_back(*region);
    return regions_.back();
  }
  void Put(uint64_t tag, std::byte* to, uint64_t bytes) {
    std::vector<std::byte> content(bytes);
    FillContent(tag, content);
    const CopyOp op{to, content.data(), bytes};
    ASSERT_TRUE(memory_->Copy({&op, 1}).ok());
  }
  bool Holds(uint64_t tag, const std::byte* from, uint64_t bytes) {
    std::vector<std::byte> content(bytes);
    const CopyOp op{content.data(), from, bytes};
    return memory_->Copy({&op, 1}).ok() && HasContent(tag, content);
  }

  std::unique_ptr<DeviceMemory> memory_;
  std::deque<Region> regions_;
};

TEST_P(DeviceMemoryContractTest, RegionsAreAlignedApartAndLargeEnough) {
  for (const uint64_t bytes : {uint64_t{1}, uint64_t{4096}, uint64_t{4097}, 3 * kMiB}) {
    const Region& region = Allocate(bytes);
    EXPECT_EQ(region.bytes, DeviceMemory::RoundUp(bytes));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(region.base) % 256, 0u);
  }
  for (size_t i = 0; i < regions_.size(); ++i) Put(i, regions_[i].base, regions_[i].bytes);
  for (size_t i = 0; i < regions_.size(); ++i) {
    EXPECT_TRUE(Holds(i, regions_[i].base, regions_[i].bytes));
    EXPECT_FALSE(Holds(i + 1, regions_[i].base, regions_[i].bytes));
  }
}

TEST_P(DeviceMemoryContractTest, CopiesABatchInAllDirections) {
  std::byte* const a = Allocate(kMiB).base;
  std::byte* const b = Allocate(kMiB).base;
  Put(1, a, kMiB);
  Put(2, b, kMiB);
  std::vector<std::byte> in(5000), out(3000);
  FillContent(3, in);
  const CopyOp ops[] = {
      {b + 4096, a, 65536},                  // device to device
      {b + kMiB - 5000, in.data(), 5000},    // host to device
      {out.data(), a + 8 * 100, out.size()}  // device to host
  };
  ASSERT_TRUE(memory_->Copy(ops).ok());
  EXPECT_TRUE(Holds(1, b + 4096, 65536));
  EXPECT_TRUE(Holds(3, b + kMiB - 5000, 5000));
  EXPECT_TRUE(Holds(2, b, 4096));
  EXPECT_TRUE(Holds(1, a, kMiB));
  std::vector<std::byte> whole(4000);
  FillContent(1, whole);
  EXPECT_EQ(std::memcmp(out.data(), whole.data() + 800, out.size()), 0);
  EXPECT_TRUE(memory_->Copy({}).ok());
}

TEST_P(DeviceMemoryContractTest, CpuMayTouchItWhenHostAddressable) {
  const Region& region = Allocate(kMiB);
  if (memory_->host_addressable()) {
    FillContent(5, {region.base, region.bytes});
    EXPECT_TRUE(Holds(5, region.base, region.bytes));
  } else {
    EXPECT_DEATH(FillContent(5, {region.base, region.bytes}), "");
  }
}

TEST_P(DeviceMemoryContractTest, ReallocatesToAnySize) {
  Region& region = Allocate(kMiB);
  for (const uint64_t bytes : {5 * kMiB, 2 * kMiB, 2 * kMiB, uint64_t{100}, 3 * kMiB}) {
    const absl::StatusOr<Region> resized = memory_->Reallocate(region, bytes);
    ASSERT_TRUE(resized.ok());
    region = *resized;
    EXPECT_EQ(region.bytes, DeviceMemory::RoundUp(bytes));
    Put(bytes, region.base, region.bytes);
    EXPECT_TRUE(Holds(bytes, region.base, region.bytes));
  }
}

TEST_P(DeviceMemoryContractTest, TruncateKeepsWhatStaysWhereItIs) {
  Region& region = Allocate(2 * kMiB);
  Put(1, region.base, region.bytes);
  const Region before = region;
  const absl::Status status = memory_->Truncate(&region, kMiB - 100);
  EXPECT_EQ(status.ok(), memory_->truncatable()) << status;
  EXPECT_EQ(region.base, before.base);
  EXPECT_EQ(region.bytes, status.ok() ? kMiB : 2 * kMiB);
  EXPECT_TRUE(Holds(1, region.base, region.bytes));
}

TEST_P(DeviceMemoryContractTest, SaysWhenThereIsNoMoreAndGoesOn) {
  const absl::StatusOr<Region> region = memory_->Allocate(uint64_t{1} << 50);
  EXPECT_EQ(region.status().code(), absl::StatusCode::kResourceExhausted) << region.status();
  EXPECT_THAT(std::string(region.status().message()),
              testing::HasSubstr(absl::StrCat(uint64_t{1} << 50)));
  Put(1, Allocate(kMiB).base, kMiB);
  EXPECT_TRUE(Holds(1, regions_.back().base, kMiB));
}

TEST_P(DeviceMemoryContractTest, CopiesFromManyThreads) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 50;
  constexpr uint64_t kShare = 64 << 10;
  std::byte* const base = Allocate(kThreads * kShare).base;
  std::array<int, kThreads> right{};
  {
    ThreadPool threads(kThreads);
    for (int t = 0; t < kThreads; ++t) {
      threads.Run([this, base, t, &right] {
        for (int i = 0; i < kRounds; ++i) {
          const uint64_t tag = static_cast<uint64_t>(t * kRounds + i);
          Put(tag, base + t * kShare, kShare);
          right[t] += Holds(tag, base + t * kShare, kShare);
        }
      });
    }
  }
  EXPECT_THAT(right, testing::Each(kRounds));
}

TEST_P(DeviceMemoryContractTest, HasAName) { EXPECT_FALSE(memory_->name().empty()); }

INSTANTIATE_TEST_SUITE_P(
    All, DeviceMemoryContractTest,
    testing::Values(Factory{"Host", [] { return MakeHostMemory(); }},
                    Factory{"SharedHost", [] { return MakeSharedHostMemory(UINT64_MAX); }},
                    Factory{"Fake",
                            [] { return std::make_unique<FakeDeviceMemory>(uint64_t{1} << 30); }},
                    Factory{"Cuda", [] { return MakeCudaMemory(0); }}),
    [](const testing::TestParamInfo<Factory>& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace kvtier
