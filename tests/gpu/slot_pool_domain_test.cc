// Domains in one pool: each has its own extents, and memory goes from one to another only by way of
// the system.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "gpu/shared_host_memory.h"
#include "gpu/slot_pool.h"
#include "tests/support/pool_owner.h"

namespace kvtier {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kExtents = 8;
constexpr uint64_t kCapacity = kExtents * kMiB / 16;  // 64 KiB extents
constexpr uint64_t kSlot = 16 << 10;
constexpr uint64_t kExtent = 64 << 10;
constexpr uint64_t kSlots = kCapacity / kSlot;
constexpr MemoryDomain kOne = MemoryDomain::OfUid(1000);
constexpr MemoryDomain kOther = MemoryDomain::OfUid(1001);

class SlotPoolDomainTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const absl::Status supported = SharedHostMemory::Supported(); !supported.ok()) {
      GTEST_SKIP() << supported.message();
    }
  }
  SlotPool::Place PlaceOf(const Slot& slot) const { return pool_.Locate(slot.id()); }
  SlotPool::DomainUsage UsageOf(MemoryDomain domain) const {
    for (const SlotPool::DomainUsage& usage : pool_.UsageByDomain()) {
      if (usage.domain == domain) return usage;
    }
    return {domain, 0, 0};
  }
  // Has every region of the pool's slots of `owner` open, as a client of `domain`.
  std::vector<SharedHostMemory::OpenedRegion> OpenAll(const PoolOwner& owner, MemoryDomain domain) {
    std::vector<SharedHostMemory::OpenedRegion> out;
    for (const auto& [tag, entry] : owner.entries()) {
      out.push_back(*memory_->Open(pool_.Locate(entry.slot).region, domain));
    }
    return out;
  }

  const std::unique_ptr<SharedHostMemory> memory_ = MakeSharedHostMemory(kExtent);
  SlotPool pool_{memory_.get(), kCapacity};
};

TEST_F(SlotPoolDomainTest, EachHasItsOwnExtents) {
  const Slot common = pool_.Allocate(kSlot);
  const Slot one = pool_.Allocate(kSlot, kOne);
  const Slot other = pool_.Allocate(kSlot, kOther);
  const Slot again = pool_.Allocate(kSlot, kOne);
  EXPECT_EQ(PlaceOf(one).domain, kOne);
  EXPECT_EQ(PlaceOf(common).domain, MemoryDomain());
  EXPECT_NE(PlaceOf(one).region, PlaceOf(other).region);
  EXPECT_NE(PlaceOf(one).region, PlaceOf(common).region);
  EXPECT_EQ(PlaceOf(one).region, PlaceOf(again).region);
  EXPECT_TRUE(memory_->Open(PlaceOf(one).region, kOne).ok());
  EXPECT_FALSE(memory_->Open(PlaceOf(one).region, kOther).ok());
  EXPECT_EQ(UsageOf(kOne).used_bytes, 2 * kSlot);
  EXPECT_EQ(UsageOf(kOne).backed_bytes, kExtent);
  EXPECT_EQ(UsageOf(kOther).used_bytes, kSlot);
  EXPECT_EQ(UsageOf(MemoryDomain()).used_bytes, kSlot);
  pool_.CheckInvariants();
}

TEST_F(SlotPoolDomainTest, PrefaultedMemoryServesWhoeverComesFirst) {
  ASSERT_TRUE(pool_.Prefault(nullptr).ok());
  PoolOwner owner(&pool_);
  EXPECT_EQ(owner.Fill(kSlot, kOne), kSlots);
  for (const auto& [tag, entry] : owner.entries()) {
    EXPECT_LE(pool_.Locate(entry.slot).region, kExtents);  // the first ids: none was taken anew
  }
}

TEST_F(SlotPoolDomainTest, WhatOneLeavesTheOtherGetsAsNewMemory) {
  Slot slot = pool_.Allocate(kSlot, kOne);
  const uint64_t region = PlaceOf(slot).region;
  std::ranges::fill(slot.bytes(), std::byte{0x5a});
  const absl::StatusOr<SharedHostMemory::OpenedRegion> held = memory_->Open(region, kOne);
  ASSERT_TRUE(held.ok());
  slot = Slot();

  // The same domain finds the extent as it was: with its old bytes, save where freed slots are
  // poisoned.
  slot = pool_.Allocate(kSlot, kOne);
  EXPECT_EQ(PlaceOf(slot).region, region);
  EXPECT_NE(slot.bytes()[0], std::byte{0});
  slot = Slot();

  PoolOwner owner(&pool_);
  Slot other = pool_.Allocate(kSlot, kOther);
  EXPECT_TRUE(std::ranges::all_of(other.bytes(), [](std::byte b) { return b == std::byte{0}; }));
  EXPECT_EQ(owner.Fill(kSlot, kOther), kSlots - 1);  // all of the capacity
  EXPECT_TRUE(absl::IsNotFound(memory_->Open(region, kOne).status()));
  EXPECT_TRUE(absl::IsNotFound(memory_->Open(region, kOther).status()));
  EXPECT_EQ(memory_->retired().bytes, kExtent);  // somebody still has it
  EXPECT_EQ(UsageOf(kOne).backed_bytes, 0u);
  EXPECT_EQ(pool_.usage().backed_bytes, kCapacity);
  pool_.CheckInvariants();
}

// A client that holds what was given up can keep the system from giving as much again. Then an
// extent is missing, and not one more with each try.
TEST_F(SlotPoolDomainTest, NoMoreIsGivenUpThanTheSystemGivesBack) {
  std::vector<SharedHostMemory::OpenedRegion> held;
  {
    PoolOwner owner(&pool_);
    ASSERT_EQ(owner.Fill(kSlot, kOne), kSlots);
    held = OpenAll(owner, kOne);
  }
  PoolOwner owner(&pool_);
  for (int i = 0; i < 20; ++i) owner.Fill(kSlot, kOther);
  EXPECT_EQ(UsageOf(kOther).backed_bytes, kExtent);  // until more was held than may be
  EXPECT_EQ(pool_.usage().backed_bytes, kCapacity - kExtent);
  EXPECT_EQ(owner.Fill(kSlot, kOne), kSlots - 2 * kExtent / kSlot);  // what is left serves on
  owner.Clear();
  held.clear();
  EXPECT_EQ(owner.Fill(kSlot, kOther), kSlots);
  pool_.CheckInvariants();
}

TEST_F(SlotPoolDomainTest, ADrainMovesWithinADomain) {
  PoolOwner owner(&pool_);
  ASSERT_EQ(owner.Fill(kSlot, kOne), kSlots);
  const uint64_t per_extent = kExtent / kSlot;
  // Every other slot of the first half: two half-empty extents make a free one.
  for (uint64_t tag = 0; tag < 2 * per_extent; tag += 2) owner.Remove(tag);
  EXPECT_FALSE(pool_.Allocate(kSlot, kOther));
  EXPECT_FALSE(pool_.BeginDrain(kSlot, kOne));  // it has free slots
  ASSERT_TRUE(owner.DrainOne(kSlot, kOther));
  EXPECT_GT(owner.moves(), 0u);
  EXPECT_TRUE(owner.AllIntact());
  for (const auto& [tag, entry] : owner.entries()) {
    EXPECT_EQ(pool_.Locate(entry.slot).domain, kOne);
  }
  EXPECT_EQ(owner.Fill(kSlot, kOther), per_extent);
  pool_.CheckInvariants();
}

}  // namespace
}  // namespace kvtier
