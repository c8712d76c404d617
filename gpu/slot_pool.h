// All of a tier's big memory, in extents that are cut into equal slots.
//
// Models of different part sizes, and domains that must not see each other's bytes, share one pool:
// an extent serves one class (slot stride and domain) at a time, and an empty extent can change its
// class. Memory that was in use goes from one domain to another only by way of the system: it is
// freed and taken anew, so that neither those who had mapped it nor those who will see what is not
// theirs. Capacity is a limit on the bytes taken from the device, never exceeded, and changes live.
// Which block leaves is not decided here: the owner of the pool empties an extent (BeginDrain, move
// or free its live slots) and the pool gives it back.
//
// An extent is about capacity / 16, at least 64 KiB and at most 64 MiB, and its region is as large
// as its slots: what that saves goes into further extents. So a class that has the pool for itself
// gets all slots that fit, save for rounding strides to 256 bytes and extents to 4 KiB.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/mutex.h"
#include "common/status.h"
#include "gpu/device_memory.h"

namespace kvtier {

// Names a taken slot: (extent, index). Stays valid until freed.
struct SlotId {
  uint32_t extent = UINT32_MAX;
  uint32_t index = 0;
  friend bool operator==(const SlotId&, const SlotId&) = default;
};

class SlotPool;

// A taken slot that frees itself: what a fill holds before it is committed. Move-only.
class Slot {
 public:
  Slot() = default;
  Slot(SlotPool* pool, SlotId id, std::span<std::byte> bytes)
      : pool_(pool), id_(id), bytes_(bytes) {}
  Slot(Slot&& other) noexcept;
  Slot& operator=(Slot&& other) noexcept;
  ~Slot();

  explicit operator bool() const { return pool_ != nullptr; }
  SlotId id() const { return id_; }
  std::span<std::byte> bytes() const { return bytes_; }  // exactly the bytes asked for
  // The caller takes over: it must SlotPool::Free(id) one day.
  SlotId Release();

 private:
  SlotPool* pool_ = nullptr;
  SlotId id_;
  std::span<std::byte> bytes_;
};

// Thread-safe; its lock is a leaf, and is not held while the device is called.
class SlotPool {
 public:
  static constexpr uint64_t kStrideAlignment = 256;  // slot strides are multiples of this
  // An owner tag: what the pool's owner wants to know of a live slot when its extent drains.
  using OwnerTag = uint64_t;
  static constexpr OwnerTag kNoOwner = UINT64_MAX;  // taken, not committed: cannot be moved

  struct DomainUsage {
    MemoryDomain domain;
    uint64_t backed_bytes = 0;  // in extents
    uint64_t used_bytes = 0;    // in taken slots (strides)
  };
  struct Usage {
    uint64_t capacity_bytes = 0;  // the limit
    uint64_t backed_bytes = 0;    // taken from the device
    uint64_t used_bytes = 0;      // in taken slots (strides)
    uint64_t taken_slots = 0;
    uint64_t extents = 0;  // of any class, and of none yet
  };

  // `device` must outlive the pool. No memory is taken yet.
  SlotPool(DeviceMemory* device, uint64_t capacity_bytes);
  // Every slot must have been freed, every drain ended.
  ~SlotPool();
  SlotPool(const SlotPool&) = delete;
  SlotPool& operator=(const SlotPool&) = delete;

  using Progress = std::function<void(uint64_t done_bytes, uint64_t total_bytes)>;
  // Takes the whole capacity from the device now, so that no store pays for first touch; again
  // after SetCapacity, the rest. `progress` (may be null) hears the bytes taken so far, on the
  // caller's thread. Errors: RESOURCE_EXHAUSTED; what was taken stays.
  absl::Status Prefault(const Progress& progress) KVTIER_EXCLUDES(mutex_);

  // A slot of `bytes`, or empty when the pool has none for that class without draining. Waits for
  // the device only where the pool is not prefaulted, or memory was another domain's. REQUIRES:
  // bytes > 0.
  Slot Allocate(uint64_t bytes, MemoryDomain domain = {}) KVTIER_EXCLUDES(mutex_);
  void Free(SlotId id) KVTIER_EXCLUDES(mutex_);
  // Where a slot lies. `offset` is that of its first byte in the region.
  struct Place {
    std::span<std::byte> bytes;
    uint64_t region = 0;  // Region::id
    uint64_t offset = 0;
    MemoryDomain domain;
  };
  // Of a taken slot, exactly the bytes asked for. They stay where they are until it is freed.
  Place Locate(SlotId id) const KVTIER_EXCLUDES(mutex_);
  std::span<std::byte> Bytes(SlotId id) const KVTIER_EXCLUDES(mutex_);
  // The same, but empty when `id` is no taken slot.
  std::span<std::byte> Find(SlotId id) const KVTIER_EXCLUDES(mutex_);
  void SetOwner(SlotId id, OwnerTag owner) KVTIER_EXCLUDES(mutex_);

  // Whether a slot of `bytes` can be had at all, with everything else gone.
  bool CanHold(uint64_t bytes) const KVTIER_EXCLUDES(mutex_);
  // Slots of `bytes` that a lone size class would get out of `capacity` bytes.
  static uint64_t SlotsFor(uint64_t capacity_bytes, uint64_t bytes);
  // How often slots of all these sizes together would be had, taken in this order.
  static uint64_t SetsFor(uint64_t capacity_bytes, std::span<const uint64_t> bytes);

  // A lower limit takes effect at once for allocations: taken slots outside of drains do not grow
  // beyond it. The memory above it goes back as extents empty (all-free ones before this returns).
  void SetCapacity(uint64_t capacity_bytes) KVTIER_EXCLUDES(mutex_);
  // True when backed_bytes exceeds the capacity, so that extents must be drained.
  bool OverCapacity() const KVTIER_EXCLUDES(mutex_);

  // Picks slots of one extent whose live ones can all move to free slots of the same class
  // elsewhere, preferring the least to move; for `wanted_bytes` > 0 only extents of other classes
  // than those bytes and `domain` have.
  // They are all of the extent's slots, or those at its end when the pool is over capacity by less
  // and the device can truncate. Stops allocating them. Returns the live ones with their owners
  // (kNoOwner ones cannot move: then the extent is not picked). Empty when there is none: free
  // slots, then ask again. Over capacity that is so while taken slots exceed the capacity, and then
  // it takes no more than freeing down to it.
  struct Drain {
    uint32_t extent = 0;
    struct Live {
      SlotId slot;
      OwnerTag owner;
      uint64_t bytes;
    };
    std::vector<Live> live;
    MemoryDomain domain;  // where they can go
  };
  std::optional<Drain> BeginDrain(uint64_t wanted_bytes, MemoryDomain domain = {})
      KVTIER_EXCLUDES(mutex_);
  // Ends a drain; each begun one must be ended. Where all its slots are free by now, a whole extent
  // leaves its class, and when the pool is over capacity the memory goes back to the device.
  // Otherwise the slots serve again.
  void EndDrain(uint32_t extent) KVTIER_EXCLUDES(mutex_);

  Usage usage() const KVTIER_EXCLUDES(mutex_);
  // Of the domains that have extents, in the order of their values.
  std::vector<DomainUsage> UsageByDomain() const KVTIER_EXCLUDES(mutex_);
  // Every slot is free or taken exactly once, and the sums agree. For tests.
  void CheckInvariants() const KVTIER_EXCLUDES(mutex_);
  DeviceMemory* device() const { return device_; }

 private:
  // Extents with a free slot are kept by how full they are, so that the fullest is filled first and
  // the others get a chance to empty. List 0 has the empty ones.
  static constexpr int kFillLists = 9;
  static constexpr int8_t kNotListed = -1;
  static constexpr uint16_t kFreeSlot = UINT16_MAX;

  struct Class {
    uint64_t stride = 0;
    MemoryDomain domain;
    friend bool operator==(const Class&, const Class&) = default;
    template <typename H>
    friend H AbslHashValue(H hash, const Class& key) {
      return H::combine(std::move(hash), key.stride, key.domain);
    }
  };
  enum class ExtentState : uint8_t { kVacant, kServing, kDraining };
  struct Extent {
    ExtentState state = ExtentState::kVacant;  // kVacant: this id names no extent
    int8_t list = kNotListed;                  // which of its class's fill lists it is in
    uint32_t list_position = 0;
    Region region;
    uint64_t stride = 0;
    MemoryDomain domain;
    uint32_t slots = 0;
    uint32_t live = 0;
    uint32_t unowned = 0;          // taken with kNoOwner
    uint32_t drain_from = 0;       // under drain: the slots from this one on
    uint32_t drain_live = 0;       // the taken ones of them
    std::vector<uint32_t> free;    // slots to give out, last in first out
    std::vector<uint16_t> slack;   // per slot: stride less the bytes asked for, or kFreeSlot
    std::vector<OwnerTag> owners;  // per slot

    Class key() const { return {stride, domain}; }
  };
  struct SizeClass {
    uint32_t extents = 0;
    uint64_t free_slots = 0;  // to give out
    uint64_t drain_live = 0;  // taken, under drain: they will want as many free slots
    std::array<std::vector<uint32_t>, kFillLists> lists;
  };
  // Memory in no class.
  struct Stock {
    Region region;
    std::optional<MemoryDomain> domain;  // that has used it; none: it is as the device gave it
    bool Suits(MemoryDomain other) const { return !domain.has_value() || *domain == other; }
  };
  // An extent to be: where its memory comes from.
  struct Growth {
    Class key;
    uint32_t slots = 0;
    uint64_t bytes = 0;
    Region base;                   // resized to `bytes`; none: allocated
    std::vector<Region> given_up;  // freed first, to stay within the capacity
    uint64_t held_bytes = 0;       // what of backed_bytes_ stands for all this until it is done
  };
  struct Candidate {
    uint32_t extent = 0;
    uint32_t drain_from = 0;
    uint64_t moved_bytes = 0;
    uint64_t freed_bytes = 0;
  };

  // The ones that call the device unlock meanwhile.
  bool Admits(uint64_t stride) const KVTIER_REQUIRES(mutex_);
  uint64_t Excess() const KVTIER_REQUIRES(mutex_);
  Slot TakeFree(const Class& key, uint64_t bytes) KVTIER_REQUIRES(mutex_);
  std::optional<Growth> PlanGrowth(const Class& key) KVTIER_REQUIRES(mutex_);
  bool Grow(const Growth& growth) KVTIER_REQUIRES(mutex_);
  void Install(const Growth& growth, const Region& region) KVTIER_REQUIRES(mutex_);
  Region TakeStock(uint64_t wanted, std::optional<MemoryDomain> domain) KVTIER_REQUIRES(mutex_);
  void ReclaimEmpty(const Class& except, uint64_t bytes) KVTIER_REQUIRES(mutex_);
  Stock Detach(uint32_t extent) KVTIER_REQUIRES(mutex_);
  void AddStock(const Stock& stock) KVTIER_REQUIRES(mutex_);
  void ReleaseExcess() KVTIER_REQUIRES(mutex_);
  void Release(std::span<const Region> regions) KVTIER_REQUIRES(mutex_);
  void Relist(uint32_t extent) KVTIER_REQUIRES(mutex_);
  const Extent* FindTaken(SlotId id) const KVTIER_REQUIRES(mutex_);
  Extent& Taken(SlotId id) KVTIER_REQUIRES(mutex_);
  absl::StatusOr<bool> PrefaultOne() KVTIER_EXCLUDES(mutex_);
  absl::Status PrefaultRest(const Progress& progress) KVTIER_EXCLUDES(mutex_);
  std::optional<uint32_t> DrainStart(const Extent& extent, bool whole) const
      KVTIER_REQUIRES(mutex_);
  std::optional<Candidate> Consider(uint32_t id, bool whole) const KVTIER_REQUIRES(mutex_);
  Drain StartDrain(const Candidate& candidate) KVTIER_REQUIRES(mutex_);
  void CutTail(uint32_t extent) KVTIER_REQUIRES(mutex_);
  void Serve(uint32_t extent) KVTIER_REQUIRES(mutex_);
  void CheckExtent(uint32_t id) const KVTIER_REQUIRES(mutex_);

  // Constant.
  DeviceMemory* const device_;

  // Guarded. backed_bytes_ is charged before memory is taken and relieved after it was given back.
  mutable Mutex mutex_;
  CondVar changed_;  // growing_ ended or in_flight_ fell
  uint64_t capacity_ KVTIER_GUARDED_BY(mutex_);
  uint64_t backed_bytes_ KVTIER_GUARDED_BY(mutex_) = 0;
  uint64_t leaving_bytes_ KVTIER_GUARDED_BY(mutex_) = 0;  // being given back, of backed_bytes_
  uint64_t used_bytes_ KVTIER_GUARDED_BY(mutex_) = 0;
  uint64_t draining_bytes_ KVTIER_GUARDED_BY(mutex_) = 0;  // in taken slots under drain, of used
  uint64_t taken_slots_ KVTIER_GUARDED_BY(mutex_) = 0;
  bool growing_ KVTIER_GUARDED_BY(mutex_) = false;  // an Allocate takes memory; others wait for it
  int in_flight_ KVTIER_GUARDED_BY(mutex_) = 0;     // device calls whose end others may wait for
  bool refused_ KVTIER_GUARDED_BY(mutex_) = false;  // the device's last answer, so as to log once
  bool truncates_ KVTIER_GUARDED_BY(mutex_);        // the device can, and never failed to
  std::deque<Extent> extents_ KVTIER_GUARDED_BY(mutex_);
  std::vector<uint32_t> vacant_ KVTIER_GUARDED_BY(mutex_);
  absl::flat_hash_map<Class, SizeClass> classes_ KVTIER_GUARDED_BY(mutex_);
  std::vector<Stock> stock_ KVTIER_GUARDED_BY(mutex_);  // populated
  uint64_t stock_bytes_ KVTIER_GUARDED_BY(mutex_) = 0;
};

}  // namespace kvtier
