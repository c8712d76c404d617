// Memory and an SSD that keep no payload: what the daemon's own TierManager runs over in a
// simulation. Whatever it decides, it decides by identities and sizes.
#pragma once

#include <map>
#include <memory>

#include "common/mutex.h"
#include "gpu/device_memory.h"
#include "storage/tier.h"

namespace kvtier::cli {

// Addresses without memory behind them: who touches one gets a signal. Copies move nothing.
std::unique_ptr<DeviceMemory> MakeGhostMemory();

// A log that holds as much as it is told to hold, without files and without a restart. A record
// takes TierManager::RecordBytes of the capacity. Reads leave `to` as it is. Thread-safe.
class GhostLogTier final : public LogTier {
 public:
  // Both in bytes as RecordBytes counts them.
  GhostLogTier(uint64_t capacity_bytes, uint64_t segment_bytes)
      : capacity_bytes_(capacity_bytes), segment_bytes_(segment_bytes) {}

  TierKind kind() const override { return TierKind::kSsd; }
  void Write(std::span<WriteOp> ops, TimePoint deadline) override;
  void Read(std::span<ReadOp> ops, TimePoint deadline) override;
  void Erase(std::span<const Location> locations) override;
  TierUsage usage() const override;
  // Not while a simulation runs.
  void SetCapacity(uint64_t bytes) override;
  uint64_t BlocksFor(std::span<const uint64_t> part_bytes, uint64_t identity_bytes) const override;

  // There is nothing from before, and nothing comes back.
  void Recover(const std::function<void(std::span<const StoredPart>)>& segment) override;
  absl::Status Forget(const ModelId& model, const std::optional<RootFingerprint>& root) override;
  absl::Status writable() const override { return absl::OkStatus(); }
  void Maintain() override {}

  uint64_t segment_bytes() const override { return segment_bytes_; }
  uint64_t BytesFor(std::span<const WriteOp> ops) const override;
  uint64_t SegmentBytes(Location location) const override;

 private:
  struct Segment {
    uint64_t bytes = 0;
    uint64_t live = 0;  // records that were not erased
  };

  const uint64_t capacity_bytes_;
  const uint64_t segment_bytes_;
  mutable Mutex mutex_;
  std::map<uint64_t, Segment> segments_ KVTIER_GUARDED_BY(mutex_);  // by number
  uint64_t next_segment_ KVTIER_GUARDED_BY(mutex_) = 1;
  uint64_t used_bytes_ KVTIER_GUARDED_BY(mutex_) = 0;
};

}  // namespace kvtier::cli
