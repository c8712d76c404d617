// The SSD tier: a log of files in a RocksDB directory, one file for each Write.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/metrics.h"
#include "common/mutex.h"
#include "storage/record_codec.h"
#include "storage/rocksdb_store.h"
#include "storage/tier.h"

namespace kvtier {

class ThreadPool;

struct SsdTierOptions {
  std::string directory;        // the tier's own; its parent keeps what is set aside as damaged
  uint64_t capacity_bytes = 0;  // of the payload files on disk
  uint64_t max_segment_bytes = uint64_t{64} << 20;
  const Clock* clock = nullptr;                      // outlives the tier
  std::shared_ptr<rocksdb::FileSystem> file_system;  // null: the operating system's
};

enum class SsdState {
  kServing,
  kReadOnly,   // writing failed; it is tried again by Maintain
  kReopening,  // not even reading: RocksDB is being opened, or closed and opened, by Maintain
};
std::string_view SsdStateName(SsdState state);  // "serving", "read-only", "reopening"

struct SsdTierStats {
  SsdState state = SsdState::kServing;
  uint64_t files = 0;  // with live records
  uint64_t live_records = 0;
  uint64_t dead_records = 0;        // in those files
  uint64_t file_bytes_written = 0;  // since the start, as are those below
  uint64_t payload_bytes_written = 0;
  uint64_t files_retired = 0;
  uint64_t write_errors = 0;
  uint64_t read_errors = 0;                 // the medium gave nothing
  uint64_t checksum_failures = 0;           // the medium gave other bytes than were written
  LatencyHistogram::Snapshot read_latency;  // of a part
};

// A Location is batch << 24 | index: the file of that batch, and the record in it.
//
// Read returns NOT_FOUND or DATA_LOSS for what is lost, and UNAVAILABLE only while RocksDB is being
// reopened: then the part may still be there. Write returns RESOURCE_EXHAUSTED when the capacity
// has no room, and UNAVAILABLE when the medium takes nothing (see writable()). Deadlines are not
// looked at: a call takes as long as its I/O. Thread-safe.
class SsdTier final : public LogTier {
 public:
  // A database that is damaged beyond use is set aside with one log line, and the tier starts
  // empty. On a full disk it starts kReadOnly with what is there, or kReopening where nothing is
  // yet. Other errors of the host (permissions, a broken disk, a second process), and a full disk
  // with a database that cannot even be read, are returned, with the path and what to do.
  static absl::StatusOr<std::unique_ptr<SsdTier>> Open(SsdTierOptions options);
  ~SsdTier() override;

  TierKind kind() const override { return TierKind::kSsd; }
  void Write(std::span<WriteOp> ops, TimePoint deadline) override;
  void Read(std::span<ReadOp> ops, TimePoint deadline) override;
  void Erase(std::span<const Location> locations) override;
  // used: files with live records. backed: all that is on disk, with what Maintain or the next
  // Write will remove.
  TierUsage usage() const override;
  void SetCapacity(uint64_t bytes) override;
  uint64_t BlocksFor(std::span<const uint64_t> part_bytes, uint64_t identity_bytes) const override;

  void Recover(const std::function<void(std::span<const StoredPart>)>& segment) override;
  uint64_t segment_bytes() const override;
  uint64_t BytesFor(std::span<const WriteOp> ops) const override;
  uint64_t SegmentBytes(Location location) const override;
  absl::Status Forget(const ModelId& model, const std::optional<RootFingerprint>& root) override;
  absl::Status writable() const override;
  void Maintain() override;

  SsdTierStats stats() const;

 private:
  struct Segment {
    uint64_t bytes = 0;
    std::vector<bool> live;  // by index; empty until Recover has read the list
    uint64_t live_count = 0;
    bool foreign = false;  // a newer version's: left alone while there is room
  };
  using ForgetName = std::pair<ModelId, std::optional<RootFingerprint>>;
  struct SmallFile {
    uint64_t batch = 0;
    uint64_t bytes = 0;
  };

  explicit SsdTier(SsdTierOptions options);
  absl::Status Start() KVTIER_REQUIRES(io_mutex_);
  absl::Status StartOnFullDisk(const absl::Status& full) KVTIER_REQUIRES(io_mutex_);
  RocksdbStoreOptions StoreOptions() const KVTIER_REQUIRES(io_mutex_);
  absl::StatusOr<std::unique_ptr<RocksdbStore>> OpenStore() KVTIER_REQUIRES(io_mutex_);
  void TakeOver(std::unique_ptr<RocksdbStore> store, bool start) KVTIER_REQUIRES(io_mutex_);
  void Reconcile(bool start) KVTIER_REQUIRES(io_mutex_);
  void AddTombstone(const Tombstone& tombstone, uint64_t bytes) KVTIER_REQUIRES(mutex_);

  // Writing.
  absl::Status WriteSegment(std::span<WriteOp* const> ops, uint64_t need, uint64_t* batch)
      KVTIER_REQUIRES(io_mutex_);
  absl::Status MakeReady(uint64_t need, size_t parts) KVTIER_REQUIRES(io_mutex_);
  absl::StatusOr<StoreFile> WriteFile(std::span<WriteOp* const> ops, uint64_t batch,
                                      std::span<const uint64_t> replaced)
      KVTIER_REQUIRES(io_mutex_);
  absl::Status CheckRoom(uint64_t need, size_t parts) const KVTIER_REQUIRES(mutex_);
  void DropForeignFor(uint64_t need) KVTIER_REQUIRES(mutex_);

  // Removing.
  void Bury(uint64_t batch) KVTIER_REQUIRES(mutex_);
  std::vector<uint64_t> Removable() KVTIER_REQUIRES(mutex_);
  bool MayDieLater(uint64_t need) KVTIER_REQUIRES(io_mutex_);
  absl::Status RetireDead() KVTIER_REQUIRES(io_mutex_);
  void Retired(std::span<const uint64_t> batches) KVTIER_REQUIRES(mutex_);

  // Reading.
  absl::Status ReadPart(const ReadOp& op);
  absl::StatusOr<const RocksdbStore*> EnterRead(Location location, uint64_t* epoch);
  void LeaveRead(uint64_t epoch);
  void FreeLingering() KVTIER_REQUIRES(mutex_);

  // The start.
  void RecoverFiles(const RocksdbStore& store, std::span<const StoreFile> files,
                    ThreadPool* readers,
                    const std::function<void(std::span<const StoredPart>)>& segment);
  std::vector<StoredPart> KeepRemembered(uint64_t batch, std::span<const StoredPart> parts);
  bool IsForgotten(const StoredPart& part) const KVTIER_REQUIRES(mutex_);
  void Lose(uint64_t batch, const absl::Status& why);

  uint64_t SegmentBytesLocked() const KVTIER_REQUIRES(mutex_);

  // States.
  RocksdbStore* store() const;
  SsdState state() const;
  void ChangeState(SsdState state, const absl::Status& why);
  void ReopenAfter(const absl::Status& why);
  absl::Status Fail(const absl::Status& why) KVTIER_REQUIRES(io_mutex_);
  void Postpone() KVTIER_REQUIRES(io_mutex_);
  void TryToServe() KVTIER_REQUIRES(io_mutex_);
  absl::Status GetWell() KVTIER_REQUIRES(io_mutex_);
  absl::Status Reopen() KVTIER_REQUIRES(io_mutex_);

  const SsdTierOptions options_;

  // These synchronise themselves.
  Counter file_bytes_written_;
  Counter payload_bytes_written_;
  Counter files_retired_;
  Counter write_errors_;
  Counter read_errors_;
  Counter checksum_failures_;
  LatencyHistogram read_latency_;

  // Held over whatever changes the medium: one of these at a time. Taken before mutex_.
  Mutex io_mutex_;
  bool direct_io_ KVTIER_GUARDED_BY(io_mutex_) = false;  // as far as is known
  uint64_t next_batch_ KVTIER_GUARDED_BY(io_mutex_) = 1;
  TimePoint retry_at_ KVTIER_GUARDED_BY(io_mutex_);
  Duration backoff_ KVTIER_GUARDED_BY(io_mutex_);

  // Guards the books; no I/O inside.
  mutable Mutex mutex_ KVTIER_ACQUIRED_AFTER(io_mutex_);
  std::unique_ptr<RocksdbStore> store_ KVTIER_GUARDED_BY(mutex_);  // null only in kReopening
  SsdState state_ KVTIER_GUARDED_BY(mutex_) = SsdState::kServing;
  absl::Status why_ KVTIER_GUARDED_BY(mutex_);
  uint64_t capacity_bytes_ KVTIER_GUARDED_BY(mutex_);
  std::map<uint64_t, Segment> segments_ KVTIER_GUARDED_BY(mutex_);  // by batch: oldest first
  std::map<uint64_t, uint64_t> dead_ KVTIER_GUARDED_BY(mutex_);     // batch to bytes, to be removed
  std::map<ForgetName, SmallFile> tombstones_ KVTIER_GUARDED_BY(mutex_);
  uint64_t used_bytes_ KVTIER_GUARDED_BY(mutex_) = 0;
  uint64_t foreign_bytes_ KVTIER_GUARDED_BY(mutex_) = 0;
  uint64_t dead_bytes_ KVTIER_GUARDED_BY(mutex_) = 0;
  uint64_t tombstone_bytes_ KVTIER_GUARDED_BY(mutex_) = 0;
  // A removed file keeps its space until the reads that began before have ended, as RocksDB keeps
  // what they might see. So each removal begins an epoch, and reads are counted by theirs.
  uint64_t epoch_ KVTIER_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, uint64_t> readers_ KVTIER_GUARDED_BY(mutex_);    // epoch to reads
  std::map<uint64_t, uint64_t> lingering_ KVTIER_GUARDED_BY(mutex_);  // epoch to bytes
  uint64_t lingering_bytes_ KVTIER_GUARDED_BY(mutex_) = 0;
};

}  // namespace kvtier
