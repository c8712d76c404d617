#include "cli/simulate/ghosts.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "common/check.h"
#include "storage/tier_manager.h"

namespace kvtier::cli {
namespace {

constexpr int kIndexBits = 32;  // of a Location: segment << 32 | index

class GhostMemory final : public DeviceMemory {
 public:
  absl::StatusOr<Region> Allocate(uint64_t bytes) override {
    const uint64_t rounded = RoundUp(bytes);
    void* const base =
        mmap(nullptr, rounded, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) {
      return absl::ResourceExhaustedError(
          absl::StrCat("no ", rounded, " bytes of address space: ", std::strerror(errno)));
    }
    return Region{static_cast<std::byte*>(base), rounded, -1};
  }
  void Free(const Region& region) override { KVTIER_CHECK(munmap(region.base, region.bytes) == 0); }
  absl::Status Copy(std::span<const CopyOp> /*ops*/) override { return absl::OkStatus(); }
  // There is nothing behind the addresses: nobody may write there, freed slots are not even
  // poisoned.
  bool host_addressable() const override { return false; }
  std::string_view name() const override { return "memory of a simulation"; }
};

}  // namespace

std::unique_ptr<DeviceMemory> MakeGhostMemory() { return std::make_unique<GhostMemory>(); }

void GhostLogTier::Write(std::span<WriteOp> ops, TimePoint /*deadline*/) {
  if (ops.empty()) return;
  MutexLock lock(mutex_);
  // The manager has made room, but for what leaves once this is written.
  KVTIER_CHECK(used_bytes_ <= capacity_bytes_ + segment_bytes_);
  const uint64_t number = next_segment_++;
  uint64_t index = 0;
  for (WriteOp& op : ops) {
    op.location = number << kIndexBits | index++;
    op.status = absl::OkStatus();
  }
  const uint64_t bytes = BytesFor(ops);
  segments_[number] = {bytes, ops.size()};
  used_bytes_ += bytes;
}

void GhostLogTier::Read(std::span<ReadOp> ops, TimePoint /*deadline*/) {
  for (ReadOp& op : ops) op.status = absl::OkStatus();
}

void GhostLogTier::Erase(std::span<const Location> locations) {
  MutexLock lock(mutex_);
  for (const Location location : locations) {
    const auto segment = segments_.find(location >> kIndexBits);
    KVTIER_CHECK(segment != segments_.end());
    if (--segment->second.live > 0) continue;
    used_bytes_ -= segment->second.bytes;
    segments_.erase(segment);
  }
}

TierUsage GhostLogTier::usage() const {
  MutexLock lock(mutex_);
  return {capacity_bytes_, used_bytes_, used_bytes_};
}

void GhostLogTier::SetCapacity(uint64_t bytes) { KVTIER_CHECK(bytes == capacity_bytes_); }

uint64_t GhostLogTier::BlocksFor(std::span<const uint64_t> part_bytes,
                                 uint64_t /*identity_bytes*/) const {
  uint64_t block_bytes = 0;
  for (const uint64_t bytes : part_bytes) block_bytes += TierManager::RecordBytes(bytes, 0);
  return capacity_bytes_ / block_bytes;
}

void GhostLogTier::Recover(const std::function<void(std::span<const StoredPart>)>& /*segment*/) {}

absl::Status GhostLogTier::Forget(const ModelId& /*model*/,
                                  const std::optional<RootFingerprint>& /*root*/) {
  return absl::OkStatus();
}

uint64_t GhostLogTier::BytesFor(std::span<const WriteOp> ops) const {
  uint64_t bytes = 0;
  for (const WriteOp& op : ops) {
    bytes += TierManager::RecordBytes(op.from.size(), op.id.identity.size());
  }
  return bytes;
}

uint64_t GhostLogTier::SegmentBytes(Location location) const {
  MutexLock lock(mutex_);
  const auto segment = segments_.find(location >> kIndexBits);
  return segment == segments_.end() ? 0 : segment->second.bytes;
}

}  // namespace kvtier::cli
