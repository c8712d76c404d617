// How fast each tier has served lately, measured on real fetches: what Lookup's load_seconds and
// `kvtier advise` rest on.
//
// Model: a Fetch of `bytes` from a tier takes first_byte_seconds + bytes * seconds_per_byte, as the
// client sees it: waiting for the tier's bytes and sending them. The way of the request to the
// daemon is not in it.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <span>

#include "common/clock.h"
#include "common/mutex.h"
#include "storage/tier.h"

namespace kvtier {

struct TierSpeed {
  double first_byte_seconds = 0;
  double seconds_per_byte = 0;  // 0: not measured yet

  bool measured() const { return seconds_per_byte > 0; }
  double BytesPerSecond() const { return measured() ? 1 / seconds_per_byte : 0; }
  // 0: not measured yet.
  double LoadSeconds(uint64_t bytes) const {
    return measured() ? first_byte_seconds + static_cast<double>(bytes) * seconds_per_byte : 0;
  }
};

using BytesByTier = std::array<uint64_t, kTiers>;

// What one Fetch took, message by message. Not thread-safe.
//
// The time from one message's end to the next one's is that of the tiers which the message's bytes
// came from, by their share: so a wait for a tier counts where it held the stream up, and not where
// it was hidden behind the sending of what came before.
class FetchMeter {
 public:
  explicit FetchMeter(TimePoint start) : last_end_(start) {}

  void WriteBegins(const BytesByTier& bytes, TimePoint now);
  void WriteEnds(TimePoint now);

 private:
  friend class TierSpeeds;
  struct Write {
    uint64_t bytes = 0;
    double seconds = 0;
  };

  BytesByTier message_bytes_{};
  TimePoint write_begin_;
  TimePoint last_end_;
  BytesByTier bytes_{};
  std::array<double, kTiers> seconds_{};
  // Of all writes together, and of the one that took longest for its size.
  Write sent_;
  Write slowest_;
};

// Thread-safe. Bounded state; reading takes no lock.
//
// Per tier a line is fitted through the last 64 fetches (bytes, seconds), so that the sum of the
// squared relative errors is least. A fetch counts at most four times what the line expects of it:
// a hiccup hardly moves the line, and a lasting change has moved it after 64 fetches.
//
// A reader that does not keep up stalls the stream (flow control); that says nothing about a tier.
// So a fetch is left out when one of its messages took more than 8 times as long to send as the
// fastest of the last fetches, and 2 ms on top. What is fastest is forgotten slowly, 2 % a fetch: a
// connection that really became slow counts again after about a hundred.
class TierSpeeds {
 public:
  // A fetch that ended well.
  void Record(const FetchMeter& fetch) KVTIER_EXCLUDES(mutex_);
  // Of fetches through shared memory, whose bytes nobody sends. What a client took to read so many
  // out of RAM, by its own word:
  void RecordReading(uint64_t bytes, double seconds) KVTIER_EXCLUDES(mutex_);
  // and what was waited for, until a slower tier's bytes were in RAM; the reading comes on top.
  void RecordWaiting(TierKind tier, uint64_t bytes, double seconds) KVTIER_EXCLUDES(mutex_);

  TierSpeed speed(TierKind tier) const {
    const Published& at = published_[static_cast<int>(tier)];
    return {at.first_byte.load(std::memory_order_relaxed),
            at.per_byte.load(std::memory_order_relaxed)};
  }
  // Fetches that were left out because their reader held them up.
  uint64_t stalled_fetches() const { return stalled_.load(std::memory_order_relaxed); }

 private:
  struct Sample {
    double bytes = 0;
    double seconds = 0;
  };
  // The last fetches of one tier.
  class Window {
   public:
    void Add(Sample sample);
    TierSpeed Fit() const;

   private:
    std::span<const Sample> samples() const {
      return std::span(samples_).first(std::min<uint64_t>(added_, samples_.size()));
    }

    std::array<Sample, 64> samples_{};  // the next one overwrites the oldest
    uint64_t added_ = 0;
  };
  struct Published {
    std::atomic<double> first_byte{0};
    std::atomic<double> per_byte{0};
  };

  void AddLocked(int tier, Sample sample) KVTIER_REQUIRES(mutex_);
  bool StalledLocked(const FetchMeter& fetch) KVTIER_REQUIRES(mutex_);

  std::array<Published, kTiers> published_;
  std::atomic<uint64_t> stalled_{0};

  Mutex mutex_;
  std::array<Window, kTiers> windows_ KVTIER_GUARDED_BY(mutex_);
  double fastest_send_ KVTIER_GUARDED_BY(mutex_) = 0;  // seconds per byte; 0: not known
};

}  // namespace kvtier
