// When requests are due.
#pragma once

#include "common/clock.h"

namespace kvtier::cli {

// Seconds, from 0. More than 30 years are 30 years: a Duration has no room for far more.
inline Duration SecondsAhead(double seconds) {
  constexpr double kLongest = 30.0 * 365 * 24 * 3600;
  return Duration(static_cast<int64_t>((seconds < kLongest ? seconds : kLongest) * 1e9));
}

}  // namespace kvtier::cli
