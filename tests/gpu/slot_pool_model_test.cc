// Random operations on a pool, with what its owner knows as the model: every step keeps the pool's
// invariants, the capacity, all bytes, and what one domain has apart from what another can map.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <utility>

#include "gpu/shared_host_memory.h"
#include "gpu/slot_pool.h"
#include "tests/support/faulty_device_memory.h"
#include "tests/support/open_files.h"
#include "tests/support/pool_owner.h"
#include "tests/support/seed.h"

namespace kvtier {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kSizes[] = {64 << 10, 40000, 300 << 10, 1124352};

constexpr MemoryDomain kDomains[] = {{}, MemoryDomain::OfUid(0), MemoryDomain::OfUid(1000)};

// Clients of all domains, that open what they can and hold on to some of it. They know each region
// by its id, for good: memory that was one domain's may be no other's, however much later.
class Clients {
 public:
  explicit Clients(SharedHostMemory* memory) : memory_(memory) {}

  // Of a slot that was taken just now, and not written to yet.
  void See(const SlotPool::Place& place) {
    const MemoryDomain domain = place.domain;
    const auto [known, is_new] = domains_.emplace(place.region, domain);
    EXPECT_EQ(known->second, domain) << "region " << place.region;
    regions_seen_ += is_new ? 1 : 0;
    // What a client sees of a region is its own domain's alone, or nobody's.
    if (is_new) {
      const std::byte* const begin = place.bytes.data() - place.offset;
      const uint64_t bytes = memory_->Open(place.region, domain)->bytes;
      EXPECT_TRUE(std::all_of(begin, begin + bytes, [](std::byte b) { return b == std::byte{}; }));
    }
    for (const MemoryDomain client : kDomains) {
      absl::StatusOr<SharedHostMemory::OpenedRegion> opened = memory_->Open(place.region, client);
      EXPECT_EQ(opened.ok(), client == domain) << "region " << place.region;
      if (opened.ok() && place.region % 2 == 0) held_[place.region] = std::move(*opened);
    }
  }
  uint64_t regions_seen() const { return regions_seen_; }

 private:
  SharedHostMemory* const memory_;
  std::map<uint64_t, MemoryDomain> domains_;
  std::map<uint64_t, SharedHostMemory::OpenedRegion> held_;
  uint64_t regions_seen_ = 0;
};

class PoolRun {
 public:
  // `shared`: `memory`, if others may map it; then there are several domains.
  PoolRun(uint64_t seed, DeviceMemory* memory, SharedHostMemory* shared = nullptr)
      : random_(seed), device_(memory), pool_(&device_, 8 * kMiB) {
    if (shared == nullptr) return;
    clients_.emplace(shared);
    owner_.OnSlot([this](SlotId slot) { clients_->See(pool_.Locate(slot)); });
  }

  void Step() {
    const uint64_t size = kSizes[Pick(4)];
    const MemoryDomain domain = clients_ ? kDomains[Pick(3)] : MemoryDomain();
    switch (Pick(12)) {
      case 0:
        Resize();
        break;
      case 1:
        while (Add(size, domain)) {
        }
        break;
      case 2:
        RemoveSome(owner_.entries().size() / 2);
        break;
      case 3:
        drains_ += owner_.DrainOne(size, domain);
        break;
      case 4:
        EXPECT_TRUE(pool_.Prefault(nullptr).ok());
        break;
      case 5:
        BeginOrEndDrain(size, domain);
        break;
      case 6:
      case 7:
      case 8:
        RemoveSome(1 + Pick(4));
        break;
      default:
        Add(size, domain);
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
    if (clients_) {
      EXPECT_GT(clients_->regions_seen(), 100u);
    }
  }

 private:
  uint64_t Pick(uint64_t n) { return random_() % n; }

  bool Add(uint64_t size, MemoryDomain domain) {
    const bool added = owner_.Add(size, domain);
    adds_ += added ? 1 : 0;
    return added;
  }

  void Check() {
    pool_.CheckInvariants();
    const SlotPool::Usage usage = pool_.usage();
    EXPECT_EQ(usage.backed_bytes, device_.taken_bytes());
    EXPECT_EQ(usage.taken_slots, owner_.entries().size());
    EXPECT_LE(device_.TakePeak(), std::max(limit_, usage.capacity_bytes));
    if (!pool_.OverCapacity()) limit_ = usage.capacity_bytes;
    if (owner_.entries().empty()) return;
    const uint64_t tag = RandomTag();
    EXPECT_TRUE(owner_.Intact(tag));
    const PoolOwner::Entry& entry = owner_.entries().at(tag);
    EXPECT_EQ(pool_.Locate(entry.slot).domain, entry.domain);
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
    if (pool_.device()->truncatable() &&
        used + pool_.usage().extents * DeviceMemory::kRegionGranule <= capacity) {
      EXPECT_EQ(removed, 0u);
    }
  }

  // A drain that stays open over other steps.
  void BeginOrEndDrain(uint64_t size, MemoryDomain domain) {
    if (open_drain_) return EndDrain();
    const std::optional<SlotPool::Drain> drain = pool_.BeginDrain(size, domain);
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
  std::optional<Clients> clients_;
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

TEST(SlotPoolModelTest, DomainsStayApart) {
  if (const absl::Status supported = SharedHostMemory::Supported(); !supported.ok()) {
    GTEST_SKIP() << supported.message();
  }
  const uint64_t seed = TestSeed();
  const std::unique_ptr<SharedHostMemory> host = MakeSharedHostMemory(UINT64_MAX);
  for (uint64_t round = 0; round < 3; ++round) {
    SCOPED_TRACE(round);
    {
      PoolRun run(seed + round, host.get(), host.get());
      for (int step = 0; step < 800 && !testing::Test::HasFailure(); ++step) {
        SCOPED_TRACE(step);
        run.Step();
      }
      run.Finish();
    }
    EXPECT_EQ(host->retired().bytes, 0u);
  }
  EXPECT_EQ(CountOpenFiles().memfd_bytes, 0u);
}

}  // namespace
}  // namespace kvtier
