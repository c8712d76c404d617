// Time as a dependency, so that tests own it: leases, deadlines and breakers read this clock only.
#pragma once

#include <atomic>
#include <chrono>

namespace kvtier {

using Duration = std::chrono::nanoseconds;
using TimePoint = std::chrono::time_point<std::chrono::steady_clock, Duration>;

// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint Now() const = 0;
};

class SteadyClock final : public Clock {
 public:
  TimePoint Now() const override { return std::chrono::steady_clock::now(); }
};

// Stands still until told to move.
class ManualClock final : public Clock {
 public:
  TimePoint Now() const override { return TimePoint(Duration(now_.load())); }
  void Advance(Duration by) { now_.fetch_add(by.count()); }

 private:
  std::atomic<int64_t> now_{1};
};

}  // namespace kvtier
