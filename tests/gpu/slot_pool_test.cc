#include "gpu/slot_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "common/executor.h"
#include "tests/support/fake_device_memory.h"
#include "tests/support/faulty_device_memory.h"
#include "tests/support/pool_owner.h"

namespace kvtier {
namespace {

constexpr uint64_t kKiB = 1024;
constexpr uint64_t kMiB = 1024 * kKiB;
constexpr uint64_t kGiB = 1024 * kMiB;

// The smallest extent, and slots of which 16 make one.
constexpr uint64_t kSmallExtent = 64 * kKiB;
constexpr uint64_t kSmallSlot = 4 * kKiB;
constexpr uint64_t kOtherSlot = 6 * kKiB;

struct Size {
  uint64_t capacity;
  uint64_t bytes;
};
std::string PrintSize(const testing::TestParamInfo<Size>& info) {
  return absl::StrCat(info.param.bytes, "_in_", info.param.capacity);
}

class SlotPoolSizeTest : public testing::TestWithParam<Size> {
 protected:
  uint64_t stride() const { return (GetParam().bytes + 255) / 256 * 256; }
  // Exactly what fits where strides are whole pages; else pages per extent are lost.
  void ExpectAsManyAsFit(uint64_t slots) const {
    const uint64_t fit = GetParam().capacity / stride();
    EXPECT_LE(slots, fit);
    EXPECT_GE(static_cast<double>(slots), 0.99 * static_cast<double>(fit) - 1);
    if (stride() % 4096 == 0) {
      EXPECT_EQ(slots, fit);
    }
  }
};

TEST_P(SlotPoolSizeTest, LoneClassGetsWhatFits) {
  FakeDeviceMemory device;
  SlotPool pool(&device, GetParam().capacity);
  PoolOwner owner(&pool, /*content=*/false);
  const uint64_t slots = owner.Fill(GetParam().bytes);
  ExpectAsManyAsFit(slots);
  EXPECT_EQ(slots, SlotPool::SlotsFor(GetParam().capacity, GetParam().bytes));
  EXPECT_LE(device.peak_bytes(), GetParam().capacity);
  EXPECT_EQ(pool.usage().used_bytes, slots * stride());
  pool.CheckInvariants();
}

TEST_P(SlotPoolSizeTest, LoneClassGetsWhatFitsOfPrefaulted) {
  FakeDeviceMemory device;
  SlotPool pool(&device, GetParam().capacity);
  ASSERT_TRUE(pool.Prefault(nullptr).ok());
  EXPECT_EQ(device.taken_bytes(), GetParam().capacity / 4096 * 4096);
  PoolOwner owner(&pool, /*content=*/false);
  const uint64_t slots = owner.Fill(GetParam().bytes);
  EXPECT_EQ(slots, SlotPool::SlotsFor(GetParam().capacity, GetParam().bytes));
  EXPECT_LE(device.peak_bytes(), GetParam().capacity);
  pool.CheckInvariants();
}

TEST_P(SlotPoolSizeTest, ClassGetsAllOfAnotherThatLeft) {
  FakeDeviceMemory device;
  SlotPool pool(&device, GetParam().capacity);
  PoolOwner owner(&pool, /*content=*/false);
  owner.Fill(48 * kKiB);
  owner.Clear();
  const uint64_t slots = owner.Fill(GetParam().bytes);
  ExpectAsManyAsFit(slots);
  EXPECT_LE(device.peak_bytes(), GetParam().capacity);
  pool.CheckInvariants();
}

INSTANTIATE_TEST_SUITE_P(
    Sizes, SlotPoolSizeTest,
    testing::Values(Size{1828 * 64 * kKiB, 64 * kKiB}, Size{9140 * 64 * kKiB, 64 * kKiB},
                    Size{kGiB, 40 * kMiB}, Size{kGiB, 1124352}, Size{kGiB, 2 * kMiB},
                    Size{16 * kMiB, 3 * kMiB}, Size{7 * kMiB, 4096}, Size{10 * kMiB, 100000},
                    Size{kGiB, 64 * kMiB}, Size{16 * kMiB, 1}, Size{5 * kMiB + 17, 65537},
                    Size{64 * kKiB, 64 * kKiB}, Size{3 * kMiB, 1000 * kKiB}, Size{kGiB, 868352}),
    PrintSize);

TEST(SlotPoolTest, NothingFitsWhereOneSlotIsLargerThanThePool) {
  FakeDeviceMemory device;
  SlotPool pool(&device, 64 * kKiB);
  EXPECT_FALSE(pool.Allocate(64 * kKiB + 1));
  EXPECT_EQ(SlotPool::SlotsFor(64 * kKiB, 64 * kKiB + 1), 0u);
  EXPECT_TRUE(pool.Allocate(64 * kKiB));
  EXPECT_FALSE(pool.Allocate(UINT64_MAX));
}

TEST(SlotPoolTest, SetsForIsWhatInterleavedStoresGet) {
  const std::vector<std::vector<uint64_t>> shapes = {
      {64 * kKiB, 40000}, {64 * kKiB, 64 * kKiB}, {1124352, 4096, 300000}, {5 * kMiB, 1}, {4096}};
  for (const std::vector<uint64_t>& shape : shapes) {
    const uint64_t capacity = 100 * kMiB;
    FakeDeviceMemory device;
    SlotPool pool(&device, capacity);
    PoolOwner owner(&pool, /*content=*/false);
    uint64_t sets = 0;
    while (std::all_of(shape.begin(), shape.end(), [&](uint64_t b) { return owner.Add(b); })) {
      ++sets;
    }
    EXPECT_EQ(SlotPool::SetsFor(capacity, shape), sets);
    EXPECT_GT(sets, 0u);
  }
  EXPECT_EQ(SlotPool::SetsFor(100 * kMiB, {}), 0u);
}

TEST(SlotPoolTest, SlotsAreApartAlignedAndAsLongAsAskedFor) {
  const std::unique_ptr<DeviceMemory> device = MakeHostMemory();
  SlotPool pool(device.get(), 4 * kMiB);
  std::vector<Slot> slots;
  while (Slot slot = pool.Allocate(10001)) slots.push_back(std::move(slot));
  std::set<std::byte*> ends;
  for (const Slot& slot : slots) {
    EXPECT_EQ(slot.bytes().size(), 10001u);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(slot.bytes().data()) % SlotPool::kStrideAlignment, 0u);
    const auto next = ends.upper_bound(slot.bytes().data());
    EXPECT_TRUE(next == ends.end() || *next - slot.bytes().data() > 10001);
    ends.insert(slot.bytes().data() + 10001);
    EXPECT_EQ(pool.Bytes(slot.id()).data(), slot.bytes().data());
  }
  EXPECT_EQ(slots.size(), SlotPool::SlotsFor(4 * kMiB, 10001));
}

TEST(SlotPoolTest, SlotFreesItselfUnlessReleased) {
  FakeDeviceMemory device;
  SlotPool pool(&device, kMiB);
  SlotId kept;
  {
    Slot slot = pool.Allocate(kMiB);
    EXPECT_FALSE(pool.Allocate(kMiB));
    Slot moved = std::move(slot);
    EXPECT_FALSE(slot);  // NOLINT(bugprone-use-after-move)
    EXPECT_TRUE(moved);
    moved = pool.Allocate(kMiB);  // full: frees the one it had
    EXPECT_FALSE(moved);
    kept = pool.Allocate(kMiB).Release();
  }
  EXPECT_EQ(pool.usage().taken_slots, 1u);
  EXPECT_EQ(pool.Bytes(kept).size(), kMiB);
  pool.Free(kept);
  EXPECT_EQ(pool.usage().taken_slots, 0u);
}

TEST(SlotPoolTest, FindSeesTakenSlotsOnly) {
  FakeDeviceMemory device;
  SlotPool pool(&device, kMiB);
  const Slot slot = pool.Allocate(1000);
  EXPECT_EQ(pool.Find(slot.id()).size(), 1000u);
  EXPECT_TRUE(pool.Find({slot.id().extent, slot.id().index + 1}).empty());
  EXPECT_TRUE(pool.Find({slot.id().extent, UINT32_MAX}).empty());
  EXPECT_TRUE(pool.Find({slot.id().extent + 1, 0}).empty());
  EXPECT_TRUE(pool.Find({UINT32_MAX, UINT32_MAX}).empty());
}

TEST(SlotPoolDeathTest, StopsWhenASlotIsFreedTwice) {
  FakeDeviceMemory device;
  SlotPool pool(&device, kMiB);
  const SlotId id = pool.Allocate(1000).Release();
  pool.Free(id);
  EXPECT_DEATH(pool.Free(id), "check failed");
}

TEST(SlotPoolTest, FillsTheFullestExtentFirst) {
  FakeDeviceMemory device;
  SlotPool pool(&device, 4 * kSmallExtent);
  PoolOwner owner(&pool, /*content=*/false);
  owner.Fill(kSmallSlot);
  // Leaves extents with 1, 16, 8 and 16 taken.
  const uint32_t first = owner.entries().at(0).slot.extent;
  const uint32_t third = owner.entries().at(32).slot.extent;
  for (uint64_t tag = 1; tag < 16; ++tag) owner.Remove(tag);
  for (uint64_t tag = 32; tag < 40; ++tag) owner.Remove(tag);
  for (int i = 0; i < 8; ++i) {
    ASSERT_TRUE(owner.Add(kSmallSlot));
    EXPECT_EQ(owner.entries().rbegin()->second.slot.extent, third);
  }
  ASSERT_TRUE(owner.Add(kSmallSlot));
  EXPECT_EQ(owner.entries().rbegin()->second.slot.extent, first);
}

TEST(SlotPoolTest, PrefaultTellsProgressAndTakesTheRestAfterGrowth) {
  FakeDeviceMemory device;
  SlotPool pool(&device, 100 * kMiB);
  uint64_t last = 0;
  const auto progress = [&last](uint64_t done, uint64_t total) {
    EXPECT_LE(last, done);
    EXPECT_LE(done, total);
    EXPECT_EQ(total, 100 * kMiB);
    last = done;
  };
  ASSERT_TRUE(pool.Prefault(progress).ok());
  EXPECT_EQ(last, 100 * kMiB);
  pool.SetCapacity(150 * kMiB);
  EXPECT_EQ(device.taken_bytes(), 100 * kMiB);
  ASSERT_TRUE(pool.Prefault(nullptr).ok());
  EXPECT_EQ(device.taken_bytes(), 150 * kMiB);
  pool.CheckInvariants();
}

TEST(SlotPoolTest, PrefaultKeepsWhatThereWas) {
  FakeDeviceMemory device(40 * kMiB);
  SlotPool pool(&device, 100 * kMiB);
  const absl::Status status = pool.Prefault(nullptr);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr(absl::StrCat(100 * kMiB)));
  EXPECT_GT(device.taken_bytes(), 30 * kMiB);
  PoolOwner owner(&pool, /*content=*/false);
  EXPECT_GT(owner.Fill(kMiB), 30u);
  pool.CheckInvariants();
}

TEST(SlotPoolTest, EmptyExtentServesAnotherClassWithoutDraining) {
  FakeDeviceMemory device;
  SlotPool pool(&device, 16 * kMiB);
  PoolOwner owner(&pool, /*content=*/false);
  ASSERT_EQ(owner.Fill(64 * kKiB), 256u);
  EXPECT_FALSE(owner.Add(100000));
  for (uint64_t tag = 0; tag < 15; ++tag) owner.Remove(tag);
  EXPECT_FALSE(owner.Add(100000));  // one slot of the first extent is still taken
  owner.Remove(15);
  EXPECT_EQ(owner.Fill(100000), kMiB / 100096);
  // And back, once it is empty again.
  while (owner.entries().rbegin()->second.bytes == 100000) {
    owner.Remove(owner.entries().rbegin()->first);
  }
  EXPECT_EQ(owner.Fill(64 * kKiB), 16u);
  pool.CheckInvariants();
}

// Live resize

TEST(SlotPoolResizeTest, FreeMemoryLeavesAtOnce) {
  FakeDeviceMemory device;
  SlotPool pool(&device, 64 * kMiB);
  ASSERT_TRUE(pool.Prefault(nullptr).ok());
  PoolOwner owner(&pool, /*content=*/false);
  owner.Fill(64 * kKiB);
  for (uint64_t tag = 256; tag < 1024; ++tag) owner.Remove(tag);
  EXPECT_EQ(device.taken_bytes(), 64 * kMiB);
  pool.SetCapacity(16 * kMiB);
  EXPECT_EQ(device.taken_bytes(), 16 * kMiB);
  EXPECT_FALSE(pool.OverCapacity());
  EXPECT_EQ(owner.entries().size(), 256u);
  pool.SetCapacity(32 * kMiB);
  EXPECT_EQ(owner.Fill(64 * kKiB), 256u);
  EXPECT_EQ(device.taken_bytes(), 32 * kMiB);
  pool.CheckInvariants();
}

TEST(SlotPoolResizeTest, ExtentsLeaveAsTheyEmpty) {
  FakeDeviceMemory device;
  SlotPool pool(&device, 16 * kMiB);
  PoolOwner owner(&pool, /*content=*/false);
  owner.Fill(64 * kKiB);
  pool.SetCapacity(8 * kMiB);
  EXPECT_TRUE(pool.OverCapacity());
  EXPECT_EQ(device.taken_bytes(), 16 * kMiB);
  EXPECT_FALSE(pool.BeginDrain(0));  // more is taken than may be
  for (uint64_t tag = 0; tag < 16; ++tag) owner.Remove(tag);
  EXPECT_EQ(device.taken_bytes(), 15 * kMiB);
  for (uint64_t tag = 16; tag < 128; ++tag) owner.Remove(tag);
  EXPECT_EQ(device.taken_bytes(), 8 * kMiB);
  EXPECT_FALSE(pool.OverCapacity());
  pool.CheckInvariants();
}

TEST(SlotPoolResizeTest, NoSlotsBeyondTheNewLimit) {
  FakeDeviceMemory device;
  SlotPool pool(&device, 16 * kMiB);
  PoolOwner owner(&pool, /*content=*/false);
  owner.Fill(64 * kKiB);
  for (uint64_t tag = 0; tag < 256; tag += 2) owner.Remove(tag);
  pool.SetCapacity(7 * kMiB);
  EXPECT_FALSE(owner.Add(64 * kKiB));  // 8 MiB are taken
  for (uint64_t tag = 1; tag < 65; tag += 2) owner.Remove(tag);
  EXPECT_EQ(owner.Fill(64 * kKiB), 16u);  // 6 MiB were
  EXPECT_EQ(pool.usage().used_bytes, 7 * kMiB);
  pool.CheckInvariants();
}

// Random gaps, then a capacity that no extent boundary meets.
TEST(SlotPoolResizeTest, HostMemoryKeepsExactlyWhatFits) {
  const std::unique_ptr<DeviceMemory> host = MakeHostMemory();
  FaultyDeviceMemory device(host.get());
  SlotPool pool(&device, 100 * 64 * kKiB);
  PoolOwner owner(&pool);
  ASSERT_EQ(owner.Fill(64 * kKiB), 100u);
  for (uint64_t tag = 3; tag < 100; tag += 7) owner.Remove(tag);
  const uint64_t before = owner.entries().size();
  EXPECT_EQ(owner.Shrink(50 * 64 * kKiB), before - 50);
  EXPECT_EQ(owner.entries().size(), 50u);
  EXPECT_EQ(device.taken_bytes(), 50 * 64 * kKiB);
  EXPECT_TRUE(owner.AllIntact());
  EXPECT_GT(owner.moves(), 0u);
  pool.CheckInvariants();
  EXPECT_FALSE(owner.Add(64 * kKiB));
  pool.SetCapacity(100 * 64 * kKiB);
  EXPECT_EQ(owner.Fill(64 * kKiB), 50u);
  EXPECT_TRUE(owner.AllIntact());
  EXPECT_LE(device.TakePeak(), 100 * 64 * kKiB);
}

TEST(SlotPoolResizeTest, OtherMemoryLosesLessThanAnExtent) {
  FakeDeviceMemory device;
  SlotPool pool(&device, 64 * kMiB);
  PoolOwner owner(&pool, /*content=*/false);
  owner.Fill(64 * kKiB);
  owner.Shrink(20 * kMiB + 512 * kKiB);
  EXPECT_LE(device.taken_bytes(), 20 * kMiB + 512 * kKiB);
  const uint64_t kept = owner.entries().size();
  EXPECT_LE(kept, 328u);
  EXPECT_GT(kept, 328u - 64);
  EXPECT_EQ(owner.Fill(64 * kKiB), 328 - kept);
  pool.CheckInvariants();
}

TEST(SlotPoolResizeTest, ManyClassesShrinkWithoutLosingWhatFits) {
  const std::unique_ptr<DeviceMemory> host = MakeHostMemory();
  FaultyDeviceMemory device(host.get());
  SlotPool pool(&device, 40 * kMiB);
  PoolOwner owner(&pool);
  const uint64_t sizes[] = {64 * kKiB, 40 * kKiB, 256 * kKiB};
  for (uint64_t i = 0; owner.Add(sizes[i % 3]);) ++i;
  owner.Shrink(17 * kMiB);
  // What left was the oldest, down to the limit and no further.
  EXPECT_GT(pool.usage().used_bytes, 17 * kMiB - 256 * kKiB);
  EXPECT_LE(device.taken_bytes(), 17 * kMiB);
  EXPECT_TRUE(owner.AllIntact());
  pool.CheckInvariants();
}

// Drains

class SlotPoolDrainTest : public testing::Test {
 protected:
  FakeDeviceMemory device_;
  SlotPool pool_{&device_, 4 * kSmallExtent};
  PoolOwner owner_{&pool_, /*content=*/false};
};

TEST_F(SlotPoolDrainTest, TakesTheExtentWithTheLeastToMove) {
  owner_.Fill(kSmallSlot);
  const uint32_t second = owner_.entries().at(16).slot.extent;
  for (uint64_t tag : {1, 2, 3, 17, 18, 19, 20, 21, 22, 33, 34, 35, 36, 50, 51, 52, 53}) {
    owner_.Remove(tag);
  }
  const std::optional<SlotPool::Drain> drain = pool_.BeginDrain(kOtherSlot);
  ASSERT_TRUE(drain);
  EXPECT_EQ(drain->extent, second);
  EXPECT_EQ(drain->live.size(), 10u);
  for (const SlotPool::Drain::Live& live : drain->live) {
    EXPECT_EQ(owner_.entries().at(live.owner).slot, live.slot);
    EXPECT_EQ(live.bytes, kSmallSlot);
  }
  // 11 free slots elsewhere, none of them in the draining extent.
  for (int i = 0; i < 11; ++i) {
    ASSERT_TRUE(owner_.Add(kSmallSlot));
    EXPECT_NE(owner_.entries().rbegin()->second.slot.extent, second);
  }
  EXPECT_FALSE(owner_.Add(kSmallSlot));
  pool_.CheckInvariants();
  pool_.EndDrain(drain->extent);  // not empty: serves again
  EXPECT_EQ(owner_.Fill(kSmallSlot), 6u);
  pool_.CheckInvariants();
}

TEST_F(SlotPoolDrainTest, IsNotOfferedWhereThereIsNoRoomToMove) {
  owner_.Fill(kSmallSlot);
  for (uint64_t tag = 0; tag < 64; tag += 5) owner_.Remove(tag);  // 13 free, extents have 16 slots
  EXPECT_FALSE(pool_.BeginDrain(kOtherSlot));
  for (uint64_t tag = 1; tag < 16; tag += 5) owner_.Remove(tag);
  EXPECT_TRUE(owner_.DrainOne(kOtherSlot));
  EXPECT_EQ(owner_.Fill(kOtherSlot), kSmallExtent / kOtherSlot);
  pool_.CheckInvariants();
}

TEST_F(SlotPoolDrainTest, IsNotOfferedForTheWantedClassItself) {
  owner_.Fill(kSmallSlot);
  for (uint64_t tag = 0; tag < 64; tag += 2) owner_.Remove(tag);
  EXPECT_FALSE(pool_.BeginDrain(kSmallSlot));
  EXPECT_FALSE(pool_.BeginDrain(kSmallSlot - 5));  // the same stride
  EXPECT_TRUE(owner_.DrainOne(kSmallSlot - 256));
}

TEST_F(SlotPoolDrainTest, LeavesExtentsAloneThatAreBeingFilled) {
  std::vector<Slot> filling;  // one in each extent
  for (int i = 0; i < 4; ++i) {
    for (int slot = 0; slot < 15; ++slot) owner_.Add(kSmallSlot);
    filling.push_back(pool_.Allocate(kSmallSlot));
  }
  while (owner_.entries().size() > 4) owner_.RemoveOldest();
  EXPECT_FALSE(pool_.BeginDrain(kOtherSlot));
  pool_.SetOwner(filling[2].id(), 7);
  const std::optional<SlotPool::Drain> drain = pool_.BeginDrain(kOtherSlot);
  ASSERT_TRUE(drain);
  EXPECT_EQ(drain->extent, filling[2].id().extent);
  pool_.EndDrain(drain->extent);
  pool_.SetOwner(filling[2].id(), SlotPool::kNoOwner);
  EXPECT_FALSE(pool_.BeginDrain(kOtherSlot));
}

TEST_F(SlotPoolDrainTest, FreedUnderDrainCounts) {
  owner_.Fill(kSmallSlot);
  while (owner_.entries().size() > 20) owner_.RemoveOldest();
  const std::optional<SlotPool::Drain> drain = pool_.BeginDrain(kOtherSlot);
  ASSERT_TRUE(drain);
  for (const SlotPool::Drain::Live& live : drain->live) owner_.Remove(live.owner);
  pool_.CheckInvariants();
  pool_.EndDrain(drain->extent);
  EXPECT_TRUE(owner_.Add(kOtherSlot));
  pool_.CheckInvariants();
}

TEST_F(SlotPoolDrainTest, TwoAtOnceDoNotCountTheSameRoom) {
  owner_.Fill(kSmallSlot);
  // 12 taken in each extent: 16 free, so one extent can be emptied, not two.
  for (uint64_t tag = 0; tag < 64; tag += 4) owner_.Remove(tag);
  const std::optional<SlotPool::Drain> first = pool_.BeginDrain(kOtherSlot);
  ASSERT_TRUE(first);
  EXPECT_FALSE(pool_.BeginDrain(kOtherSlot));
  pool_.EndDrain(first->extent);
}

TEST_F(SlotPoolDrainTest, MakesRoomForASlotLargerThanAnExtent) {
  owner_.Fill(kSmallSlot);
  while (owner_.entries().size() > 20) owner_.RemoveOldest();
  while (!owner_.Add(3 * kSmallExtent)) {
    if (!owner_.DrainOne(3 * kSmallExtent)) owner_.RemoveOldest();
  }
  EXPECT_EQ(owner_.entries().size(), 17u);  // 16 small ones fill the extent that is left
  EXPECT_LE(device_.peak_bytes(), 4 * kSmallExtent);
  pool_.CheckInvariants();
}

// Threads

TEST(SlotPoolThreadsTest, AllocateFreeResizeAndPrefaultTogether) {
  const std::unique_ptr<DeviceMemory> host = MakeHostMemory();
  FaultyDeviceMemory device(host.get());
  SlotPool pool(&device, 12 * kMiB);
  constexpr int kThreads = 4;
  std::array<uint64_t, kThreads> added{};
  {
    ThreadPool threads(kThreads + 1);
    for (int t = 0; t < kThreads; ++t) {
      threads.Run([&pool, &added, t] {
        const uint64_t sizes[] = {64 * kKiB, 40000, 300000};
        PoolOwner owner(&pool);
        for (uint64_t i = 0; added[t] < 300; ++i) {
          const bool got = owner.Add(sizes[(i + t) % 3]);
          added[t] += got;
          const bool enough = owner.entries().size() > 20;
          if ((!got || enough) && !owner.entries().empty()) owner.RemoveOldest();
        }
      });
    }
    threads.Run([&pool] {
      for (uint64_t i = 0; i < 40; ++i) {
        pool.SetCapacity((4 + i % 9) * kMiB);
        (void)pool.Prefault(nullptr);  // fails when a smaller limit comes between
      }
      pool.SetCapacity(12 * kMiB);
    });
  }
  for (const uint64_t n : added) EXPECT_EQ(n, 300u);
  pool.CheckInvariants();
  EXPECT_EQ(pool.usage().taken_slots, 0u);
  EXPECT_LE(device.TakePeak(), 12 * kMiB);
}

// What another thread does while the pool is in the device's Allocate.
class SlotPoolMeanwhileTest : public testing::Test {
 protected:
  // The device goes on when `other` has returned, or, where it `may_wait`, clearly does.
  void Meanwhile(bool may_wait, std::function<void()> other) {
    device_.OnAllocate([this, may_wait, other = std::move(other)] {
      thread_.Run([this, other] {
        other();
        MutexLock lock(mutex_);
        returned_ = true;
        wake_.NotifyAll();
      });
      MutexLock lock(mutex_);
      while (!returned_) {
        if (!wake_.WaitFor(mutex_, std::chrono::milliseconds(50)) && may_wait) return;
      }
    });
  }
  void AwaitOther() {
    MutexLock lock(mutex_);
    while (!returned_) wake_.Wait(mutex_);
  }

  static constexpr uint64_t kTwoSlots = 2 * kSmallSlot;

  FakeDeviceMemory memory_;
  FaultyDeviceMemory device_{&memory_};
  SlotPool pool_{&device_, kTwoSlots};
  Mutex mutex_;
  CondVar wake_;
  bool returned_ KVTIER_GUARDED_BY(mutex_) = false;
  ThreadPool thread_{1};
};

TEST_F(SlotPoolMeanwhileTest, AllocateWaitsForAnothersMemoryInsteadOfSeeingAFullPool) {
  Slot theirs;
  Meanwhile(true, [this, &theirs] { theirs = pool_.Allocate(kSmallSlot); });
  const Slot ours = pool_.Allocate(kSmallSlot);
  AwaitOther();
  EXPECT_TRUE(ours);
  EXPECT_TRUE(theirs);
  EXPECT_FALSE(pool_.Allocate(kSmallSlot));
}

TEST_F(SlotPoolMeanwhileTest, AllocateWaitsForWhatPrefaultIsTaking) {
  Slot theirs;
  Meanwhile(true, [this, &theirs] { theirs = pool_.Allocate(kTwoSlots); });
  EXPECT_TRUE(pool_.Prefault(nullptr).ok());
  AwaitOther();
  EXPECT_TRUE(theirs);
}

TEST_F(SlotPoolMeanwhileTest, SetCapacityGivesBackWhatWasBeingTaken) {
  Meanwhile(true, [this] { pool_.SetCapacity(kSmallSlot); });
  EXPECT_TRUE(pool_.Prefault(nullptr).ok());
  AwaitOther();
  EXPECT_FALSE(pool_.OverCapacity());
  EXPECT_LE(device_.taken_bytes(), kSmallSlot);
}

TEST_F(SlotPoolMeanwhileTest, SlotsAreReadAndFreedWithoutWaitingForTheDevice) {
  const SlotId first = pool_.Allocate(kSmallSlot / 2).Release();
  uint64_t seen = 0;
  pool_.SetCapacity(4 * kTwoSlots);
  Meanwhile(false, [this, first, &seen] {
    seen = pool_.Bytes(first).size();
    pool_.Free(first);
  });
  EXPECT_TRUE(pool_.Allocate(kTwoSlots));  // hangs where they wait
  AwaitOther();
  EXPECT_EQ(seen, kSmallSlot / 2);
}

}  // namespace
}  // namespace kvtier
