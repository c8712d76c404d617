// A device that fails at any call leaves a pool that works and nothing lost.
#include <gtest/gtest.h>

#include "common/log.h"
#include "gpu/slot_pool.h"
#include "tests/support/faulty_device_memory.h"
#include "tests/support/open_files.h"
#include "tests/support/pool_owner.h"

namespace kvtier {
namespace {

constexpr uint64_t kKiB = 1024;
constexpr uint64_t kCapacity = 1536 * kKiB;

// Comes by every call that the pool makes of its device.
void UseEverything(SlotPool* pool, PoolOwner* owner) {
  (void)pool->Prefault(nullptr);  // may be told to fail
  owner->Fill(25000);
  while (owner->entries().size() > 25) owner->RemoveOldest();
  for (int i = 0; i < 20; ++i) {
    if (!owner->Add(75 * kKiB) && !owner->DrainOne(75 * kKiB)) break;
  }
  owner->Shrink(800 * kKiB);
  owner->Clear();
  owner->Fill(512 * kKiB);
  pool->CheckInvariants();
}

class SlotPoolFaultTest : public testing::Test {
 protected:
  void SetUp() override { SetLogLevel(LogLevel::kError); }  // it warns of each failure

  // All of the above with these calls failing, then a healthy device: true when it came to that.
  bool SurvivesFailureOf(uint64_t first, uint64_t count) {
    FaultyDeviceMemory device(host_.get());
    device.Fail(first, count);
    SlotPool pool(&device, kCapacity);
    {
      PoolOwner owner(&pool);
      UseEverything(&pool, &owner);
      EXPECT_TRUE(owner.AllIntact());
    }
    const bool failed = device.failures() > 0;
    device.Fail(0, 0);
    PoolOwner owner(&pool);
    pool.SetCapacity(kCapacity);
    EXPECT_EQ(owner.Fill(16 * kKiB), kCapacity / (16 * kKiB));
    EXPECT_TRUE(owner.AllIntact());
    pool.CheckInvariants();
    EXPECT_EQ(device.taken_bytes(), kCapacity);
    EXPECT_LE(device.TakePeak(), kCapacity);
    return failed;
  }

  void ExpectNothingLeft() const {
    const OpenFiles now = CountOpenFiles();
    EXPECT_EQ(now.count, before_.count);
    EXPECT_EQ(now.memfd_bytes, 0u);
  }

  const std::unique_ptr<DeviceMemory> host_ = MakeHostMemory();
  const OpenFiles before_ = CountOpenFiles();
};

// The use makes fewer calls than are failed here: then it was all of them.
constexpr uint64_t kCalls = 200;

TEST_F(SlotPoolFaultTest, OneCallFails) {
  uint64_t failed = 0;
  for (uint64_t call = 1; call <= kCalls && failed + 1 >= call; ++call) {
    SCOPED_TRACE(call);
    failed += SurvivesFailureOf(call, 1);
    ExpectNothingLeft();
  }
  EXPECT_GE(failed, 15u);
  EXPECT_LT(failed, kCalls);
}

TEST_F(SlotPoolFaultTest, AllCallsFailFromOneOn) {
  uint64_t failed = 0;
  for (uint64_t call = 1; call <= kCalls && failed + 1 >= call; ++call) {
    SCOPED_TRACE(call);
    failed += SurvivesFailureOf(call, UINT64_MAX);
    ExpectNothingLeft();
  }
  EXPECT_GE(failed, 15u);
  EXPECT_LT(failed, kCalls);
}

}  // namespace
}  // namespace kvtier
