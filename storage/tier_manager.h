// The only policy: which blocks are where, what moves, what leaves.
//
//   Lookup  cursor -> [ walk to the first block not complete, verifying identities; touch,
//           or, when a lease is asked for, pin what is found ]
//   Fetch   [ pin what is named ] -> per block: in RAM -> its bytes in place; else a fill from the
//           tier that has it, one for all who ask, some read ahead -> stream -> [ unpin ]
//   Store   [ pin what is named and present ] -> per missing block: a slot (MakeRoom) -> payload
//           straight into it -> [ commit ]; visible once all parts are there
//   MakeRoom  [ least recent block that nobody uses, and that a lower tier has ] -> erased; when
//           none is, the writer's next batch is waited for
//   Writer  [ pick: what is wanted durable, else what will leave RAM next; each with the ancestors
//           that the SSD lacks ] -> [ oldest segments, as many as must leave: what was used since
//           it was written is written again ] -> ssd.Write -> [ commit ] -> old segments erased
//
// Blocks lie in domains of RAM (gpu/slot_pool.h): a Store says in which, and whoever has a block
// read into RAM; what is in RAM stays in its domain until it leaves. Which block leaves does not
// depend on domains.
//
// Brackets are the index lock: inside them no I/O and no copying of payload. In memory eviction is
// least recently used, leaf first, with a protected segment if the operator chose one:
// storage/eviction_order.h. No block outlives its parent. The SSD is a log: segments leave whole,
// oldest first.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "common/clock.h"
#include "common/executor.h"
#include "common/model_spec.h"
#include "common/mutex.h"
#include "common/prompt.h"
#include "common/token_bucket.h"
#include "storage/block_index.h"
#include "storage/fetch_clock.h"
#include "storage/hit_curve.h"
#include "storage/memory_tier.h"
#include "storage/tier.h"
#include "storage/tier_speeds.h"

namespace kvtier {

class FetchSession;
class StoreSession;
class TierManager;

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
  // Asked for a Store's sake, not for a prompt to be served: what is found is touched, not counted.
  bool before_store = false;
  // Of the engine that asks; 0: not known. With a lease: what prefill time it saves is counted.
  double prefill_tokens_per_second = 0;
};
// What a client copied out of shared memory by a lease, and how long that took it.
struct SharedReading {
  uint64_t bytes = 0;
  double seconds = 0;
};
struct LookupResult {
  uint32_t blocks = 0;
  uint32_t block_tokens = 0;
  uint64_t block_bytes = 0;                         // all parts
  std::vector<std::pair<TierKind, uint32_t>> runs;  // best tier of each block, run-length coded
  std::vector<uint32_t> group_blocks;               // by layer group
  LeaseId lease = 0;
};

enum class StoreOutcome : uint8_t { kPending, kStored, kAlreadyPresent, kRejected };
enum class RejectReason : uint8_t {
  kNone,
  kNoSpace,
  kChecksum,
  kNoParent,
  kReset,
  kNotSent,
  kCollision
};

// The pins of a walk down one prompt: while it lives, its blocks stay where they are. Ends on any
// thread; then its blocks become the most recent, heads last.
class PinSet {
 public:
  // `blocks`, from the prompt's first, are pinned already; the set takes those pins over.
  PinSet(TierManager* manager, std::vector<EntryId> blocks)
      : manager_(manager), blocks_(std::move(blocks)) {}
  ~PinSet();
  PinSet(const PinSet&) = delete;
  PinSet& operator=(const PinSet&) = delete;
  const std::vector<EntryId>& blocks() const { return blocks_; }

 private:
  TierManager* const manager_;
  const std::vector<EntryId> blocks_;
};

// Bytes of one part, readable while `hold` lives (a pin, or a buffer of their own).
struct PartView {
  std::span<const std::byte> bytes;
  uint64_t checksum = 0;
  TierKind tier = TierKind::kRam;  // where they came from
  std::shared_ptr<const void> hold;
  uint64_t region = 0;  // Region::id, where they lie in RAM's shared memory; else 0
  uint64_t offset = 0;  // of their first byte in the region
};

struct ManagerOptions {
  uint32_t max_leases_per_client = 4096;
  // Bytes per second that may be written to SSD; 0: no limit. Above it blocks leave RAM unwritten,
  // and are counted. DURABLE stores and what leases hold are written all the same, on credit.
  uint64_t ssd_write_limit = 0;
  Eviction eviction = Eviction::kLru;  // of the memory tiers
};

// Where the manager's tasks run; all outlive it, and their tasks must have ended before it goes.
struct ManagerExecutors {
  Executor* general = nullptr;     // promotions
  Executor* ssd_reader = nullptr;  // as many reads at a time as it has threads
  Executor* ssd_writer = nullptr;  // one thread
};

struct TierStats {
  bool on = false;
  TierUsage usage;
  uint64_t blocks = 0;
  uint64_t payload_bytes = 0;  // of those blocks
  uint64_t hits = 0;
  uint64_t evictions = 0;
  uint64_t promotions = 0;
  uint64_t demotions = 0;
  uint64_t bytes_written = 0;
  uint64_t bytes_read = 0;
  // What Fetch served from this tier: blocks, counted by their first part, and payload of all
  // parts.
  uint64_t fetched_blocks = 0;
  uint64_t fetched_bytes = 0;
  TierSpeed speed;  // of fetches lately
};
struct ManagerStats {
  std::array<TierStats, kTiers> tiers;
  uint64_t models = 0, blocks = 0, index_bytes = 0, identity_bytes = 0, leases = 0,
           pinned_blocks = 0;
  uint64_t lookups = 0, lookup_blocks = 0, hit_blocks = 0;
  uint64_t fetched_blocks = 0, fetch_missed_blocks = 0;
  uint64_t stored_blocks = 0, already_present_blocks = 0, rejected_blocks = 0;
  uint64_t checksum_failures = 0, checksum_mismatches = 0, expired_leases = 0;
  uint64_t unreachable_blocks = 0, never_hit_blocks = 0;
  // What clients told when they released a lease, and what it saved them: verified tokens over the
  // prefill rate, and the time that the lease's fetches took. The difference is the time saved.
  // Leases without a known rate count in verified_blocks only.
  uint64_t verified_blocks = 0;
  double prefill_seconds = 0, lease_fetch_seconds = 0;
  uint64_t stalled_fetches = 0;  // left out of the speeds: their reader held them up
  // The log on SSD.
  uint64_t ssd_segments = 0;
  uint64_t ssd_carried_blocks = 0;   // written again, as they were in use when their segment left
  uint64_t ssd_restored_blocks = 0;  // complete ones that were there at the start
  uint64_t ssd_skipped_blocks = 0;   // left RAM unwritten: the tier was not writable, or too slow
  uint64_t ssd_limited_blocks = 0;   // left RAM unwritten: above ssd_write_limit
  uint64_t ssd_waiting_blocks = 0;   // of DURABLE stores, waiting to be written now
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

// Thread-safe. Calls may block only where their comment says so. Sessions are in
// storage/sessions.h.
class TierManager {
 public:
  // `gpu` and `ssd` may be null. `clock` must outlive the manager; every session, pin and view must
  // have ended before it.
  TierManager(ManagerOptions options, std::unique_ptr<MemoryTier> gpu,
              std::unique_ptr<MemoryTier> ram, std::unique_ptr<LogTier> ssd,
              ManagerExecutors executors, const Clock* clock);
  ~TierManager();

  // Takes into the index what the SSD kept from before. Blocks of models that are not known by now
  // stay unread until their segment leaves. Once, after AddModel and before anything else. Blocks.
  void Restore();

  // Idempotent. FAILED_PRECONDITION when another spec has the same id.
  absl::Status AddModel(const ModelSpec& spec);
  absl::StatusOr<ModelInfo> GetModel(const ModelId& id) const;  // NOT_FOUND
  std::vector<ModelInfo> ListModels() const;

  // Errors: NOT_FOUND (model), RESOURCE_EXHAUSTED (leases). Does not block.
  absl::StatusOr<LookupResult> Lookup(PromptRef& prompt, const LookupOptions& options);

  // `verified_blocks`: fetched by the lease, checked by the client, and used. Errors: NOT_FOUND,
  // INVALID_ARGUMENT (more than the lease has; it stays).
  // `shared`: what of them it read in shared memory.
  absl::Status Release(LeaseId lease, uint32_t verified_blocks = 0, SharedReading shared = {});
  absl::Status Renew(LeaseId lease, Duration remaining);
  // The model whose blocks the lease pins. Errors: NOT_FOUND.
  absl::StatusOr<ModelId> LeaseModel(LeaseId lease) const;
  // Ends the leases whose time is up, and goes on with an unfinished shrink; call it every now and
  // then.
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

  // Drop from all tiers; what is being stored does not reappear, nor does anything after a restart.
  // Pinned bytes stay readable for who holds them. Return the blocks dropped. Block, with an SSD
  // tier. Errors: NOT_FOUND (model); the SSD tier's, when it could not be told: the blocks are gone
  // then, but may be back after a restart.
  absl::StatusOr<uint64_t> ResetModel(const ModelId& model);
  absl::StatusOr<uint64_t> ResetNamespace(const ModelId& model, const std::string& canonical_root);
  absl::StatusOr<uint64_t> RemoveModel(const ModelId& model);

  // Keeps what still fits, most recent first. Blocks for the moving of payload. FAILED_PRECONDITION
  // when the tier is off.
  absl::StatusOr<ResizeResult> SetCapacity(TierKind tier, uint64_t bytes);

  // Before a stop, when no session is open: ends all leases, and writes to SSD what RAM has and the
  // SSD lacks, most recent first, until `deadline`. Returns how many blocks are left. Blocks.
  uint64_t WriteDownAll(TimePoint deadline);

  // What a part counts for when a segment is filled, about: with its header and its place in the
  // list of records, each with the identity. LogTier::BytesFor says it exactly.
  static uint64_t RecordBytes(uint64_t payload, uint64_t identity);

  bool has_ssd() const { return ssd_ != nullptr; }
  // What other sizes would find: of one model or of all; of the window or since the start. Errors:
  // NOT_FOUND (model).
  absl::StatusOr<HitRatioCurve> Curve(const std::optional<ModelId>& model, bool since_start) const;
  HitCurveStats curve_stats() const { return curve_.stats(); }
  ManagerStats stats() const;
  std::vector<SlotPool::DomainUsage> RamByDomain() const { return ram_->pool().UsageByDomain(); }
  TierSpeeds& speeds() { return speeds_; }

  // Aborts when the index, the orders, the pools and the counts disagree. Only while no call is in
  // progress. For tests.
  void CheckInvariants() const;

 private:
  friend class PinSet;
  friend class FetchSession;
  friend class StoreSession;

  struct Model {
    ModelId id;
    ModelSpec spec;
    std::vector<uint64_t> part_bytes;  // group-major
    uint64_t block_bytes = 0;          // all parts
    uint32_t number = 0;               // index in models_
    uint32_t groups = 1;
    uint32_t ranks = 1;
    bool removed = false;
    std::array<uint64_t, kTiers> blocks{};  // complete ones, by tier
  };
  struct Space {
    uint32_t model = 0;
    std::string canonical;  // empty when only its fingerprint is known, from the SSD
    RootFingerprint fingerprint = {};
    uint64_t refs = 0;   // entries and store sessions
    bool reset = false;  // nothing may be stored into it any more
  };
  struct Lease {
    std::shared_ptr<const PinSet> pins;
    uint32_t model = 0;
    std::string client;
    TimePoint expiry;
    double prefill_tokens_per_second = 0;  // 0: not known
    std::shared_ptr<FetchClock> fetch_clock;
  };
  struct Walk {
    Model* model = nullptr;
    std::vector<EntryId> path;  // pinned
    std::optional<PathSampler> sampler;

    // How far a walk at `depth` goes before the sampler looks at a key: no other block costs it
    // anything.
    uint64_t NextPause(uint64_t depth) const {
      const bool waits = sampler.has_value() && sampler->next() >= depth;
      return waits ? uint64_t{sampler->next()} + 1 : UINT64_MAX;
    }
    void Sample(uint64_t depth, const BlockKey& key) {
      if (sampler.has_value()) sampler->Take(static_cast<uint32_t>(depth), key);
    }
  };
  // What leaves its tier once the lock is released.
  struct Erasures {
    std::array<std::vector<Location>, kTiers> at;
  };
  // One part on its way between tiers.
  struct Move {
    EntryId block = kNoEntry;
    uint16_t part = 0;
    TierKind tier = TierKind::kRam;
    Location from = kNoLocation;
    uint64_t bytes = 0;
    uint64_t checksum = 0;
    PartIdentity id;
  };
  struct Segment {
    struct Record {
      SlotPool::OwnerTag owner = 0;  // ToOwner(block, part)
      Location location = kNoLocation;
    };
    std::vector<Record> records;  // some may be dead: the index knows where a part is
    uint64_t bytes = 0;           // that come back; known once it is to leave
  };
  // Blocks that somebody waits to have on SSD.
  struct WriteRequest {
    std::shared_ptr<const PinSet> pins;
    size_t next = 0;  // the first that is not written yet
    bool done = false;
    absl::Status status;
  };
  // What the writer is about to write. Its blocks are marked `writing`.
  struct WriteBatch {
    std::vector<EntryId> blocks;
    absl::flat_hash_set<EntryId> carried_blocks;
    absl::flat_hash_set<EntryId> seen;  // they and their ancestors were looked at
    std::vector<Move> carried;          // from the segments in `leaving`; they go first
    std::vector<Move> fresh;            // from RAM
    uint64_t fresh_bytes = 0;
    std::vector<Segment> leaving;  // taken out of the log, oldest first
    std::vector<std::pair<std::shared_ptr<WriteRequest>, size_t>> requests;  // and up to where
  };

  // tier_manager.cc
  void CheckOrdersLocked() const KVTIER_REQUIRES(mutex_);
  Tier* tier(TierKind kind) const { return tiers_[static_cast<int>(kind)]; }
  absl::StatusOr<Model*> FindModelLocked(const ModelId& id) const KVTIER_REQUIRES(mutex_);
  ModelInfo InfoLocked(const Model& model) const KVTIER_REQUIRES(mutex_);
  std::optional<SpaceId> FindSpaceLocked(const std::string& canonical) KVTIER_REQUIRES(mutex_);
  void HideSpaceLocked(const Space& space) KVTIER_REQUIRES(mutex_);
  SpaceId TakeSpaceLocked(uint32_t model, const std::string& canonical) KVTIER_REQUIRES(mutex_);
  void DropSpaceRefLocked(SpaceId space) KVTIER_REQUIRES(mutex_);
  bool GroupPresentLocked(EntryId block, uint32_t group) const KVTIER_REQUIRES(mutex_);
  bool TakeGroupsLocked(EntryId block, uint64_t depth, LookupResult* result) const
      KVTIER_REQUIRES(mutex_);
  void CountLookup(uint64_t blocks, const LookupResult& result, const Walk& walk)
      KVTIER_EXCLUDES(mutex_);
  void TellCurveOfCapacity() KVTIER_EXCLUDES(mutex_);
  absl::Status WalkPrompt(PromptRef& prompt, uint64_t limit, bool pin, bool is_use,
                          LookupResult* result, Walk* walk) KVTIER_EXCLUDES(mutex_);
  absl::StatusOr<LeaseId> AddLeaseLocked(const Model& model, std::shared_ptr<const PinSet> pins,
                                         const LookupOptions& options) KVTIER_REQUIRES(mutex_);
  void CountVerifiedLocked(const Lease& lease, uint32_t blocks, const SharedReading& shared)
      KVTIER_REQUIRES(mutex_);
  void EndAllLeases() KVTIER_EXCLUDES(mutex_);
  std::shared_ptr<const PinSet> RemoveLeaseLocked(LeaseId id) KVTIER_REQUIRES(mutex_);
  void AddPinLocked(EntryId block) KVTIER_REQUIRES(mutex_);
  void Unpin(std::span<const EntryId> path) KVTIER_EXCLUDES(mutex_);
  void UnpinLocked(std::span<const EntryId> path, Erasures* erasures) KVTIER_REQUIRES(mutex_);
  void SettleLocked(EntryId block, Erasures* erasures) KVTIER_REQUIRES(mutex_);
  void SetLocationLocked(EntryId block, uint16_t part, TierKind tier, Location location)
      KVTIER_REQUIRES(mutex_);
  void DropFromTierLocked(EntryId block, TierKind tier, Erasures* erasures) KVTIER_REQUIRES(mutex_);
  void RemoveLocked(EntryId block) KVTIER_REQUIRES(mutex_);
  void Erase(const Erasures& erasures) KVTIER_EXCLUDES(mutex_);
  // Of one root, or of the whole model; false when there was nothing to mark.
  bool MarkResetLocked(uint32_t model, const std::string* canonical) KVTIER_REQUIRES(mutex_);
  void DetachResetLocked(const BlockKey& key, Erasures* erasures) KVTIER_REQUIRES(mutex_);
  uint64_t SweepReset() KVTIER_EXCLUDES(mutex_);
  // The namespace's, or the whole model's when `canonical` is null.
  absl::StatusOr<uint64_t> Reset(const ModelId& model, const std::string* canonical, bool remove)
      KVTIER_EXCLUDES(mutex_, ssd_write_mutex_);
  absl::Status ForgetOnSsd(const ModelId& model, const std::string* canonical)
      KVTIER_REQUIRES(ssd_write_mutex_) KVTIER_EXCLUDES(mutex_);

  // tier_moves.cc
  // What a slot says of the part that lies in it, for when its extent drains.
  static SlotPool::OwnerTag ToOwner(EntryId block, uint16_t part) {
    return uint64_t{part} << 32 | block;
  }
  static EntryId OwnerBlock(SlotPool::OwnerTag owner) { return static_cast<EntryId>(owner); }
  static uint16_t OwnerPart(SlotPool::OwnerTag owner) { return static_cast<uint16_t>(owner >> 32); }
  Slot AllocateInRam(uint64_t bytes, MemoryDomain domain, TimePoint deadline)
      KVTIER_EXCLUDES(mutex_);
  bool MakeRoom(TierKind tier, uint64_t bytes, MemoryDomain domain, TimePoint deadline)
      KVTIER_EXCLUDES(mutex_);
  bool EvictOldest(TierKind tier, TimePoint deadline) KVTIER_EXCLUDES(mutex_);
  EntryId OldestUnusedLocked(TierKind tier) const KVTIER_REQUIRES(mutex_);
  void EvictFromRamLocked(EntryId block, Erasures* erasures) KVTIER_REQUIRES(mutex_);
  bool EvictOldestFromRam(TimePoint deadline) KVTIER_EXCLUDES(mutex_);
  void LeaveTierLocked(EntryId block, TierKind tier, Erasures* erasures) KVTIER_REQUIRES(mutex_);
  Move MoveLocked(EntryId block, uint16_t part, TierKind from) const KVTIER_REQUIRES(mutex_);
  // What to do when nothing in RAM may leave.
  enum class WithoutRoom { kGiveUp, kSpareBuffer, kBuffer };
  // Where a part is read to: into RAM, or else.
  struct ReadTo {
    WithoutRoom without_room = WithoutRoom::kBuffer;
    MemoryDomain domain;
    bool keep_to_domain = false;  // what lies in another domain of RAM is of no use
  };
  absl::StatusOr<PartView> ReadPart(EntryId block, uint16_t part,
                                    const std::shared_ptr<const PinSet>& pins, const ReadTo& to,
                                    TimePoint deadline) KVTIER_EXCLUDES(mutex_);
  absl::StatusOr<PartView> ViewInRamLocked(EntryId block, uint16_t part,
                                           const std::shared_ptr<const PinSet>& pins,
                                           const ReadTo& to) KVTIER_REQUIRES(mutex_);
  absl::StatusOr<PartView> Fill(const Move& move, const ReadTo& to, TimePoint deadline)
      KVTIER_EXCLUDES(mutex_);
  void EndFill(const Move& move, const absl::Status& status, Slot slot) KVTIER_EXCLUDES(mutex_);
  void StartPromotion(std::shared_ptr<const PinSet> pins, uint32_t blocks, TierKind to)
      KVTIER_EXCLUDES(mutex_);
  void Promote(const std::shared_ptr<const PinSet>& pins, uint32_t blocks, TierKind to)
      KVTIER_EXCLUDES(mutex_);
  bool PromoteToGpu(EntryId block, uint16_t part, const PartView& view) KVTIER_EXCLUDES(mutex_);
  std::shared_ptr<std::byte[]> TakeBuffer(uint64_t bytes, WithoutRoom kind, TimePoint deadline)
      KVTIER_EXCLUDES(mutex_);
  MemoryTier* memory_tier(TierKind tier) const;
  bool MarkMoving(TierKind kind, SlotPool::Drain* drain) KVTIER_EXCLUDES(mutex_);
  bool DrainExtent(TierKind tier, uint64_t wanted_bytes, MemoryDomain domain)
      KVTIER_EXCLUDES(mutex_);
  void Shrink(TierKind tier) KVTIER_EXCLUDES(mutex_) KVTIER_REQUIRES(resize_mutex_);

  absl::Status ResizeMemory(TierKind tier, uint64_t bytes) KVTIER_EXCLUDES(mutex_)
      KVTIER_REQUIRES(resize_mutex_);

  // ssd_writer.cc
  absl::Status MakeDurable(std::span<const EntryId> path, TimePoint deadline)
      KVTIER_EXCLUDES(mutex_);
  bool NeedsWritingLocked(EntryId block) const KVTIER_REQUIRES(mutex_);
  bool MayWriteLocked() KVTIER_REQUIRES(mutex_);
  void KickWriterLocked() KVTIER_REQUIRES(mutex_);
  uint64_t WriterProgress() const KVTIER_EXCLUDES(mutex_);
  void WaitForWriter(uint64_t seen, TimePoint deadline) KVTIER_EXCLUDES(mutex_);
  void RunWriter() KVTIER_EXCLUDES(mutex_, ssd_write_mutex_);
  uint64_t WriteUnit() const;
  bool PickLocked(WriteBatch* batch) KVTIER_REQUIRES(mutex_);
  void PickRequestedLocked(WriteBatch* batch) KVTIER_REQUIRES(mutex_);
  void PickLeavingLocked(WriteBatch* batch) KVTIER_REQUIRES(mutex_);
  bool AddWithAncestorsLocked(EntryId block, uint64_t limit, WriteBatch* batch)
      KVTIER_REQUIRES(mutex_);
  void AddLocked(EntryId block, WriteBatch* batch) KVTIER_REQUIRES(mutex_);
  void MarkWritingLocked(EntryId block, WriteBatch* batch) KVTIER_REQUIRES(mutex_);
  absl::Status WriteOut(WriteBatch* batch) KVTIER_REQUIRES(ssd_write_mutex_)
      KVTIER_EXCLUDES(mutex_);
  absl::Status MakeSsdRoom(WriteBatch* batch) KVTIER_REQUIRES(ssd_write_mutex_)
      KVTIER_EXCLUDES(mutex_);
  uint64_t MostCarry() const;
  bool LivesAtLocked(const Segment::Record& record) const KVTIER_REQUIRES(mutex_);
  bool TakeOldestSegment(WriteBatch* batch) KVTIER_EXCLUDES(mutex_);
  void CarryLocked(EntryId block, WriteBatch* batch) KVTIER_REQUIRES(mutex_);
  absl::Status WriteSegment(WriteBatch* batch) KVTIER_REQUIRES(ssd_write_mutex_)
      KVTIER_EXCLUDES(mutex_);
  void LoadFromSsd(std::vector<Move>* moves, std::vector<WriteOp>* ops)
      KVTIER_REQUIRES(ssd_write_mutex_) KVTIER_EXCLUDES(mutex_);
  void NoteRoots(const std::vector<WriteOp>& ops) KVTIER_EXCLUDES(mutex_);
  void CommitSegment(const std::vector<Move>& moves, const std::vector<WriteOp>& ops)
      KVTIER_EXCLUDES(mutex_);
  void EraseLeaving(WriteBatch* batch) KVTIER_EXCLUDES(mutex_);
  bool StaysLocked(const Segment::Record& record, Erasures* erasures) KVTIER_REQUIRES(mutex_);
  void PutBackLocked(WriteBatch* batch) KVTIER_REQUIRES(mutex_);
  void EndBatch(WriteBatch* batch, const absl::Status& status) KVTIER_EXCLUDES(mutex_);
  void MaintainSsd() KVTIER_EXCLUDES(mutex_);
  absl::Status ResizeSsd(uint64_t bytes) KVTIER_REQUIRES(resize_mutex_)
      KVTIER_EXCLUDES(mutex_, ssd_write_mutex_);
  bool TrimIsDue() KVTIER_REQUIRES(ssd_write_mutex_);
  absl::Status TrimSsd() KVTIER_REQUIRES(ssd_write_mutex_) KVTIER_EXCLUDES(mutex_);
  void RestoreSegment(std::span<const StoredPart> parts) KVTIER_EXCLUDES(mutex_);
  bool RestorePartLocked(const StoredPart& part, EntryId* block, Erasures* erasures)
      KVTIER_REQUIRES(mutex_);
  SpaceId RestoreSpaceLocked(uint32_t model, const RootFingerprint& fingerprint)
      KVTIER_REQUIRES(mutex_);

  // Constant after construction.
  const ManagerOptions options_;
  const std::unique_ptr<MemoryTier> gpu_;
  const std::unique_ptr<MemoryTier> ram_;
  const std::unique_ptr<LogTier> ssd_;
  const std::array<Tier*, kTiers> tiers_;
  const ManagerExecutors executors_;
  const Clock* const clock_;
  const uint64_t lease_seed_;

  // Synchronise themselves.
  HitCurve curve_;
  TierSpeeds speeds_;
  Mutex resize_mutex_;  // one resize at a time; taken before the others
  // One writer to SSD at a time; held while it writes.
  Mutex ssd_write_mutex_ KVTIER_ACQUIRED_AFTER(resize_mutex_);
  mutable Mutex mutex_ KVTIER_ACQUIRED_AFTER(ssd_write_mutex_);
  CondVar fill_done_;
  CondVar write_done_;
  CondVar buffer_back_;
  std::atomic<uint64_t> lease_counter_{0};

  // Guarded.
  BlockIndex index_ KVTIER_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Model>> models_ KVTIER_GUARDED_BY(mutex_);
  absl::flat_hash_map<ModelId, uint32_t> model_numbers_ KVTIER_GUARDED_BY(mutex_);
  absl::flat_hash_map<SpaceId, Space> spaces_ KVTIER_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, SpaceId> space_ids_ KVTIER_GUARDED_BY(mutex_);
  SpaceId next_space_ KVTIER_GUARDED_BY(mutex_) = 1;
  absl::flat_hash_map<LeaseId, Lease> leases_ KVTIER_GUARDED_BY(mutex_);
  std::set<std::pair<TimePoint, LeaseId>> lease_ends_ KVTIER_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, uint32_t> leases_of_ KVTIER_GUARDED_BY(mutex_);
  uint32_t promotions_queued_ KVTIER_GUARDED_BY(mutex_) = 0;
  ManagerStats counts_ KVTIER_GUARDED_BY(mutex_);  // gauges in it stay 0; stats() fills them in
  // Namespaces known from the SSD alone, until somebody names them.
  absl::flat_hash_map<RootFingerprint, SpaceId> restored_spaces_ KVTIER_GUARDED_BY(mutex_);
  // What has been written or was there, and was not forgotten since: the rest need not be.
  absl::flat_hash_set<RootFingerprint> roots_on_ssd_ KVTIER_GUARDED_BY(mutex_);
  uint64_t carry_credit_ KVTIER_GUARDED_BY(mutex_) = 0;  // bytes
  std::deque<Segment> log_ KVTIER_GUARDED_BY(mutex_);    // oldest first
  std::deque<std::shared_ptr<WriteRequest>> write_requests_ KVTIER_GUARDED_BY(mutex_);
  bool writer_runs_ KVTIER_GUARDED_BY(mutex_) = false;   // or is about to
  bool writer_stuck_ KVTIER_GUARDED_BY(mutex_) = false;  // somebody waited in vain
  bool maintaining_ KVTIER_GUARDED_BY(mutex_) = false;   // or is about to
  // After a batch that failed: as many bytes leave RAM unwritten before the next is tried.
  uint64_t unwritten_credit_ KVTIER_GUARDED_BY(mutex_) = 0;
  bool room_wanted_ KVTIER_GUARDED_BY(mutex_) = false;         // somebody waits for the writer
  uint64_t writer_progress_ KVTIER_GUARDED_BY(mutex_) = 0;     // segments and batches that ended
  uint64_t evicted_since_pick_ KVTIER_GUARDED_BY(mutex_) = 0;  // bytes out of RAM
  uint64_t buffer_bytes_ KVTIER_GUARDED_BY(mutex_) = 0;        // lent by TakeBuffer
  TokenBucket write_tokens_ KVTIER_GUARDED_BY(mutex_);
  TimePoint next_trim_ KVTIER_GUARDED_BY(ssd_write_mutex_);
  std::vector<std::byte> carry_buffer_ KVTIER_GUARDED_BY(ssd_write_mutex_);
};

}  // namespace kvtier
