// Counters and latency histograms that cost an atomic add.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "common/clock.h"

namespace kvtier {

// Relaxed counter.
class Counter {
 public:
  void Add(uint64_t by = 1) { value_.fetch_add(by, std::memory_order_relaxed); }
  uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

// Counts by latency in buckets whose upper bounds double from 8 us. Thread-safe.
class LatencyHistogram {
 public:
  static constexpr int kBuckets = 24;  // the last has no bound
  struct Snapshot {
    std::array<uint64_t, kBuckets> counts{};
    uint64_t count = 0;
    double sum_seconds = 0;
  };
  void Record(Duration latency);
  Snapshot snapshot() const;
  // Upper bound of bucket `i` in seconds.
  static double UpperBound(int i);

 private:
  std::array<std::atomic<uint64_t>, kBuckets> counts_{};
  std::atomic<uint64_t> sum_ns_{0};
};

}  // namespace kvtier
