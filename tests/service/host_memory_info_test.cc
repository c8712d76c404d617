#include "service/host_memory_info.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace kvtier {
namespace {

constexpr uint64_t kMiB = 1 << 20;

// A made-up /proc and /sys.
class HostMemoryInfoTest : public ::testing::Test {
 protected:
  HostMemoryInfoTest() {
    std::string name = ::testing::TempDir() + "kvtier_host_XXXXXX";
    root_ = mkdtemp(name.data());
    Write("/proc/meminfo", "MemTotal: 4096 kB\nMemAvailable: 2048 kB\n");
  }
  ~HostMemoryInfoTest() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& content) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << content;
  }
  uint64_t Available() {
    const auto bytes = AvailableMemory(root_);
    EXPECT_TRUE(bytes.ok()) << bytes.status();
    return bytes.ok() ? *bytes : 0;
  }

  std::string root_;
};

TEST_F(HostMemoryInfoTest, WithoutControlGroupsTheSystemDecides) {
  EXPECT_EQ(Available(), 2 * kMiB);
  Write("/proc/self/cgroup", "0::/\n");
  Write("/sys/fs/cgroup/memory.max", "max\n");
  EXPECT_EQ(Available(), 2 * kMiB);
}

TEST_F(HostMemoryInfoTest, TheTightestGroupDecidesAndItsPageCacheCountsAsFree) {
  Write("/proc/self/cgroup", "0::/outer/inner\n");
  Write("/sys/fs/cgroup/outer/memory.max", "1048576\n");
  Write("/sys/fs/cgroup/outer/memory.current", "1048576\n");
  Write("/sys/fs/cgroup/outer/memory.stat", "anon 5\ninactive_file 400000\nactive_file 100000\n");
  Write("/sys/fs/cgroup/outer/inner/memory.max", "max\n");
  EXPECT_EQ(Available(), 500000u);
}

TEST_F(HostMemoryInfoTest, ContainerSeesItsGroupAsTheRoot) {
  Write("/proc/self/cgroup", "5:cpu:/a\n4:memory:/gone/from/here\n0::/\n");
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "1000000\n");
  Write("/sys/fs/cgroup/memory/memory.usage_in_bytes", "400000\n");
  Write("/sys/fs/cgroup/memory/memory.stat", "inactive_file 7\ntotal_inactive_file 100000\n");
  EXPECT_EQ(Available(), 700000u);
}

TEST_F(HostMemoryInfoTest, ProcessMemoryIsAnonymousAndShared) {
  Write("/proc/self/status", "VmRSS: 9 kB\nRssAnon: 2 kB\nRssFile: 4 kB\nRssShmem: 3 kB\n");
  const auto bytes = ProcessMemory(root_);
  ASSERT_TRUE(bytes.ok());
  EXPECT_EQ(*bytes, 5 * 1024u);
  EXPECT_TRUE(ProcessMemory().ok());
  EXPECT_TRUE(AvailableMemory().ok());
}

TEST_F(HostMemoryInfoTest, NinetyPercentIsTheLimitAndBothNumbersAreNamed) {
  EXPECT_TRUE(CheckHostMemory("ram-bytes", 900, 0, 1000).ok());
  EXPECT_TRUE(CheckHostMemory("ram-bytes", 1800, 1000, 1000).ok());
  const absl::Status status = CheckHostMemory("ram-bytes", 901, 0, 1000);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              ::testing::AllOf(::testing::HasSubstr("ram-bytes"), ::testing::HasSubstr("901 bytes"),
                               ::testing::HasSubstr("1000 bytes")));
}

}  // namespace
}  // namespace kvtier
