// Recorded agent sessions (the format of kv-cache-tester: a tar of JSON files, one a session) as
// one trace.
//
// A session's times count from its own start, and its ids mean nothing in another session. So two
// things are made up, always in the same way:
//   - Ids: those of `block_tokens / block_size` recorded ids become one, named by the hash of the
//     session, the ids before it and its own. Nothing is shared between sessions; a remainder that
//     fills no block has no id.
//   - Starts: drawn uniformly over `spread_hours`, in the archive's order, from
//     random.Random(seed).uniform of Python, so that other tools can have the same trace. Gaps
//     within a session are as recorded; a sub-agent's times count from where it was started.
#pragma once

#include <memory>

#include "cli/trace.h"
#include "cli/trace_tar.h"

namespace kvtier::cli {

// Reads the whole archive: memory for the distinct ids of its sessions and a few words for each
// request. Errors: TarReader's; INVALID_ARGUMENT naming archive, member and reason (no such
// session, unless skip_bad_lines: then it is counted; or block_tokens no multiple of block_size).
absl::StatusOr<std::unique_ptr<TraceSource>> OpenSessions(std::unique_ptr<TraceBytes> bytes,
                                                          const TraceReaderOptions& options);

}  // namespace kvtier::cli
