// Load on a cache: requests of a trace as lookups, fetches and stores, by a number of clients,
// either each as soon as the one before is answered (closed loop) or at a rate that does not depend
// on the answers (open loop).
//
// In a closed loop a cache that stands still is asked nothing meanwhile, so its pause is one slow
// request. Engines do not wait like that. In an open loop request n is due n / rate after the start
// whatever happens, and its latency counts from then, not from when a client was free to send it; a
// pause shows in all requests that were due meanwhile.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "cli/hdr_histogram.h"
#include "cli/json_output.h"
#include "cli/trace.h"
#include "common/clock.h"
#include "common/status.h"

namespace kvtier::cli {

enum class LoadOp : uint8_t { kLookup = 0, kFetch = 1, kStore = 2 };
inline constexpr size_t kLoadOps = 3;
std::string_view LoadOpName(LoadOp op);

// How often each operation comes, in any unit.
using LoadMix = std::array<double, kLoadOps>;
// "lookup=60,fetch=30,store=10"; what is left out is 0. INVALID_ARGUMENT naming the part that is
// wrong, or that all are 0.
absl::StatusOr<LoadMix> ParseLoadMix(std::string_view text);

struct LoadOptions {
  double rate = 0;                       // requests/s of all clients together; 0: closed loop
  Duration duration = Duration::zero();  // open: of requests that are due; 0: to the trace's end
  uint64_t requests = 0;                 // 0: to the trace's end
  LoadMix mix = {60, 20, 20};
  uint64_t seed = 1;  // draws each request's operation, whichever client runs it
};

// What one operation did.
struct LoadOutcome {
  uint64_t asked_blocks = 0;
  uint64_t blocks = 0;        // found by Lookup, fetched, or newly stored
  uint64_t bytes = 0;         // of payload, fetched or stored
  uint64_t wrong_blocks = 0;  // fetched with another byte than was stored
};

// One client. Used by one thread.
class LoadTarget {
 public:
  virtual ~LoadTarget() = default;
  // What is the engine's own work (its tokens and payload), ahead of the time that counts.
  virtual void Prepare(LoadOp op, const TraceRequest& request) = 0;
  // The operation prepared last. An error is counted, and the load goes on.
  virtual absl::StatusOr<LoadOutcome> Run() = 0;
};

// Time as the clients see it. Thread-safe.
class Pacer {
 public:
  virtual ~Pacer() = default;
  virtual TimePoint Now() = 0;
  virtual void WaitUntil(TimePoint due) = 0;  // at once when it has passed
};
std::unique_ptr<Pacer> MakePacer();  // real time

struct LoadRow {
  uint64_t count = 0;   // operations, failed ones included
  uint64_t errors = 0;  // of them
  LoadOutcome sum;
  HdrHistogram latency;  // of those that succeeded: a failure at once is no speed
};

struct LoadReport {
  std::array<LoadRow, kLoadOps> rows;  // by LoadOp
  HdrHistogram sent_late;              // open loop: from when a request was due until it was sent
  double seconds = 0;
  uint64_t skipped_lines = 0;
  std::string first_error;  // empty: none
  bool gave_up = false;     // before the end, as every operation of 10 s had failed
};

// Each target runs on a thread of its own; requests are handed out in the trace's order. All that
// was due is sent, so a rate above what the cache takes makes the run longer than `duration`. When
// every operation of 10 s has failed, the run ends.
// `progress` gets a line every 2 s, from any thread. Errors: INVALID_ARGUMENT (a rate or duration
// below 0), and those of the trace.
absl::StatusOr<LoadReport> RunLoad(const LoadOptions& options, TraceSource& trace,
                                   std::span<const std::unique_ptr<LoadTarget>> targets,
                                   Pacer& pacer,
                                   const std::function<void(const std::string&)>& progress);

// DATA_LOSS when a byte was wrong; the first error when an operation failed; INVALID_ARGUMENT when
// there was no request.
absl::Status CheckLoad(const LoadReport& report);

// `head`: what the caller knows of the run; it comes first.
Json LoadJson(const LoadOptions& options, const LoadReport& report, Json head);
std::string LoadText(const LoadOptions& options, const LoadReport& report);

}  // namespace kvtier::cli
