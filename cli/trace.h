// Request traces, from a file in one of several formats or made up, one request at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"

namespace kvtier::cli {

// One request. An id in `hash_ids` stands for its block and everything before it, so equal ids are
// one reusable prefix; the last one may cover a partial block.
struct TraceRequest {
  double timestamp_ms = 0;     // arrival, since the trace's start; not descending
  uint64_t input_length = 0;   // tokens of the prompt
  uint64_t output_length = 0;  // tokens generated
  std::vector<uint64_t> hash_ids;
  uint32_t model = 0;         // of a recording: its number, from 1; else 0
  uint32_t block_tokens = 0;  // of a recording: that an id stands for; else 0
};

// Not thread-safe.
class TraceSource {
 public:
  virtual ~TraceSource() = default;
  // The next request in arrival order; empty at the end.
  virtual absl::StatusOr<std::optional<TraceRequest>> Next() = 0;
  // Lines (of an archive: members) that were passed over so far because they are no requests.
  virtual uint64_t skipped_lines() const { return 0; }
};

struct TraceReaderOptions {
  uint32_t block_tokens = 512;  // that an id stands for: as recorded, or as the blocks are cut
  bool skip_bad_lines = false;  // count them and go on, instead of failing
  uint32_t model = 0;           // of a recording: only this model's requests; 0: all
  // Of an archive of sessions; cli/trace_sessions.h says what they do. 0 hours: all start at once,
  // nothing is cut off. Up to a million.
  double spread_hours = 8;
  double cut_hours = 0;  // of the whole trace
  uint32_t session_seed = 1;
  // Gets a line for people every 100 sessions of an archive, which is read to its end before the
  // first request. May be empty.
  std::function<void(const std::string&)> progress = {};
};

// Which format is told from the content, plain or compressed by zstd:
//   - JSON lines with `hash_ids` (Mooncake's format): timestamp in ms, input_length, output_length
//     in tokens, and one id for each block of block_tokens, root first. A recording of kvtierd's
//     (service/recorder.h) also says of each line its model and block_tokens.
//   - JSON lines with `tokens`: timestamp, tokens as whole numbers below 2^32, output_length if
//     known. They are cut into blocks of block_tokens, each named by its key (common/prompt.h); the
//     last may be partial.
//   - A tar of sessions: cli/trace_sessions.h.
// JSON lines are streamed: memory does not grow with the file. Errors of Open: NOT_FOUND,
// INVALID_ARGUMENT (options out of range), DATA_LOSS; of an archive all errors. Errors of Next:
// INVALID_ARGUMENT naming file, line and reason (a line that is no request; one longer than 16 MiB;
// a number of ids that does not fit input_length and block_tokens; a recorded request in blocks of
// another size), DATA_LOSS (the file is damaged
// or cut off).
absl::StatusOr<std::unique_ptr<TraceSource>> OpenTrace(const std::string& path,
                                                       TraceReaderOptions options);

// One line of a trace. Errors: INVALID_ARGUMENT with the reason.
absl::StatusOr<TraceRequest> ParseTraceLine(std::string_view line, uint32_t block_tokens);

// Chat in several turns: some sessions at a time, each with one of a few system prompts, a history
// that grows by question and answer, and turns interleaved at random. The same options give the
// same requests on every machine.
struct GeneratorOptions {
  uint32_t block_tokens = 512;
  uint64_t requests = 2000;
  uint32_t open_sessions = 32;  // at a time
  uint32_t turns = 6;           // of a session, on average
  uint32_t system_prompts = 4;  // shared between sessions
  uint32_t system_blocks = 4;   // of each system prompt
  uint32_t turn_blocks = 3;     // question and answer of a turn, on average
  uint64_t seed = 1;
};
std::unique_ptr<TraceSource> MakeGenerator(const GeneratorOptions& options);

// How many of a request's ids a replay uses. `full_only`: an engine that stores full blocks only
// drops the last id when it covers a partial block.
size_t UsedBlocks(const TraceRequest& request, uint32_t block_tokens, bool full_only);

}  // namespace kvtier::cli
