#include "client/breaker.h"

#include <algorithm>

namespace kvtier::client_internal {

CircuitBreaker::CircuitBreaker(const BreakerOptions& options, const Clock* clock)
    : options_(options), clock_(clock), backoff_(options.first_backoff) {}

absl::Status CircuitBreaker::Admit() {
  MutexLock lock(mutex_);
  if (!open_) return absl::OkStatus();
  const TimePoint now = clock_->Now();
  if (now >= retry_at_ && !probing_) {
    probing_ = true;
    return absl::OkStatus();
  }
  ++refused_;
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::max(retry_at_ - now, Duration::zero()));
  return absl::UnavailableError(absl::StrCat("circuit breaker is open after ", failures_,
                                             " failed calls in a row, next attempt in ",
                                             left.count(), " ms"));
}

void CircuitBreaker::Record(bool failed) {
  MutexLock lock(mutex_);
  const bool probe = probing_;
  if (!failed) {
    failures_ = 0;
    open_ = false;
    probing_ = false;
    backoff_ = options_.first_backoff;
    return;
  }
  ++failures_;
  if (options_.failures_to_open == 0 || failures_ < options_.failures_to_open) return;
  // Calls that were under way when the breaker opened change nothing when they fail too.
  if (open_ && !probe) return;
  if (probe) backoff_ = std::min(backoff_ * 2, options_.longest_backoff);
  open_ = true;
  probing_ = false;
  retry_at_ = clock_->Now() + backoff_;
  ++opened_;
}

uint64_t CircuitBreaker::opened() const {
  MutexLock lock(mutex_);
  return opened_;
}

uint64_t CircuitBreaker::refused() const {
  MutexLock lock(mutex_);
  return refused_;
}

}  // namespace kvtier::client_internal
