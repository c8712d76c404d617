// For how long at least one Fetch by a lease was open: ranks fetch their parts side by side, and
// what they share of the time counts once. Thread-safe.
#pragma once

#include <memory>
#include <utility>

#include "common/clock.h"
#include "common/mutex.h"

namespace kvtier {

class FetchClock {
 public:
  // `clock` must outlive this.
  explicit FetchClock(const Clock* clock) : clock_(clock) {}

  // Those still open count until now.
  Duration Total() const KVTIER_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return open_ == 0 ? closed_ : closed_ + (clock_->Now() - since_);
  }

  // One open Fetch.
  class Running {
   public:
    explicit Running(std::shared_ptr<FetchClock> clock) : clock_(std::move(clock)) {
      clock_->Open();
    }
    ~Running() { clock_->Close(); }
    Running(const Running&) = delete;
    Running& operator=(const Running&) = delete;

   private:
    const std::shared_ptr<FetchClock> clock_;
  };

 private:
  void Open() KVTIER_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (open_++ == 0) since_ = clock_->Now();
  }
  void Close() KVTIER_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (--open_ == 0) closed_ += clock_->Now() - since_;
  }

  const Clock* const clock_;
  mutable Mutex mutex_;
  int open_ KVTIER_GUARDED_BY(mutex_) = 0;
  TimePoint since_ KVTIER_GUARDED_BY(mutex_);
  Duration closed_ KVTIER_GUARDED_BY(mutex_) = Duration::zero();
};

}  // namespace kvtier
