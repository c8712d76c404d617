#include "storage/memory_tier.h"

#include <utility>
#include <vector>

namespace kvtier {

MemoryTier::MemoryTier(TierKind kind, DeviceMemory* device, uint64_t capacity_bytes)
    : kind_(kind), pool_(device, capacity_bytes) {}

// One copy call for the whole batch, so that a device with a long way to it is asked once.
void MemoryTier::Write(std::span<WriteOp> ops, TimePoint /*deadline*/) {
  std::vector<Slot> slots(ops.size());
  std::vector<CopyOp> copies;
  copies.reserve(ops.size());
  for (size_t i = 0; i < ops.size(); ++i) {
    WriteOp& op = ops[i];
    if (op.from.empty()) {
      op.status = absl::InvalidArgumentError("a part of 0 bytes cannot be written; at least 1");
      continue;
    }
    slots[i] = pool_.Allocate(op.from.size());
    if (!slots[i]) {
      op.status = absl::ResourceExhaustedError(absl::StrCat(
          "tier ", std::string(TierName(kind_)), " has no free slot of ", op.from.size(),
          " bytes within its capacity of ", pool_.usage().capacity_bytes, " bytes"));
      continue;
    }
    copies.push_back({slots[i].bytes().data(), op.from.data(), op.from.size()});
  }
  if (copies.empty()) return;
  const absl::Status copied = pool_.device()->Copy(copies);
  for (size_t i = 0; i < ops.size(); ++i) {
    if (!slots[i]) continue;
    ops[i].status = copied;
    if (copied.ok()) ops[i].location = Commit(std::move(slots[i]), ops[i].owner);
  }
}

void MemoryTier::Read(std::span<ReadOp> ops, TimePoint /*deadline*/) {
  std::vector<size_t> found;
  std::vector<CopyOp> copies;
  found.reserve(ops.size());
  copies.reserve(ops.size());
  for (size_t i = 0; i < ops.size(); ++i) {
    const std::span<const std::byte> from = pool_.Find(ToSlot(ops[i].location));
    if (from.empty() || from.size() != ops[i].to.size()) {
      ops[i].status = absl::NotFoundError(absl::StrCat("tier ", std::string(TierName(kind_)),
                                                       " has no part of ", ops[i].to.size(),
                                                       " bytes at this location"));
      continue;
    }
    copies.push_back({ops[i].to.data(), from.data(), from.size()});
    found.push_back(i);
  }
  if (copies.empty()) return;
  const absl::Status copied = pool_.device()->Copy(copies);
  for (const size_t i : found) {
    ReadOp& op = ops[i];
    op.status = copied;
    // A slot may have been given to another part since: only the bytes themselves can tell.
    if (copied.ok() && PayloadChecksum(op.to.data(), op.to.size()) != op.checksum) {
      op.status =
          absl::DataLossError(absl::StrCat("tier ", std::string(TierName(kind_)),
                                           " holds other bytes at this location than were stored"));
    }
  }
}

void MemoryTier::Erase(std::span<const Location> locations) {
  for (const Location location : locations) pool_.Free(ToSlot(location));
}

TierUsage MemoryTier::usage() const {
  const SlotPool::Usage pool = pool_.usage();
  return {pool.capacity_bytes, pool.used_bytes, pool.backed_bytes};
}

void MemoryTier::SetCapacity(uint64_t bytes) { pool_.SetCapacity(bytes); }

uint64_t MemoryTier::BlocksFor(std::span<const uint64_t> part_bytes,
                               uint64_t /*identity_bytes*/) const {
  return SlotPool::SetsFor(pool_.usage().capacity_bytes, part_bytes);
}

Location MemoryTier::Commit(Slot slot, uint64_t owner) {
  const SlotId id = slot.Release();
  pool_.SetOwner(id, owner);
  return ToLocation(id);
}

std::span<std::byte> MemoryTier::Bytes(Location location) const {
  return pool_.Bytes(ToSlot(location));
}

}  // namespace kvtier
