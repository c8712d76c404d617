// When the leases that a client knows end, by its own clock. Internal to the client.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>

#include "common/clock.h"
#include "common/mutex.h"

namespace kvtier::client_internal {

// Each end is the time before the call that set it was sent, plus the length asked for: never later
// than the daemon's own. Where several renewals of one lease overlap, or one failed and may have
// been done all the same, the earliest end that is possible counts. Thread-safe.
class LeaseTimes {
 public:
  // `clock` must outlive this.
  explicit LeaseTimes(const Clock* clock) : clock_(clock) {}

  void Open(uint64_t lease_id, TimePoint end) KVTIER_EXCLUDES(mutex_);

  // Around each call that renews. Of a lease that was not opened here the end is known afterwards.
  struct Renewal {
    uint64_t lease_id = 0;
    uint64_t serial = 0;
  };
  Renewal BeginRenew(uint64_t lease_id, Duration remaining) KVTIER_EXCLUDES(mutex_);
  void EndRenew(const Renewal& renewal, bool done) KVTIER_EXCLUDES(mutex_);

  // Before the call that releases is sent: from then on the daemon may use the blocks' memory anew.
  void Close(uint64_t lease_id) KVTIER_EXCLUDES(mutex_);

  // Nothing when the lease is not known here, or no longer.
  std::optional<TimePoint> End(uint64_t lease_id) const KVTIER_EXCLUDES(mutex_);

 private:
  static constexpr TimePoint kUnknown = TimePoint::min();
  static constexpr size_t kFewLeases = 64;
  struct Lease {
    uint64_t serial = 0;               // of this entry: ids may come back after Close
    TimePoint end = kUnknown;          // whatever the renewals under way come to
    int renewals = 0;                  // under way
    TimePoint renewed_end = kUnknown;  // once the last of them is done
  };

  void ForgetEnded() KVTIER_REQUIRES(mutex_);

  const Clock* const clock_;
  mutable Mutex mutex_;
  std::unordered_map<uint64_t, Lease> leases_ KVTIER_GUARDED_BY(mutex_);
  uint64_t next_serial_ KVTIER_GUARDED_BY(mutex_) = 1;
  // Leases that were passed on are never closed here: now and then those that are over are dropped.
  size_t forget_at_ KVTIER_GUARDED_BY(mutex_) = kFewLeases;
};

}  // namespace kvtier::client_internal
