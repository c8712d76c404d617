// kvtier bench fetch and store through shared memory: payload rates beside plain copies of the same
// bytes, small blocks beside gRPC. Left out, with a line that says so, where the daemon offers
// none.
#pragma once

#include "cli/bench_report.h"
#include "cli/bench_setup.h"
#include "common/status.h"

namespace kvtier::cli {

absl::Status BenchFetchShared(BenchSetup& setup, BenchReport* report);
absl::Status BenchStoreShared(BenchSetup& setup, BenchReport* report);

}  // namespace kvtier::cli
