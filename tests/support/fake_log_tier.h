// A LogTier in memory that does what storage/tier.h says and fails when a test says so. Counts
// payload bytes only, so that tests can count in blocks.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/mutex.h"
#include "storage/tier.h"
#include "tests/support/gate.h"

namespace kvtier {

// What outlives the process: a second FakeLogTier over the same medium is a restart.
class FakeMedium {
 private:
  friend class FakeLogTier;

  struct Record {
    PartIdentity id;  // its `identity` views `identity` below
    std::string identity;
    std::vector<std::byte> bytes;
    uint64_t checksum = 0;
    bool forgotten = false;  // does not come back
    bool erased = false;     // known to the process only: comes back while its segment is there
  };
  struct Segment {
    std::vector<std::unique_ptr<Record>> records;
    uint64_t bytes = 0;
    size_t live = 0;  // not erased
  };

  // Null where there is no such part or it was erased.
  Record* Find(Location location) KVTIER_REQUIRES(mutex_);
  void Drop(uint64_t number) KVTIER_REQUIRES(mutex_);

  Mutex mutex_;
  std::map<uint64_t, Segment> segments_ KVTIER_GUARDED_BY(mutex_);  // by number: oldest first
  uint64_t next_segment_ KVTIER_GUARDED_BY(mutex_) = 1;
  uint64_t bytes_ KVTIER_GUARDED_BY(mutex_) = 0;  // of the segments
};

// Thread-safe. A Location is segment << 24 | index. Refuses, with RESOURCE_EXHAUSTED for each part,
// a batch of several parts above segment_bytes, one above the capacity, and any while it is above
// its capacity by more than a segment.
class FakeLogTier final : public LogTier {
 public:
  FakeLogTier(std::shared_ptr<FakeMedium> medium, uint64_t capacity_bytes, uint64_t segment_bytes);

  TierKind kind() const override { return TierKind::kSsd; }
  void Write(std::span<WriteOp> ops, TimePoint deadline) override;
  void Read(std::span<ReadOp> ops, TimePoint deadline) override;
  void Erase(std::span<const Location> locations) override;
  TierUsage usage() const override;
  void SetCapacity(uint64_t bytes) override;
  uint64_t BlocksFor(std::span<const uint64_t> part_bytes, uint64_t identity_bytes) const override;

  void Recover(const std::function<void(std::span<const StoredPart>)>& segment) override;
  uint64_t segment_bytes() const override { return segment_bytes_; }
  uint64_t BytesFor(std::span<const WriteOp> ops) const override;
  uint64_t SegmentBytes(Location location) const override;
  absl::Status Forget(const ModelId& model, const std::optional<RootFingerprint>& root) override;
  absl::Status writable() const override;
  void Maintain() override;

  // What a test controls. The next `calls` of Write, or parts that are read, fail with `status`.
  void FailWrites(uint64_t calls, absl::Status status);
  void FailReads(uint64_t parts, absl::Status status);
  // Unless OK, also what Write and Forget say. Maintain does not change it.
  void SetWritable(absl::Status status);
  // Each call of Write or Read passes here before it does anything.
  Gate& write_gate() { return write_gate_; }
  Gate& read_gate() { return read_gate_; }

  struct Counters {
    uint64_t writes = 0;  // calls of Write with parts, failed ones too
    uint64_t segments_written = 0;
    uint64_t bytes_written = 0;
    uint64_t reads = 0;      // parts, failed ones too
    uint64_t maintains = 0;  // calls
    uint64_t segments = 0;   // on the medium now
  };
  Counters counters() const;

 private:
  struct Failure {
    uint64_t left = 0;
    absl::Status status;
    absl::Status Take();
  };

  absl::Status WriteSegment(std::span<WriteOp> ops);
  absl::Status CheckRoom(std::span<const WriteOp> ops) const KVTIER_REQUIRES(medium_.mutex_);
  void Append(std::span<WriteOp> ops) KVTIER_REQUIRES(medium_.mutex_);
  absl::Status ReadPart(const ReadOp& op);
  // What is not forgotten is there again, erased before or not. By segment, oldest first.
  std::vector<std::vector<StoredPart>> ReviveSegments();

  const std::shared_ptr<FakeMedium> keep_;
  FakeMedium& medium_;  // its lock guards the rest too
  const uint64_t segment_bytes_;
  Gate write_gate_;
  Gate read_gate_;
  bool recovered_ KVTIER_GUARDED_BY(medium_.mutex_) = false;
  uint64_t capacity_bytes_ KVTIER_GUARDED_BY(medium_.mutex_);
  absl::Status writable_ KVTIER_GUARDED_BY(medium_.mutex_);
  Failure write_failure_ KVTIER_GUARDED_BY(medium_.mutex_);
  Failure read_failure_ KVTIER_GUARDED_BY(medium_.mutex_);
  Counters counters_ KVTIER_GUARDED_BY(medium_.mutex_);
};

}  // namespace kvtier
