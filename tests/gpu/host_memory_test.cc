// What is particular to host memory; the rest is in tests/contract.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstring>

#include "gpu/device_memory.h"
#include "tests/support/open_files.h"

namespace kvtier {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

TEST(HostMemoryTest, TakesMemoryWhenAllocatedAndReturnsIt) {
  const std::unique_ptr<DeviceMemory> memory = MakeHostMemory();
  const OpenFiles before = CountOpenFiles();
  absl::StatusOr<Region> region = memory->Allocate(8 * kMiB);
  ASSERT_TRUE(region.ok());
  EXPECT_EQ(CountOpenFiles().memfd_bytes, 8 * kMiB);
  ASSERT_TRUE(memory->Truncate(&*region, 3 * kMiB).ok());
  EXPECT_EQ(CountOpenFiles().memfd_bytes, 3 * kMiB);
  region = memory->Reallocate(*region, 5 * kMiB);
  ASSERT_TRUE(region.ok());
  EXPECT_EQ(CountOpenFiles().memfd_bytes, 5 * kMiB);
  region = memory->Reallocate(*region, kMiB);
  ASSERT_TRUE(region.ok());
  EXPECT_EQ(CountOpenFiles().memfd_bytes, kMiB);
  memory->Free(*region);
  EXPECT_EQ(CountOpenFiles().memfd_bytes, 0u);
  EXPECT_EQ(CountOpenFiles().count, before.count);
}

TEST(HostMemoryTest, SaysWhatTheSystemRefused) {
  const std::unique_ptr<DeviceMemory> memory = MakeHostMemory();
  const absl::StatusOr<Region> region = memory->Allocate(uint64_t{1} << 60);
  EXPECT_EQ(region.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(region.status().message()),
              testing::AllOf(testing::HasSubstr("host memory"),
                             testing::HasSubstr(absl::StrCat(uint64_t{1} << 60))));
}

TEST(HostMemoryTest, NamesTheLimitOfOpenFiles) {
  const std::unique_ptr<DeviceMemory> memory = MakeHostMemory();
  const OpenFiles before = CountOpenFiles();
  rlimit old{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &old), 0);
  rlimit none = old;
  none.rlim_cur = 0;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const absl::StatusOr<Region> region = memory->Allocate(kMiB);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &old), 0);
  EXPECT_EQ(region.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(region.status().message()), testing::HasSubstr("RLIMIT_NOFILE"));
  EXPECT_EQ(CountOpenFiles().count, before.count);
}

}  // namespace
}  // namespace kvtier
