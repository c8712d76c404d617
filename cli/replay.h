// Replays a request trace against a running kvtierd as an engine would use it, and checks every
// byte that comes back.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cli/json_output.h"
#include "cli/replay_slices.h"
#include "cli/trace.h"
#include "common/clock.h"
#include "common/model_spec.h"
#include "common/status.h"

namespace kvtier::cli {

struct ReplayOptions {
  std::string server;           // address of the data API
  std::string trace;            // what it is called, for the report
  uint64_t block_bytes = 0;     // payload of one block, from 32
  uint32_t block_tokens = 512;  // of the trace
  bool full_only = false;       // convention: full blocks only, or all ids
  int clients = 1;              // requests in flight; they are handed out in the trace's order
  double speed = 0;             // times the recorded pace; 0 = as fast as possible
  uint64_t limit = 0;           // requests; 0 = all
  Duration lease = std::chrono::seconds(30);
  std::string tenant = "kvtier-replay";
  double prefill_rate = 0;  // of the engine that is played, tokens per second; 0 = not told
  // Blocks that the daemon has written to SSD since the replay began, for the slices; asked between
  // requests, from any client's thread. May be empty, and may not know.
  std::function<std::optional<uint64_t>()> ssd_written;
};

// Microseconds.
struct LatencySummary {
  uint64_t count = 0;
  double p50 = 0;
  double p90 = 0;
  double p99 = 0;
  double max = 0;
};
LatencySummary Summarize(std::vector<float>* microseconds);  // sorts them

struct ReplayReport {
  uint64_t requests = 0;
  uint64_t skipped_lines = 0;
  uint64_t blocks = 0;                           // of all requests, in the convention
  uint64_t hit_blocks = 0;                       // found by Lookup
  std::array<uint64_t, 4> hit_blocks_by_tier{};  // by CacheTier
  uint64_t verified_blocks = 0;                  // fetched, every byte as it must be
  uint64_t wrong_blocks = 0;                     // fetched with another byte
  uint64_t missed_blocks = 0;                    // found, but not there when fetched
  uint64_t stored_blocks = 0;
  uint64_t present_blocks = 0;   // stored by someone else in the meantime
  uint64_t rejected_blocks = 0;  // no room: the request is longer than the tier, or all is pinned
  uint64_t fetched_bytes = 0;
  uint64_t stored_bytes = 0;
  double seconds = 0;
  bool ssd_tier = false;  // whether the daemon has one
  LatencySummary lookup, fetch, store, release;
  std::vector<ReplaySlice> slices;  // in the trace's order
};

// The model that replays declare: `block_bytes` opaque bytes for `block_tokens` tokens.
ModelSpec ReplayModel(const ReplayOptions& options);

// The tokens of block `id`: a fixed function, so that equal ids are equal blocks. Fills `out`.
void BlockTokens(uint64_t id, std::span<uint32_t> out);

// Each request: Lookup with a lease, Fetch what is there, Store the rest, Release. `progress` gets
// a line now and then, from any thread. Errors: those of the trace, of the client library (with the
// request's number), and INVALID_ARGUMENT for options out of range. Wrong and missed blocks are
// counted, not errors here.
absl::StatusOr<ReplayReport> Replay(const ReplayOptions& options, TraceSource& trace,
                                    const std::function<void(const std::string&)>& progress);

// DATA_LOSS when a byte was wrong or a block that was found could not be fetched.
absl::Status CheckReplay(const ReplayReport& report);

// `ssd_writes`: blocks written to the SSD tier during the replay, when known.
Json ReplayJson(const ReplayOptions& options, const ReplayReport& report,
                std::optional<double> ssd_writes);
std::string ReplayText(const ReplayOptions& options, const ReplayReport& report,
                       std::optional<double> ssd_writes);

}  // namespace kvtier::cli
