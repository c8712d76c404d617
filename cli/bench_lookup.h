// kvtier bench lookup: what a Lookup costs beside a bare gRPC call of the same bytes, and where the
// cost is.
#pragma once

#include "cli/bench_report.h"
#include "cli/bench_setup.h"
#include "common/status.h"

namespace kvtier::cli {

// Over gRPC, against the daemon.
absl::Status BenchLookup(BenchSetup& setup, BenchReport* report);

// In this process, on the daemon's own classes: hashing, walk and verification apart, the constant
// cost of a miss, and the index's memory per block.
absl::Status BenchIndex(uint64_t index_blocks, const Output& output, BenchReport* report);

}  // namespace kvtier::cli
