// What makes a dead daemon cost nothing after the first few calls.
#pragma once

#include <cstdint>

#include "common/clock.h"
#include "common/mutex.h"
#include "common/status.h"
#include "kvtier/client.h"

namespace kvtier::client_internal {

// Closed: calls go through, failures in a row are counted. Open: calls are refused until the
// backoff is over. Half open: one call probes; its success closes the breaker, its failure opens it
// for twice as long. Thread-safe.
class CircuitBreaker {
 public:
  // `clock` must outlive the breaker.
  CircuitBreaker(const BreakerOptions& options, const Clock* clock);

  // OK: make the call, then say Record exactly once. UNAVAILABLE: refused.
  absl::Status Admit();
  // `failed`: the daemon was not reached, or not in time. A call the daemon refused is no failure.
  void Record(bool failed);

  uint64_t opened() const;
  uint64_t refused() const;

 private:
  const BreakerOptions options_;
  const Clock* const clock_;

  mutable Mutex mutex_;
  int failures_ KVTIER_GUARDED_BY(mutex_) = 0;  // in a row
  bool open_ KVTIER_GUARDED_BY(mutex_) = false;
  bool probing_ KVTIER_GUARDED_BY(mutex_) = false;
  Duration backoff_ KVTIER_GUARDED_BY(mutex_);
  TimePoint retry_at_ KVTIER_GUARDED_BY(mutex_);
  uint64_t opened_ KVTIER_GUARDED_BY(mutex_) = 0;
  uint64_t refused_ KVTIER_GUARDED_BY(mutex_) = 0;
};

}  // namespace kvtier::client_internal
