#include "cli/hdr_histogram.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace kvtier::cli {
namespace {

constexpr uint64_t kHalf = 1024;  // buckets of each power of two
constexpr int kHalfBits = 10;
constexpr int kLongestBits = 42;
constexpr uint64_t kLongest = (uint64_t{1} << kLongestBits) - 1;

// The width of the bucket that holds `value`, as a power of two.
int Shift(uint64_t value) {
  return std::max(0, static_cast<int>(std::bit_width(value)) - kHalfBits - 1);
}

// Buckets of one shift follow those of the shift before: value >> shift is in [kHalf, 2 kHalf).
size_t BucketOf(uint64_t value) {
  const int shift = Shift(value);
  return shift * kHalf + (value >> shift);
}

// The largest value of a bucket.
uint64_t UpperEnd(size_t bucket) {
  if (bucket < 2 * kHalf) return bucket;
  const uint64_t shift = bucket / kHalf - 1;
  return ((bucket - shift * kHalf + 1) << shift) - 1;
}

}  // namespace

HdrHistogram::HdrHistogram() : buckets_(BucketOf(kLongest) + 1, 0) {}

void HdrHistogram::Record(Duration latency) {
  const Duration value = std::max(latency, Duration::zero());
  ++buckets_[BucketOf(std::min<uint64_t>(value.count(), kLongest))];
  ++count_;
  max_ = std::max(max_, value);
}

void HdrHistogram::Merge(const HdrHistogram& other) {
  for (size_t i = 0; i < buckets_.size(); ++i) buckets_[i] += other.buckets_[i];
  count_ += other.count_;
  max_ = std::max(max_, other.max_);
}

Duration HdrHistogram::Quantile(double share) const {
  const double wanted = std::ceil(share * static_cast<double>(count_));
  const uint64_t rank = std::clamp<uint64_t>(static_cast<uint64_t>(wanted), 1, count_ + 1);
  uint64_t within = 0;
  for (size_t i = 0; i < buckets_.size(); ++i) {
    within += buckets_[i];
    if (within >= rank) return std::min(Duration(UpperEnd(i)), max_);
  }
  return max_;
}

}  // namespace kvtier::cli
