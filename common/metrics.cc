#include "common/metrics.h"

#include <algorithm>
#include <bit>

namespace kvtier {
namespace {
constexpr uint64_t kFirstBoundNs = 8000;
}

void LatencyHistogram::Record(Duration latency) {
  const uint64_t ns = static_cast<uint64_t>(std::max<int64_t>(latency.count(), 0));
  const uint64_t steps = ns == 0 ? 0 : (ns - 1) / kFirstBoundNs;  // bounds are inclusive
  const int bucket = std::min<int>(std::bit_width(steps), kBuckets - 1);
  counts_[bucket].fetch_add(1, std::memory_order_relaxed);
  sum_ns_.fetch_add(ns, std::memory_order_relaxed);
}

LatencyHistogram::Snapshot LatencyHistogram::snapshot() const {
  Snapshot out;
  for (int i = 0; i < kBuckets; ++i) {
    out.counts[i] = counts_[i].load(std::memory_order_relaxed);
    out.count += out.counts[i];
  }
  out.sum_seconds = static_cast<double>(sum_ns_.load(std::memory_order_relaxed)) * 1e-9;
  return out;
}

double LatencyHistogram::UpperBound(int i) { return static_cast<double>(kFirstBoundNs << i) / 1e9; }

}  // namespace kvtier
