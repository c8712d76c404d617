// Counts of latencies with three significant digits at any scale, so that a tail of seconds and a
// median of microseconds stand in one table.
#pragma once

#include <cstdint>
#include <vector>

#include "common/clock.h"

namespace kvtier::cli {

// Log-linear buckets as in Gil Tene's HdrHistogram: each nanosecond below 2,048 ns has its own,
// above that each power of two is cut into 1,024 equal ones, so no bucket is wider than 1/1,024 of
// what it holds. What is longer than 73 minutes is counted as that. 270 kB. Not thread-safe: each
// thread has its own, and they are merged.
class HdrHistogram {
 public:
  HdrHistogram();
  void Record(Duration latency);  // negative ones count as 0
  void Merge(const HdrHistogram& other);

  uint64_t count() const { return count_; }
  Duration max() const { return max_; }  // exact
  // The smallest latency that at least `share` (0 to 1) of all did not exceed: the upper end of its
  // bucket, but never more than max(). 0 when there is none.
  Duration Quantile(double share) const;

 private:
  std::vector<uint64_t> buckets_;
  uint64_t count_ = 0;
  Duration max_{0};
};

}  // namespace kvtier::cli
