// A rate limit.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/clock.h"

namespace kvtier {

// Tokens come in at a steady rate, up to one second's worth; whoever must may run into debt. Not
// thread-safe.
class TokenBucket {
 public:
  // `rate` tokens per second; 0: no limit.
  TokenBucket(uint64_t rate, TimePoint now) : rate_(rate), tokens_(double(rate)), filled_(now) {}

  bool limited() const { return rate_ > 0; }
  // False when nothing is left.
  bool HasTokens(TimePoint now) {
    if (!limited()) return true;
    Fill(now);
    return tokens_ > 0;
  }
  void Take(uint64_t tokens, TimePoint now) {
    if (!limited()) return;
    Fill(now);
    tokens_ -= double(tokens);
  }

 private:
  void Fill(TimePoint now) {
    const double seconds = std::chrono::duration<double>(now - filled_).count();
    tokens_ = std::min(double(rate_), tokens_ + seconds * double(rate_));
    filled_ = now;
  }

  const uint64_t rate_;
  double tokens_;
  TimePoint filled_;
};

}  // namespace kvtier
