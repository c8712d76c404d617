// The only policy: which blocks are where, what moves, what leaves.
//
//   Lookup  cursor -> hash -> [ walk to the first block not complete, verifying identities; touch,
//           deepest first; pin when a lease is asked for ]
//   Fetch   [ pin what is named ] -> per block: in RAM -> its bytes in place; else a fill from the tier
//           that has it, one for all who ask -> stream -> [ unpin ]
//   Store   [ pin what is named and present ] -> per missing block: a slot (MakeRoom) -> payload straight
//           into it -> [ commit ]; visible once all parts are there
//   MakeRoom  [ least recent blocks, never pinned ] -> copied down when no lower tier has them -> erased
//
// Brackets are the index lock: inside them no I/O and no copying of payload. Eviction is least recently
// used, leaf first: a path is touched deepest block first, so heads are newer than tails and no block
// outlives its parent in a memory tier.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/executor.h"
#include "common/model_spec.h"
#include "common/mutex.h"
#include "common/prompt.h"
#include "storage/memory_tier.h"
#include "storage/tier.h"

namespace kvtier {

// A prompt as the manager takes it: whose, and its blocks.
struct PromptRef {
  ModelId model;
  std::string canonical_root;  // CanonicalRoot(...); its digest is the cursor's root
  PromptCursor cursor;
};

using LeaseId = uint64_t;  // never 0; unguessable

struct LookupOptions {
  Duration lease = Duration::zero();  // zero: none
  std::string client;                 // whose lease limit it counts against
  std::optional<TierKind> promote_to;
};
struct LookupResult {
  uint32_t blocks = 0;
  uint32_t block_tokens = 0;
  std::vector<std::pair<TierKind, uint32_t>> runs;  // best tier of each block, run-length coded
  std::vector<uint32_t> group_blocks;               // by layer group
  LeaseId lease = 0;
};

enum class StoreOutcome : uint8_t { kPending, kStored, kAlreadyPresent, kRejected };
enum class RejectReason : uint8_t { kNone, kNoSpace, kChecksum, kNoParent, kReset, kNotSent };

// Keeps one block where it is. Move-only; ends with the object, on any thread.
class BlockPin;

// Bytes of one part, readable while `hold` lives (a pin, or a buffer of their own).
struct PartView {
  std::span<const std::byte> bytes;
  uint64_t checksum = 0;
  TierKind tier = TierKind::kRam;  // where they came from
  std::shared_ptr<void> hold;
};

class FetchSession;
class StoreSession;

struct ManagerOptions {
  uint32_t max_leases_per_client = 4096;
};

struct TierStats {
  bool on = false;
  TierUsage usage;
  uint64_t blocks = 0;
  uint64_t hits = 0;
  uint64_t evictions = 0;
  uint64_t promotions = 0;
  uint64_t demotions = 0;
  uint64_t bytes_written = 0;
  uint64_t bytes_read = 0;
};
struct ManagerStats {
  std::array<TierStats, kTiers> tiers;
  uint64_t models = 0, blocks = 0, index_bytes = 0, identity_bytes = 0, leases = 0, pinned_blocks = 0;
  uint64_t lookups = 0, lookup_blocks = 0, hit_blocks = 0;
  uint64_t fetched_blocks = 0, fetch_missed_blocks = 0;
  uint64_t stored_blocks = 0, already_present_blocks = 0, rejected_blocks = 0;
  uint64_t checksum_failures = 0, checksum_mismatches = 0, expired_leases = 0;
  uint64_t unreachable_blocks = 0, never_hit_blocks = 0;
};
struct ModelInfo {
  ModelId id;
  ModelSpec spec;
  std::array<uint64_t, kTiers> blocks{};           // complete blocks by tier
  std::array<uint64_t, kTiers> capacity_blocks{};  // when alone in the tier
};
struct ResizeResult {
  uint64_t previous_bytes = 0;
  uint64_t evicted_blocks = 0;
  uint64_t backed_bytes = 0;
};

// Thread-safe. Calls may block only where their comment says so.
class TierManager {
 public:
  // `gpu` and `ssd` may be null. `clock` and `executor` must outlive the manager; the executor's tasks
  // must have ended before it is destroyed, and every session, pin and view too.
  TierManager(ManagerOptions options, std::unique_ptr<MemoryTier> gpu,
              std::unique_ptr<MemoryTier> ram, std::unique_ptr<Tier> ssd, Executor* executor,
              const Clock* clock);
  ~TierManager();

  // Idempotent. FAILED_PRECONDITION when another spec has the same id.
  absl::Status AddModel(const ModelSpec& spec);
  absl::StatusOr<ModelInfo> GetModel(const ModelId& id) const;  // NOT_FOUND
  std::vector<ModelInfo> ListModels() const;

  // Errors: NOT_FOUND (model), RESOURCE_EXHAUSTED (leases). Does not block.
  absl::StatusOr<LookupResult> Lookup(PromptRef& prompt, const LookupOptions& options);

  // Errors: NOT_FOUND.
  absl::Status Release(LeaseId lease);
  absl::Status Renew(LeaseId lease, Duration remaining);
  // Ends the leases whose time is up, and goes on with an unfinished shrink; call it every now and then.
  void Tick();

  // Blocks [first, last) of a prompt or a lease. Errors: NOT_FOUND (model, lease), INVALID_ARGUMENT
  // (range, part). Does not block.
  absl::StatusOr<std::unique_ptr<FetchSession>> BeginFetch(PromptRef& prompt, uint32_t first,
                                                           uint32_t last, uint32_t part);
  absl::StatusOr<std::unique_ptr<FetchSession>> BeginFetch(LeaseId lease, uint32_t first,
                                                           uint32_t last, uint32_t part);

  // One part of blocks [first, first + count). Errors: NOT_FOUND, INVALID_ARGUMENT. Does not block.
  absl::StatusOr<std::unique_ptr<StoreSession>> BeginStore(PromptRef& prompt, uint32_t first,
                                                           uint32_t count, uint32_t part);

  // Drop from all tiers; what is being stored does not reappear. Pinned bytes stay readable for who
  // holds them. Return the blocks dropped. Errors: NOT_FOUND (model).
  absl::StatusOr<uint64_t> ResetModel(const ModelId& model);
  absl::StatusOr<uint64_t> ResetNamespace(const ModelId& model, const std::string& canonical_root);
  absl::StatusOr<uint64_t> RemoveModel(const ModelId& model);

  // Keeps what still fits, most recent first. Blocks for the moving of payload. FAILED_PRECONDITION
  // when the tier is off.
  absl::StatusOr<ResizeResult> SetCapacity(TierKind tier, uint64_t bytes);

  ManagerStats stats() const;
};

// Not thread-safe: one caller at a time, any thread.
class FetchSession {
 public:
  virtual ~FetchSession() = default;
  virtual uint32_t first() const = 0;
  virtual uint32_t last() const = 0;
  // True when Next(block) would wait for a lower tier: call it where blocking is allowed.
  virtual bool WouldBlock(uint32_t block) const = 0;
  // The part's bytes; NOT_FOUND is a miss. Ask in ascending order, each block at most once: the
  // session's own pin on a block moves into the view.
  virtual absl::StatusOr<PartView> Next(uint32_t block, TimePoint deadline) = 0;
};

// Not thread-safe. Destroying it gives up what was not committed.
class StoreSession {
 public:
  virtual ~StoreSession() = default;
  virtual uint32_t first() const = 0;
  virtual uint32_t count() const = 0;
  virtual uint64_t part_bytes() const = 0;
  // Block indices count from the prompt's first block. kPending: its payload is wanted.
  virtual StoreOutcome outcome(uint32_t block) const = 0;
  virtual RejectReason reason(uint32_t block) const = 0;
  // Takes a slot for a pending block. False: rejected (kNoSpace, kNoParent, ...). Blocks when room must be
  // made by writing to a slower tier; WouldBlock says so.
  virtual bool WouldBlock() const = 0;
  virtual bool Reserve(uint32_t block, TimePoint deadline) = 0;
  // The reserved block's slot. Only until Commit or Reject.
  virtual std::span<std::byte> Buffer(uint32_t block) = 0;
  // All bytes of the buffer are there and match the checksum.
  virtual void Commit(uint32_t block, uint64_t checksum) = 0;
  virtual void Reject(uint32_t block, RejectReason reason) = 0;
  // The payload of a present block was seen to have this checksum; counts a mismatch. True when it
  // differs from what is stored.
  virtual bool NotePresent(uint32_t block, uint64_t checksum) = 0;
};

}  // namespace kvtier
