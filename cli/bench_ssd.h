// kvtier bench fetch and store, the SSD rows: beside direct I/O on the same disk in the same run.
#pragma once

#include "cli/bench_report.h"
#include "cli/bench_setup.h"
#include "common/status.h"

namespace kvtier::cli {

// fetch_ssd: whole prompts that only the SSD has; fetch_ssd_one: one block of them. From a private
// kvtierd with a small RAM tier.
absl::Status BenchFetchSsd(const BenchSetup& setup, BenchReport* report);
// store_durable: whole prompts, from a private kvtierd; ssd_write and ssd_read: the tier alone, in
// this process.
absl::Status BenchStoreSsd(const BenchSetup& setup, BenchReport* report);

}  // namespace kvtier::cli
