// The seam between policy and media.
//
// A Tier keeps bytes by key on one medium. It has no policy: TierManager decides what goes in and
// what leaves. Calls work in batches with a result per item, and carry a deadline, so that a slow
// or remote medium fits.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "common/block_key.h"
#include "common/clock.h"
#include "common/status.h"
#include "storage/root_fingerprint.h"

namespace kvtier {

// Fastest first; promote moves to a smaller number, demote to a larger one.
enum class TierKind : uint8_t { kGpu = 0, kRam = 1, kSsd = 2 };
inline constexpr int kTiers = 3;
inline constexpr TierKind kAllTiers[kTiers] = {TierKind::kGpu, TierKind::kRam, TierKind::kSsd};
std::string_view TierName(TierKind tier);  // "gpu", "ram", "ssd"

// What identifies one part of one block, for media that outlive the process.
struct PartIdentity {
  ModelId model;
  RootFingerprint root = {};  // whose namespace
  BlockKey key;
  BlockKey parent;            // the root's digest for block 0
  std::string_view identity;  // tokens and media, or the engine's hash
  uint32_t depth = 0;         // index from the prompt's first block
  uint16_t part = 0;          // group * tensor_parallel + rank
  uint16_t part_count = 1;    // of the block
  uint8_t carried = 0;        // times it was written again because it was in use; stays at 255
};

// Where a part lies in the tier that gave this out; means nothing to anybody else.
using Location = uint64_t;

struct WriteOp {
  PartIdentity id;
  std::span<const std::byte> from;
  uint64_t checksum = 0;  // XXH3-64 of `from`
  uint64_t owner = 0;     // the caller's tag for this part, told back when the tier must move it
  // Results.
  absl::Status status;
  Location location = 0;
};

struct ReadOp {
  PartIdentity id;
  Location location = 0;
  uint64_t checksum = 0;
  std::span<std::byte> to;  // exactly the part's bytes
  absl::Status status;      // result; NOT_FOUND or DATA_LOSS are misses
};

struct TierUsage {
  uint64_t capacity_bytes = 0;
  uint64_t used_bytes = 0;
  uint64_t backed_bytes = 0;
};

// A part that a medium kept from before this process.
struct StoredPart {
  PartIdentity id;  // `identity` only during the call that hands it over
  Location location = 0;
  uint64_t bytes = 0;
  uint64_t checksum = 0;
};

// Thread-safe.
class Tier {
 public:
  virtual ~Tier() = default;
  virtual TierKind kind() const = 0;

  // RESOURCE_EXHAUSTED per item when there is no room: the caller makes room and tries again.
  virtual void Write(std::span<WriteOp> ops, TimePoint deadline) = 0;
  // On success all of `to` was written with the bytes that Write was given under this identity; on
  // failure its contents are undefined.
  virtual void Read(std::span<ReadOp> ops, TimePoint deadline) = 0;
  // Each location once. Does not block.
  virtual void Erase(std::span<const Location> locations) = 0;

  virtual TierUsage usage() const = 0;
  virtual void SetCapacity(uint64_t bytes) = 0;
  // How many blocks, each of parts of these sizes and one identity, fit when a model has the tier
  // for itself.
  virtual uint64_t BlocksFor(std::span<const uint64_t> part_bytes,
                             uint64_t identity_bytes) const = 0;
};

// A tier that is a log: each Write is one segment, all or nothing, on the medium when it returns.
// A segment's space comes back when all its parts were erased. Outlives the process.
class LogTier : public Tier {
 public:
  // A full log has about as many segments; segments have bounds of their own, too.
  static constexpr uint64_t kSegmentsOfCapacity = 64;

  // What was there at the start, segment by segment, oldest first. Once, before anything else.
  virtual void Recover(const std::function<void(std::span<const StoredPart>)>& segment) = 0;

  // Most bytes of one segment, as BytesFor counts them; a single part may be larger.
  virtual uint64_t segment_bytes() const = 0;
  // What a segment of these parts takes of the capacity, at most. The caller erases as much; but
  // only once the new segment is safe. So Write refuses only when more than one segment above the
  // capacity is used already.
  virtual uint64_t BytesFor(std::span<const WriteOp> ops) const = 0;

  // What comes back once all parts of this part's segment are erased; 0 when they are already.
  virtual uint64_t SegmentBytes(Location location) const = 0;

  // Of what was written up to now, parts of this model (and root) do not come back after a restart.
  // Returns when that is on the medium. Blocks.
  virtual absl::Status Forget(const ModelId& model, const std::optional<RootFingerprint>& root) = 0;

  // OK, or why nothing can be written now (reads may go on). Does not block.
  virtual absl::Status writable() const = 0;
  // Tries to get well again, and gives back the space of dead segments. Call it every now and then;
  // it blocks.
  virtual void Maintain() = 0;
};

}  // namespace kvtier
