// How CudaMemory is refused; what it does is in tests/contract, where there is a device.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gpu/device_memory.h"

namespace kvtier {
namespace {

TEST(CudaMemoryTest, SaysInOneLineWhyThereIsNoDevice) {
  for (const int ordinal : {-1, 1000}) {
    const absl::StatusOr<std::unique_ptr<DeviceMemory>> memory = MakeCudaMemory(ordinal);
    EXPECT_EQ(memory.status().code(), absl::StatusCode::kUnavailable);
    const std::string message(memory.status().message());
    EXPECT_THAT(message, testing::HasSubstr(absl::StrCat("cuda:", ordinal)));
    EXPECT_EQ(message.find('\n'), std::string::npos);
  }
}

TEST(CudaMemoryTest, FirstDeviceIsThereOrUnavailable) {
  const absl::StatusOr<std::unique_ptr<DeviceMemory>> memory = MakeCudaMemory(0);
  if (memory.ok()) {
    EXPECT_THAT(std::string((*memory)->name()), testing::StartsWith("cuda:0 ("));
    EXPECT_FALSE((*memory)->host_addressable());
  } else {
    EXPECT_EQ(memory.status().code(), absl::StatusCode::kUnavailable) << memory.status();
  }
}

}  // namespace
}  // namespace kvtier
