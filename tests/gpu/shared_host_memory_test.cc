// What is particular to host memory that others may map; the rest is in tests/contract.
#include "gpu/shared_host_memory.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "tests/support/open_files.h"

namespace kvtier {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

class SharedHostMemoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const absl::Status supported = SharedHostMemory::Supported(); !supported.ok()) {
      GTEST_SKIP() << supported.message();
    }
  }
  Region Take(uint64_t bytes) { return *memory_->Allocate(bytes); }
  static void* Map(int fd, uint64_t bytes, int protection) {
    return mmap(nullptr, bytes, protection, MAP_SHARED, fd, 0);
  }

  const std::unique_ptr<SharedHostMemory> memory_ = MakeSharedHostMemory(4 * kMiB);
};

TEST_F(SharedHostMemoryTest, AnOpenedRegionIsReadAndNeverWritten) {
  const Region region = Take(kMiB);
  std::memset(region.base, 0x5a, kMiB);
  absl::StatusOr<SharedHostMemory::OpenedRegion> opened = memory_->Open(region.id);
  ASSERT_TRUE(opened.ok());
  EXPECT_EQ(opened->bytes, kMiB);
  const int fd = opened->fd.get();

  auto* bytes = static_cast<const std::byte*>(Map(fd, kMiB, PROT_READ));
  ASSERT_NE(bytes, MAP_FAILED);
  EXPECT_EQ(bytes[kMiB - 1], std::byte{0x5a});
  std::memset(region.base, 0x77, kMiB);  // its owner still writes
  EXPECT_EQ(bytes[0], std::byte{0x77});

  EXPECT_EQ(Map(fd, kMiB, PROT_READ | PROT_WRITE), MAP_FAILED);
  EXPECT_NE(mprotect(const_cast<std::byte*>(bytes), kMiB, PROT_READ | PROT_WRITE), 0);
  const char byte = 1;
  EXPECT_LT(pwrite(fd, &byte, 1, 0), 0);
  EXPECT_EQ(bytes[0], std::byte{0x77});
  munmap(const_cast<std::byte*>(bytes), kMiB);
  memory_->Free(region);
}

// A descriptor can be opened again for writing by who may; the seals hold all the same.
TEST_F(SharedHostMemoryTest, NorByAnotherDescriptor) {
  const Region region = Take(kMiB);
  std::memset(region.base, 0x5a, kMiB);
  absl::StatusOr<SharedHostMemory::OpenedRegion> opened = memory_->Open(region.id);
  ASSERT_TRUE(opened.ok());
  const UniqueFd again(
      open(absl::StrCat("/proc/self/fd/", opened->fd.get()).c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_TRUE(again);
  EXPECT_EQ(Map(again.get(), kMiB, PROT_READ | PROT_WRITE), MAP_FAILED);
  const char byte = 1;
  EXPECT_LT(pwrite(again.get(), &byte, 1, 0), 0);
  EXPECT_NE(ftruncate(again.get(), kMiB / 2), 0);
  EXPECT_EQ(errno, EPERM);
  EXPECT_NE(ftruncate(again.get(), 2 * kMiB), 0);
  EXPECT_NE(fallocate(again.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), 0);
  EXPECT_NE(fcntl(again.get(), F_ADD_SEALS, F_SEAL_WRITE), 0);
  EXPECT_EQ(region.base[0], std::byte{0x5a});
  memory_->Free(region);
}

TEST_F(SharedHostMemoryTest, IdsAreNeverUsedAgain) {
  const Region first = Take(kMiB);
  EXPECT_NE(first.id, 0u);
  memory_->Free(first);
  EXPECT_TRUE(absl::IsNotFound(memory_->Open(first.id).status()));
  const Region second = Take(kMiB);
  EXPECT_GT(second.id, first.id);
  EXPECT_TRUE(memory_->Open(second.id).ok());
  EXPECT_TRUE(absl::IsNotFound(memory_->Open(0).status()));
  EXPECT_TRUE(absl::IsNotFound(memory_->Open(second.id + 1).status()));
  memory_->Free(second);
}

TEST_F(SharedHostMemoryTest, OnlyItsOwnDomainOpensARegion) {
  constexpr MemoryDomain kOne = MemoryDomain::OfUid(1000);
  constexpr MemoryDomain kOther = MemoryDomain::OfUid(1001);
  const Region common = Take(kMiB);
  const Region region = Take(kMiB);
  memory_->Assign(region, kOne);
  memory_->Assign(region, kOne);
  EXPECT_TRUE(memory_->Open(region.id, kOne).ok());
  EXPECT_TRUE(absl::IsNotFound(memory_->Open(region.id, kOther).status()));
  EXPECT_TRUE(absl::IsNotFound(memory_->Open(region.id).status()));
  EXPECT_TRUE(memory_->Open(common.id).ok());
  EXPECT_TRUE(absl::IsNotFound(memory_->Open(common.id, kOne).status()));
  memory_->Free(region);
  EXPECT_TRUE(absl::IsNotFound(memory_->Open(region.id, kOne).status()));
  memory_->Free(common);
}

TEST_F(SharedHostMemoryTest, CannotShrinkInPlace) {
  Region region = Take(2 * kMiB);
  EXPECT_FALSE(memory_->truncatable());
  EXPECT_FALSE(memory_->Truncate(&region, kMiB).ok());
  EXPECT_EQ(region.bytes, 2 * kMiB);
  const absl::StatusOr<Region> other = memory_->Reallocate(region, kMiB);
  ASSERT_TRUE(other.ok());
  EXPECT_GT(other->id, region.id);
  EXPECT_EQ(CountOpenFiles().memfd_bytes, kMiB);
  memory_->Free(*other);
  EXPECT_EQ(CountOpenFiles().memfd_bytes, 0u);
}

// The kernel says who still has it: a descriptor, then a mapping alone, then nobody.
TEST_F(SharedHostMemoryTest, ARetiredRegionIsHeldUntilTheLastHasLetGo) {
  const OpenFiles before = CountOpenFiles();
  std::vector<uint64_t> told;
  memory_->OnRetired([&told](uint64_t region) { told.push_back(region); });
  const Region unopened = Take(kMiB);
  memory_->Free(unopened);
  EXPECT_THAT(told, testing::IsEmpty());

  const Region region = Take(kMiB);
  absl::StatusOr<SharedHostMemory::OpenedRegion> opened = memory_->Open(region.id);
  ASSERT_TRUE(opened.ok());
  EXPECT_EQ(memory_->retired().bytes, 0u);  // in service
  std::memset(region.base, 0x5a, kMiB);
  memory_->Free(region);
  EXPECT_THAT(told, testing::ElementsAre(region.id));
  EXPECT_TRUE(absl::IsNotFound(memory_->Open(region.id).status()));
  EXPECT_EQ(memory_->retired().regions, 1u);
  EXPECT_EQ(memory_->retired().bytes, kMiB);

  auto* bytes = static_cast<const std::byte*>(Map(opened->fd.get(), kMiB, PROT_READ));
  opened->fd = UniqueFd();
  EXPECT_EQ(memory_->retired().bytes, kMiB);
  EXPECT_EQ(bytes[kMiB - 1], std::byte{0x5a});
  munmap(const_cast<std::byte*>(bytes), kMiB);
  EXPECT_EQ(memory_->retired().regions, 0u);
  EXPECT_EQ(memory_->retired().bytes, 0u);
  EXPECT_EQ(CountOpenFiles().count, before.count);
  EXPECT_EQ(CountOpenFiles().memfd_bytes, 0u);
  memory_->OnRetired(nullptr);
}

TEST_F(SharedHostMemoryTest, SeesAProcessThatHoldsOn) {
  const Region region = Take(kMiB);
  absl::StatusOr<SharedHostMemory::OpenedRegion> opened = memory_->Open(region.id);
  ASSERT_TRUE(opened.ok());
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    Map(opened->fd.get(), kMiB, PROT_READ);
    pause();
    _exit(0);
  }
  opened->fd = UniqueFd();
  memory_->Free(region);
  EXPECT_EQ(memory_->retired().bytes, kMiB);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_EQ(memory_->retired().bytes, 0u);
}

TEST_F(SharedHostMemoryTest, TakesNoMoreWhileTooMuchIsHeld) {
  std::vector<SharedHostMemory::OpenedRegion> held;
  for (int i = 0; i < 5; ++i) {
    const Region region = Take(kMiB);  // up to the limit of 4 MiB it does
    held.push_back(*memory_->Open(region.id));
    memory_->Free(region);
  }
  const absl::StatusOr<Region> refused = memory_->Allocate(kMiB);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.status().message()),
              testing::AllOf(testing::HasSubstr(absl::StrCat(5 * kMiB)),
                             testing::HasSubstr(absl::StrCat(4 * kMiB))));
  held.pop_back();
  const absl::StatusOr<Region> taken = memory_->Allocate(kMiB);
  ASSERT_TRUE(taken.ok());
  memory_->Free(*taken);
}

}  // namespace
}  // namespace kvtier
