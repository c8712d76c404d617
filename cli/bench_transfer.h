// kvtier bench fetch and store: payload rates beside bare gRPC streams of the same bytes.
#pragma once

#include "cli/bench_report.h"
#include "cli/bench_setup.h"
#include "common/status.h"

namespace kvtier::cli {

absl::Status BenchFetch(BenchSetup& setup, BenchReport* report);
absl::Status BenchStore(BenchSetup& setup, BenchReport* report);

}  // namespace kvtier::cli
