// Holds calls where a test wants them: no sleeps, no races with time.
#pragma once

#include <climits>
#include <cstdint>

#include "common/clock.h"
#include "common/mutex.h"

namespace kvtier {

// Thread-safe. Open at the start.
class Gate {
 public:
  // The next `calls` that Pass wait until Open.
  void Close(int calls = INT_MAX) {
    MutexLock lock(mutex_);
    to_hold_ = calls;
  }
  void Open() {
    MutexLock lock(mutex_);
    to_hold_ = 0;
    held_ = 0;
    ++round_;
    changed_.NotifyAll();
  }
  // From now on each call that passes takes this long. For measurements.
  void Slow(Duration delay) {
    MutexLock lock(mutex_);
    delay_ = delay;
    changed_.NotifyAll();
  }
  // Returns when `calls` of them wait in Pass.
  void WaitForHeld(int calls = 1) {
    MutexLock lock(mutex_);
    while (held_ < calls) changed_.Wait(mutex_);
  }
  // Where the calls go through.
  void Pass() {
    MutexLock lock(mutex_);
    const TimePoint end = clock_.Now() + delay_;
    while (delay_ > Duration::zero() && clock_.Now() < end) {
      changed_.WaitFor(mutex_, end - clock_.Now());
    }
    if (to_hold_ == 0) return;
    --to_hold_;
    ++held_;
    changed_.NotifyAll();
    const uint64_t round = round_;
    while (round == round_) changed_.Wait(mutex_);
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  const SteadyClock clock_{};
  Duration delay_ KVTIER_GUARDED_BY(mutex_) = Duration::zero();
  int to_hold_ KVTIER_GUARDED_BY(mutex_) = 0;
  int held_ KVTIER_GUARDED_BY(mutex_) = 0;
  uint64_t round_ KVTIER_GUARDED_BY(mutex_) = 0;
};

}  // namespace kvtier
