// A Tier over one SlotPool: RAM over HostMemory, GPU over CudaMemory.
#pragma once

#include <memory>

#include "gpu/slot_pool.h"
#include "storage/tier.h"

namespace kvtier {

// Location is a packed SlotId. Besides Tier it gives access to slots in place, which is what lets a
// Store land its payload where it stays and a Fetch stream it from there. Thread-safe.
class MemoryTier final : public Tier {
 public:
  // `device` must outlive the tier.
  MemoryTier(TierKind kind, DeviceMemory* device, uint64_t capacity_bytes);

  TierKind kind() const override { return kind_; }
  void Write(std::span<WriteOp> ops, TimePoint deadline) override;
  void Read(std::span<ReadOp> ops, TimePoint deadline) override;
  void Erase(std::span<const Location> locations) override;
  TierUsage usage() const override;
  void SetCapacity(uint64_t bytes) override;
  uint64_t BlocksFor(std::span<const uint64_t> part_bytes, uint64_t identity_bytes) const override;

  // A slot to fill; empty when there is no room.
  Slot Allocate(uint64_t bytes, MemoryDomain domain = {}) { return pool_.Allocate(bytes, domain); }
  // A filled slot becomes a location.
  Location Commit(Slot slot, uint64_t owner);
  std::span<std::byte> Bytes(Location location) const;
  SlotPool::Place Locate(Location location) const { return pool_.Locate(ToSlot(location)); }

  SlotPool& pool() { return pool_; }
  const SlotPool& pool() const { return pool_; }
  static Location ToLocation(SlotId id) { return uint64_t{id.extent} << 32 | id.index; }
  static SlotId ToSlot(Location location) {
    return SlotId{static_cast<uint32_t>(location >> 32), static_cast<uint32_t>(location)};
  }

 private:
  const TierKind kind_;
  SlotPool pool_;
};

}  // namespace kvtier
