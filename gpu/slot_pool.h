// All of a tier's big memory, in extents that are cut into equal slots.
//
// Models of different part sizes share one pool: an extent serves one size class (slot stride) at a
// time, and an empty extent can change its class. Capacity is a limit on the bytes taken from the
// device, never exceeded, and changes live. Which block leaves is not decided here: the owner of the
// pool empties an extent (BeginDrain, move or free its live slots) and the pool gives it back.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

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

// Thread-safe; its lock is a leaf (it calls nobody but DeviceMemory while held).
class SlotPool {
 public:
  static constexpr uint64_t kStrideAlignment = 256;  // slot strides are multiples of this
  // An owner tag: what the pool's owner wants to know of a live slot when its extent drains.
  using OwnerTag = uint64_t;
  static constexpr OwnerTag kNoOwner = UINT64_MAX;  // taken, not committed: cannot be moved

  struct Usage {
    uint64_t capacity_bytes = 0;  // the limit
    uint64_t backed_bytes = 0;    // taken from the device
    uint64_t used_bytes = 0;      // in taken slots (strides)
    uint64_t taken_slots = 0;
    uint64_t extents = 0;
  };

  // `device` must outlive the pool. No memory is taken yet.
  SlotPool(DeviceMemory* device, uint64_t capacity_bytes);
  // Every slot must have been freed.
  ~SlotPool();
  SlotPool(const SlotPool&) = delete;
  SlotPool& operator=(const SlotPool&) = delete;

  // Takes the whole capacity from the device now, so that no store pays for first touch. `progress`
  // (may be null) hears the bytes taken so far. Errors: RESOURCE_EXHAUSTED; what was taken stays.
  absl::Status Prefault(void (*progress)(uint64_t done, uint64_t total));

  // A slot of `bytes`, or empty when the pool has none for that size class without draining.
  // REQUIRES: bytes > 0.
  Slot Allocate(uint64_t bytes);
  void Free(SlotId id);
  std::span<std::byte> Bytes(SlotId id) const;
  void SetOwner(SlotId id, OwnerTag owner);

  // Slots of `bytes` that a lone size class would get out of `capacity` bytes.
  static uint64_t SlotsFor(uint64_t capacity_bytes, uint64_t bytes);

  // A lower limit takes effect at once for allocations; the memory above it goes back as extents empty
  // (all-free ones before this returns).
  void SetCapacity(uint64_t capacity_bytes);
  // True when backed_bytes exceeds the capacity, so that extents must be drained.
  bool OverCapacity() const;

  // Picks an extent whose live slots can all move to free slots of the same class elsewhere (a class
  // needing no move counts), preferring the fewest to move; for `wanted_bytes` > 0 only extents of
  // other classes. Stops allocating from it. Returns its live slots with their owners (kNoOwner ones
  // cannot move: then the extent is not picked). Empty when there is none.
  struct Drain {
    uint32_t extent = 0;
    struct Live {
      SlotId slot;
      OwnerTag owner;
      uint64_t bytes;
    };
    std::vector<Live> live;
  };
  std::optional<Drain> BeginDrain(uint64_t wanted_bytes);
  // Ends a drain. An extent that is empty by now leaves its class (and goes back to the device when the
  // pool is over capacity); one that is not serves again.
  void EndDrain(uint32_t extent);

  Usage usage() const;
  // Every slot is free or taken exactly once, and the sums agree. For tests.
  void CheckInvariants() const;
  DeviceMemory* device() const { return device_; }
};

}  // namespace kvtier
