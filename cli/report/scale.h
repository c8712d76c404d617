// An axis: where a value lies between its ends, and which values are named.
#pragma once

#include <string>
#include <vector>

namespace kvtier::cli {

class Scale {
 public:
  struct Tick {
    double value = 0;
    bool named = true;
  };
  enum class Ends { kExact, kAtTicks };

  // About five ticks, 1, 2 or 5 times a power of ten apart. An empty range is widened.
  static Scale Linear(double low, double high, Ends ends);
  // A little wider than asked for, ticks at 1, 2 and 5 times powers of ten. REQUIRES: 0 < low <=
  // high.
  static Scale Log(double low, double high);

  double At(double value) const;  // 0 at the low end, 1 at the high end
  double low() const { return low_; }
  double high() const { return high_; }
  const std::vector<Tick>& ticks() const { return ticks_; }

 private:
  bool log_ = false;
  double low_ = 0;
  double high_ = 1;
  std::vector<Tick> ticks_;
};

// Short names of ticks.
std::string ShortNumber(double value);     // "0.05", "12"
std::string ShortCount(double value);      // "1,828", "20k", "1.5M"
std::string ShortMicroseconds(double us);  // "200 µs", "1.5 ms", "2 s"

struct Axis {
  std::string title;  // with its unit
  Scale scale;
  std::string (*name)(double value) = ShortNumber;  // of a tick
};

}  // namespace kvtier::cli
