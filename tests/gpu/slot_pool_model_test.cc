// Random operations on a pool, with what its owner knows as the model: every step keeps the pool's
// invariants, the capacity, and all bytes.
#include <gtest/gtest.h>

#include <random>

#include "gpu/slot_pool.h"
#include "tests/support/faulty_device_memory.h"
#include "tests/support/open_files.h"
#include "tests/support/pool_owner.h"
#include "tests/support/seed.h"

namespace kvtier {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kSizes[] = {64 << 10, 40000, 300 << 10, 1124352};

class PoolRun {
 public:
  PoolRun(uint64_t seed, DeviceMemory* memory)
      : random_(seed), device_(memory), pool_(&device_, 8 * kMiB) {}

  void Step() {
    const uint64_t size = kSizes[Pick(4)];
    switch (Pick(12)) {
      case 0:
        Resize();
        break;
      case 1:
        adds_ += owner_.Fill(size);
        break;
      case 2:
        RemoveSome(owner_.entries().size() / 2);
        break;
      case 3:
        drains_ += owner_.DrainOne(size);
        break;
      case 4:
        EXPECT_TRUE(pool_.Prefault(nullptr).ok());
        break;
      case 5:
        BeginOrEndDrain(size);
        break;
      case 6:
      case 7:
      case 8:
        RemoveSome(1 + Pick(4));
        break;
      default:
        adds_ += owner_.Add(size);
    }
    Check();
  }

  // After all that, a lone class gets what it gets from a new pool.
  void Finish() {
    EndDrain();
    RemoveSome(UINT64_MAX);
    pool_.SetCapacity(9 * kMiB);
    EXPECT_EQ(owner_.Fill(64 << 10), 9 * 16u);
    EXPECT_TRUE(owner_.AllIntact());
    Check();
    EXPECT_GT(adds_, 100u);
    EXPECT_GT(drains_, 0u);
    EXPECT_GT(owner_.moves(), 0u);
  }

 private:
  uint64_t Pick(uint64_t n) { return random_() % n; }

  void Check() {
    pool_.CheckInvariants();
    const SlotPool::Usage usage = pool_.usage();
    EXPECT_EQ(usage.backed_bytes, device_.taken_bytes());
    EXPECT_EQ(usage.taken_slots, owner_.entries().size());
    EXPECT_LE(device_.TakePeak(), std::max(limit_, usage.capacity_bytes));
    if (!pool_.OverCapacity()) limit_ = usage.capacity_bytes;
    if (owner_.entries().empty()) return;
    EXPECT_TRUE(owner_.Intact(RandomTag()));
  }

  uint64_t RandomTag() {
    const auto it = owner_.entries().lower_bound(Pick(owner_.entries().rbegin()->first + 1));
    return it->first;
  }

  void RemoveSome(uint64_t count) {
    for (; count > 0 && !owner_.entries().empty(); --count) owner_.Remove(RandomTag());
  }

  void Resize() {
    EndDrain();
    const uint64_t capacity = 2 * kMiB + Pick(12 * kMiB);
    if (Pick(2) == 0) {
      pool_.SetCapacity(capacity);  // and leave it over capacity
      return;
    }
    const uint64_t used = pool_.usage().used_bytes;
    const uint64_t removed = owner_.Shrink(capacity);
    EXPECT_LE(device_.taken_bytes(), capacity);
    // Nothing leaves that would have fitted, save for what rounding to pages costs each extent.
    if (used + pool_.usage().extents * DeviceMemory::kRegionGranule <= capacity) {
      EXPECT_EQ(removed, 0u);
    }
  }

  // A drain that stays open over other steps.
  void BeginOrEndDrain(uint64_t size) {
    if (open_drain_) return EndDrain();
    const std::optional<SlotPool::Drain> drain = pool_.BeginDrain(size);
    if (drain) open_drain_ = drain->extent;
  }
  void EndDrain() {
    if (open_drain_) pool_.EndDrain(*open_drain_);
    open_drain_.reset();
  }

  std::mt19937_64 random_;
  FaultyDeviceMemory device_;
  SlotPool pool_;
  PoolOwner owner_{&pool_};
  std::optional<uint32_t> open_drain_;
  uint64_t limit_ = 8 * kMiB;  // the capacity before the pool got over it
  uint64_t adds_ = 0;
  uint64_t drains_ = 0;
};

TEST(SlotPoolModelTest, RandomOperations) {
  const uint64_t seed = TestSeed();
  const OpenFiles before = CountOpenFiles();
  const std::unique_ptr<DeviceMemory> host = MakeHostMemory();
  for (uint64_t round = 0; round < 3; ++round) {
    SCOPED_TRACE(round);
    PoolRun run(seed + round, host.get());
    for (int step = 0; step < 800 && !testing::Test::HasFailure(); ++step) {
      SCOPED_TRACE(step);
      run.Step();
    }
    run.Finish();
  }
  EXPECT_EQ(CountOpenFiles().count, before.count);
  EXPECT_EQ(CountOpenFiles().memfd_bytes, 0u);
}

}  // namespace
}  // namespace kvtier
