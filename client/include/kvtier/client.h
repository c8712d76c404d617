// The kvtier client library: what an inference engine links to look up, fetch and store the KV of
// prompt prefixes.
//
//   auto client = kvtier::Client::Connect({.address = "unix:/tmp/kvtier/kvtier.sock"});
//   auto model = (*client)->RegisterModel(spec);
//   kvtier::Prompt prompt{.model = model->id, .tokens = tokens};
//   auto found = (*client)->Lookup(prompt, {.lease = std::chrono::seconds(10)});
//   auto fetched = (*client)->Fetch(found->lease, {.last_block = found->blocks}, buffers);
//   ... compute what is missing ...
//   auto stored = (*client)->Store(prompt, {.first_block = 0, .first_missing = found->blocks},
//   payloads);
//
// Rule above all: a block that is reported OK has, in the caller's buffer, the exact bytes that
// were stored under that identity, and their checksum was verified here. Everything else is a miss.
//
// A dead or slow daemon costs the caller a bounded time, then nothing: each call has a deadline,
// and after a few failures in a row a circuit breaker answers UNAVAILABLE at once, without touching
// the network, except for one probe now and then.
//
// On the daemon's host, where it offers shared memory, the client uses it by itself: a Store copies
// the payload once into memory that the daemon reads, a Fetch by lease copies it once out of the
// daemon's own. The guarantees are the same. Such a Fetch reads memory that the daemon may use anew
// when the lease ends, so it looks at its clock when it is done: too late, and every block of it is
// a miss, and the report says so. Fetches by prompt, blocks that cannot be shared, and everything
// when the session is lost, go over gRPC.
//
// Errors are absl::Status with the codes of kvtier.proto (INVALID_ARGUMENT, NOT_FOUND,
// FAILED_PRECONDITION, RESOURCE_EXHAUSTED, UNAVAILABLE, DEADLINE_EXCEEDED, INTERNAL for a reply
// that breaks the protocol). The message names the call and the request id that the daemon logged.
//
// Limits (the daemon's configuration may change those marked *): 1,048,576* tokens or 65,536*
// engine hashes per prompt; parts up to 64 MiB*; leases from 1 ms to 10 min.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/block_key.h"
#include "common/clock.h"
#include "common/model_spec.h"
#include "common/prompt.h"
#include "common/status.h"

namespace kvtier {

struct BreakerOptions {
  int failures_to_open = 3;  // UNAVAILABLE or DEADLINE_EXCEEDED calls in a row; 0 = no breaker
  Duration first_backoff = std::chrono::milliseconds(100);  // doubles with each failed probe
  Duration longest_backoff = std::chrono::seconds(5);
};

// Memory of the daemon's that is mapped into this process.
struct MappedRegion {
  std::span<const std::byte> bytes = {};  // whole pages but for the end
  bool writable = false;                  // the store region; false: of the RAM tier, read-only
};

// Hears which memory is mapped, for an engine that wants to tell its device (pin it, say).
//
// Mapped comes before the client uses the region, Unmapping right before it is unmapped, when its
// last user is gone: each once for each region, in this order, the second after the first has
// returned. Different regions may come at the same time, and at the same addresses one after the
// other. The store region comes on the thread whose call opens a session, others on a thread of the
// client's; Unmapping on any thread, also one that drops SharedViews or the client. A call that
// needs the region waits meanwhile, and gives the session up after a second: so be quick. It must
// not call the client, or wait for a thread that does, and must not throw.
class RegionListener {
 public:
  virtual ~RegionListener() = default;
  virtual void Mapped(const MappedRegion& region) = 0;
  virtual void Unmapping(const MappedRegion& region) = 0;
};

struct ClientOptions {
  std::string address = {};  // "unix:/path" or "host:port"
  // Deadlines, each for the whole call with its retries.
  Duration connect_deadline = std::chrono::seconds(2);
  Duration lookup_deadline = std::chrono::milliseconds(250);  // Lookup, Release, Renew
  Duration register_deadline = std::chrono::seconds(2);
  Duration transfer_deadline = std::chrono::seconds(30);  // Fetch, Store
  int retries = 2;  // after UNAVAILABLE, within the deadline; every call is idempotent
  BreakerOptions breaker = {};
  // For the breaker and the ends of leases; null = real time (CLOCK_MONOTONIC); must outlive the
  // client.
  const Clock* clock = nullptr;
  bool shared_memory = true;  // use it where it is offered
  // Hash what goes through shared memory, as everything else is: fetched bytes are compared with
  // the checksum that they were stored with, stored ones carry the caller's. Costs the pass over
  // bytes that are in the CPU's cache anyway (docs/BENCHMARKS.md). Without it a fetched block is OK
  // by the daemon's word and the lease's time alone.
  bool verify_shared = true;
  // Null = none; must outlive the client, its leases and its views.
  RegionListener* region_listener = nullptr;
};

// Where a block was found.
enum class CacheTier : uint8_t { kUnknown = 0, kGpu = 1, kRam = 2, kSsd = 3 };

struct TierRoom {
  CacheTier tier = CacheTier::kUnknown;
  uint64_t blocks = 0;  // of this model, when it has the tier for itself
  uint64_t tokens = 0;
};

// What RegisterModel tells.
struct RegisteredModel {
  ModelId id = {};
  uint32_t block_tokens = 0;
  uint32_t layer_groups = 1;
  uint32_t tensor_parallel = 1;
  std::vector<uint64_t> part_bytes =
      {};                            // group-major: part (g, r) is element g * tensor_parallel + r
  uint64_t block_bytes = 0;          // their sum
  std::vector<TierRoom> tiers = {};  // the tiers that are on
};

// A prompt, from its first token. Owns nothing but the namespace: what it points at must live until
// the call returns. Either tokens or engine_hashes, never both; a partial last block is ignored.
struct Prompt {
  ModelId model = {};
  Namespace name = {};
  std::span<const uint32_t> tokens = {};
  std::span<const std::string> engine_hashes =
      {};                                 // one per full block, one length from 8 to 64 bytes
  std::span<const MediaSpan> media = {};  // only with tokens
};

// The piece of a block that one layer group and one tensor-parallel rank own.
struct PartIndex {
  uint32_t layer_group = 0;
  uint32_t rank = 0;
};

namespace client_internal {
class Core;
}  // namespace client_internal

// A time-limited pin on the blocks that one Lookup found. Move-only; the destructor releases it
// (best effort, within lookup_deadline; the daemon ends it anyway when its time is up). May outlive
// the Client.
//
// The release tells the daemon how many of its blocks this client fetched by it and verified, for
// the operator's hit funnel; once detached the caller has to tell.
class Lease {
 public:
  Lease() = default;
  Lease(Lease&& other) noexcept;
  Lease& operator=(Lease&& other) noexcept;
  ~Lease();

  explicit operator bool() const { return id_ != 0; }
  uint64_t id() const { return id_; }
  // Blocks [0, blocks) of the prompt are pinned.
  uint32_t blocks() const { return blocks_; }
  // When it ends, by the client's clock, at the earliest; the past when it is over. To be passed on
  // with the id (FetchParams::lease_end).
  TimePoint end() const;

  // Sets the remaining time, counted from now. Errors: NOT_FOUND (it has ended).
  absl::Status Renew(Duration remaining);
  // Ends it now; afterwards the lease is empty, whatever the result. Errors: NOT_FOUND.
  absl::Status Release();
  // Gives up ownership without ending it: the caller passes the id on (another rank fetches by it).
  uint64_t Detach();

 private:
  friend class Client;
  Lease(std::shared_ptr<client_internal::Core> core, uint64_t id, uint32_t blocks, TimePoint end);

  std::shared_ptr<client_internal::Core> core_;
  uint64_t id_ = 0;
  uint32_t blocks_ = 0;
};

struct LookupParams {
  Duration lease = Duration::zero();         // zero = none; else 1 ms to 10 min
  std::optional<CacheTier> promote_to = {};  // start moving what is found up to this tier
  // Prompt tokens that this engine computes per second; 0 = unknown, up to 1e9. With it the daemon
  // can tell its operator what time the cache saves.
  double prefill_tokens_per_second = 0;
};

struct TierSpan {
  CacheTier tier = CacheTier::kUnknown;
  uint32_t blocks = 0;
  // Expected time to fetch these blocks, all parts, by what fetches took lately. Zero: not measured
  // yet.
  Duration load_time = Duration::zero();
};

// The longest cached prefix.
struct PrefixMatch {
  uint32_t blocks = 0;                      // leading blocks present with all parts
  uint32_t tokens = 0;                      // blocks * block_tokens
  std::vector<TierSpan> runs = {};          // best tier of each of them, run-length coded, in order
  std::vector<uint32_t> group_blocks = {};  // leading blocks by layer group
  Lease lease;                              // empty when none was asked for or nothing was found
};

// How many leading blocks are worth fetching for an engine that computes
// `prefill_tokens_per_second` prompt tokens per second: the longest prefix of whole runs that saves
// the most time,
//   sum over its runs of (run's tokens / prefill_tokens_per_second - run's load_time).
// Runs that are not measured yet count as worth it. A rate of 0 or less is unknown: all blocks.
//
//   const uint32_t fetch = kvtier::BlocksWorthFetching(*found, rate);  // compute the rest
uint32_t BlocksWorthFetching(const PrefixMatch& match, double prefill_tokens_per_second);

// Blocks [first_block, last_block), counted from the prompt's first block, of one part.
struct FetchParams {
  uint32_t first_block = 0;
  uint32_t last_block = 0;
  PartIndex part = {};
  bool allow_gaps =
      false;  // go on after a miss; otherwise all blocks after the first miss are misses
  // For a Fetch by an id that was passed on: when the lease ends, as Lease::end said. Clients on
  // one host share that clock. Without it, and if this client has not renewed the lease itself, it
  // does not know how long shared memory may be read, and fetches over gRPC.
  std::optional<TimePoint> lease_end = {};
};

enum class FetchStatus : uint8_t { kMiss = 0, kOk = 1 };

struct FetchedBlock {
  FetchStatus status = FetchStatus::kMiss;
  uint64_t bytes = 0;     // of the part; 0 for a miss
  uint64_t checksum = 0;  // XXH3-64 of the part, verified (but see ClientOptions::verify_shared)
};

struct FetchReport {
  std::vector<FetchedBlock> blocks;  // one per block asked for
  uint32_t leading = 0;              // OK blocks before the first miss
  uint32_t shared = 0;               // blocks read out of shared memory
  // The lease was over, by this client's clock, before all bytes were read out of shared memory:
  // then all blocks are misses. Take a longer lease, or renew it meanwhile.
  bool lease_ended = false;
};

// A piece of a part as it arrived, readable only during the callback.
struct PieceView {
  uint32_t block = 0;       // from the prompt's first block
  uint64_t offset = 0;      // within the part; ascending and gapless within a block
  uint64_t part_bytes = 0;  // of the whole part
  std::span<const std::byte> bytes = {};
};
using PieceVisitor = std::function<void(const PieceView&)>;

// Blocks of a lease where the daemon has them. Nothing was copied, and nothing read: compare
// `checksum` if you want to be as sure as Fetch is.
//
// The bytes can be read as long as this object lives (it keeps the daemon's memory mapped, also
// memory that the daemon would like to give back: do not keep it for long), but they are the
// block's only until the lease ends. So: read, then ask expired(); what was read counts when it
// says false.
//
//   auto views = client->FetchSharedViews(lease, params);
//   Use(views->blocks[0].bytes);
//   if (views->expired()) ... what was read is void
class SharedViews {
 public:
  struct Block {
    FetchStatus status = FetchStatus::kMiss;
    // With kMiss: the block is held, but not in shared memory; Fetch brings it.
    bool not_shared = false;
    std::span<const std::byte> bytes = {};  // of the part; empty unless kOk
    uint64_t checksum = 0;                  // XXH3-64 of the part, not verified
  };

  // Whether the lease is over by the client's clock: ended, released, or not to be renewed in time.
  bool expired() const;

  std::vector<Block> blocks;  // one per block asked for
  uint32_t leading = 0;       // OK blocks before the first miss

 private:
  friend class Client;
  std::shared_ptr<const client_internal::Core> core_;
  uint64_t lease_id_ = 0;
  std::optional<TimePoint> lease_end_;
  std::vector<std::shared_ptr<const void>> mappings_;  // what `blocks` points into
};

enum class StoreDurability : uint8_t { kAccepted = 1, kDurable = 2 };  // in RAM / synced on SSD

struct StoreParams {
  uint32_t first_block = 0;  // payloads[i] is block first_block + i
  PartIndex part = {};
  StoreDurability durability = StoreDurability::kAccepted;
  // The first block that is not held yet, when the caller knows it from its own Lookup. Without it
  // Store asks first. Blocks before it are not sent.
  std::optional<uint32_t> first_missing = {};
};

enum class StoreVerdict : uint8_t { kRejected = 0, kStored = 1, kAlreadyPresent = 2 };
// As RejectReason of kvtier.proto.
enum class StoreRefusal : uint8_t {
  kNone = 0,
  kNoSpace = 1,
  kChecksum = 2,
  kNoParent = 3,
  kReset = 4,
  kNotSent = 5,
  kCollision = 6
};

struct StoredBlock {
  StoreVerdict verdict = StoreVerdict::kRejected;
  StoreRefusal refusal = StoreRefusal::kNone;  // with kRejected
};

struct StoreReport {
  std::vector<StoredBlock> blocks;   // one per payload
  uint32_t sent = 0;                 // blocks whose payload went over the wire
  uint32_t checksum_mismatches = 0;  // present blocks whose bytes differ from those sent
  uint32_t shared = 0;               // of `sent`, through shared memory
};

// Totals since Connect.
struct ClientCounters {
  uint64_t calls = 0;  // that reached the network, retries not counted
  uint64_t retries = 0;
  uint64_t failures = 0;  // calls that ended UNAVAILABLE or DEADLINE_EXCEEDED
  uint64_t refused_by_breaker = 0;
  uint64_t breaker_opened = 0;
  uint64_t checksum_failures = 0;  // fetched blocks turned into misses
  // Through shared memory; views count as fetched when they are handed out.
  uint64_t shared_fetched_blocks = 0;
  uint64_t shared_stored_blocks = 0;
  uint64_t ended_leases = 0;  // fetches whose lease was over before the bytes were read
};

// Thread-safe: any number of threads may call at the same time. Calls block until their deadline at
// most.
class Client {
 public:
  // Waits until the daemon accepts a connection. A lost one is made again by the next call. Errors:
  // INVALID_ARGUMENT (address), UNAVAILABLE.
  static absl::StatusOr<std::unique_ptr<Client>> Connect(ClientOptions options);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // Idempotent; survives a restart of the daemon. Errors: INVALID_ARGUMENT, and INTERNAL when the
  // daemon computes another id or other part sizes from this spec than this library.
  absl::StatusOr<RegisteredModel> RegisterModel(const ModelSpec& spec);

  // One round trip for any prompt length. With a lease, a Fetch of these blocks before it ends does
  // not miss; without one the answer is a hint. Errors: NOT_FOUND (model), INVALID_ARGUMENT,
  // RESOURCE_EXHAUSTED (too many open leases).
  absl::StatusOr<PrefixMatch> Lookup(const Prompt& prompt, const LookupParams& params = {});

  // Fetches into the caller's memory: buffers[i] takes block first_block + i and must have exactly
  // the part's bytes. Payload is copied once, from the transport's or the daemon's memory. The
  // buffer of a block
  // that is not OK has undefined contents. On an error all have. Errors: NOT_FOUND (model; lease
  // unknown or ended), INVALID_ARGUMENT, DEADLINE_EXCEEDED, INTERNAL (a part of another size than
  // the buffer, a reply out of order).
  absl::StatusOr<FetchReport> Fetch(const Prompt& prompt, const FetchParams& params,
                                    std::span<const std::span<std::byte>> buffers);
  absl::StatusOr<FetchReport> Fetch(uint64_t lease_id, const FetchParams& params,
                                    std::span<const std::span<std::byte>> buffers);
  absl::StatusOr<FetchReport> Fetch(const Lease& lease, const FetchParams& params,
                                    std::span<const std::span<std::byte>> buffers) {
    return Fetch(lease.id(), params, buffers);
  }

  // The same without any copy: `visit` sees the payload where the transport put it, in order, on
  // the caller's thread. A piece is not verified when it is seen: only when the report says OK may
  // what was read of that block be used.
  absl::StatusOr<FetchReport> FetchViews(const Prompt& prompt, const FetchParams& params,
                                         const PieceVisitor& visit);
  absl::StatusOr<FetchReport> FetchViews(uint64_t lease_id, const FetchParams& params,
                                         const PieceVisitor& visit);

  // Blocks of a lease without a copy and without a pass over them, in shared memory. Errors: as
  // Fetch; UNAVAILABLE when this client has no shared memory; FAILED_PRECONDITION when it does not
  // know when the lease ends (FetchParams::lease_end).
  absl::StatusOr<SharedViews> FetchSharedViews(uint64_t lease_id, const FetchParams& params);
  absl::StatusOr<SharedViews> FetchSharedViews(const Lease& lease, const FetchParams& params) {
    return FetchSharedViews(lease.id(), params);
  }

  // Stores one part of consecutive blocks; payloads[i] is the whole part of block first_block + i
  // and is sent, or copied to shared memory, from where it lies. The prompt must reach through the
  // last block stored. A block becomes visible when all its parts are stored. Blocks that Lookup
  // (or first_missing) says are held come back kAlreadyPresent and are not sent. A rejected block
  // is no error. Errors: NOT_FOUND (model), INVALID_ARGUMENT, RESOURCE_EXHAUSTED (not one block
  // fits; see RetryDelay), FAILED_PRECONDITION (kDurable without an SSD tier).
  absl::StatusOr<StoreReport> Store(const Prompt& prompt, const StoreParams& params,
                                    std::span<const std::span<const std::byte>> payloads);

  // Leases by id, for those that were detached. `verified_blocks`: how many of its blocks were
  // fetched, with FetchStatus::kOk, and used. Errors: NOT_FOUND, INVALID_ARGUMENT (more than the
  // lease has).
  absl::Status Release(uint64_t lease_id, uint32_t verified_blocks = 0);
  absl::Status Renew(uint64_t lease_id, Duration remaining);

  ClientCounters counters() const;
  // Whether there is a session of shared memory now; makes one if it can. A model must have been
  // registered.
  bool has_shared_memory() const;

 private:
  explicit Client(std::shared_ptr<client_internal::Core> core);

  const std::shared_ptr<client_internal::Core> core_;
};

// When the daemon asked to be left alone for a while (RESOURCE_EXHAUSTED): for how long.
std::optional<Duration> RetryDelay(const absl::Status& status);

}  // namespace kvtier
