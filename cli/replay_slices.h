// What a replay did over its course, in about a hundred slices, however long it is.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "common/mutex.h"

namespace kvtier::cli {

// Some consecutive requests.
struct ReplaySlice {
  uint64_t requests = 0;
  uint64_t blocks = 0;
  std::array<uint64_t, 4> hit_blocks_by_tier{};  // by CacheTier
  uint64_t fetched_bytes = 0;
  uint64_t stored_bytes = 0;
  double end_seconds = 0;               // since the start, when the last of them was done
  std::optional<uint64_t> ssd_written;  // blocks in all by then, if known
};

// Thread-safe. A slice begins with one request; when there are kMost, each two become one.
class ReplaySlices {
 public:
  static constexpr uint64_t kMost = 128;

  // `ssd_written` is asked at the end of each slice, from any thread and without a lock; may be
  // empty.
  explicit ReplaySlices(std::function<std::optional<uint64_t>()> ssd_written)
      : ssd_written_(std::move(ssd_written)) {}

  // `before` and `after`: what a client had done before request `number` (from 1, in any order) and
  // had done after it. Of `before` end_seconds does not count.
  void Add(uint64_t number, const ReplaySlice& before, const ReplaySlice& after)
      KVTIER_EXCLUDES(mutex_);
  std::vector<ReplaySlice> Take() KVTIER_EXCLUDES(mutex_);

 private:
  // Whether the request is the last one of its slice.
  bool Count(uint64_t number, const ReplaySlice& one) KVTIER_EXCLUDES(mutex_);
  void Halve() KVTIER_REQUIRES(mutex_);

  const std::function<std::optional<uint64_t>()> ssd_written_;
  Mutex mutex_;
  uint64_t requests_per_slice_ KVTIER_GUARDED_BY(mutex_) = 1;
  std::vector<ReplaySlice> slices_ KVTIER_GUARDED_BY(mutex_);
};

}  // namespace kvtier::cli
