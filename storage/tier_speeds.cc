#include "storage/tier_speeds.h"

#include <algorithm>

namespace kvtier {
namespace {

constexpr double kMostTimesExpected = 4;
constexpr int kFitRounds = 4;
// Less goes into the transport's window whatever the reader does.
constexpr uint64_t kLeastToJudgeSending = 64 << 10;
constexpr double kStallFactor = 8;
constexpr double kStallSlack = 2e-3;  // seconds: a thread that had to wait for its turn
constexpr double kForgetFastest = 1.02;
// A clock's step is more than a byte can take; 0 would mean that nothing was measured.
constexpr double kLeastPerByte = 1e-15;

// A line's weighted least squares, both its numbers at least 0.
struct Sums {
  double w = 0, x = 0, y = 0, xx = 0, xy = 0;

  void Add(double at, double value, double weight) {
    w += weight;
    x += weight * at;
    y += weight * value;
    xx += weight * at * at;
    xy += weight * at * value;
  }

  TierSpeed Line() const {
    const double spread = w * xx - x * x;
    TierSpeed line{0, xy / xx};  // all of one size: what is fixed cannot be told apart
    if (spread > 1e-6 * w * xx) {
      line = {(xx * y - x * xy) / spread, (w * xy - x * y) / spread};
      if (line.first_byte_seconds < 0) line = {0, xy / xx};
      if (line.seconds_per_byte < 0) line = {y / w, 0};
    }
    line.seconds_per_byte = std::max(line.seconds_per_byte, kLeastPerByte);
    return line;
  }
};

double Seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

void FetchMeter::WriteBegins(const BytesByTier& bytes, TimePoint now) {
  message_bytes_ = bytes;
  write_begin_ = now;
}

void FetchMeter::WriteEnds(TimePoint now) {
  uint64_t total = 0;
  for (uint64_t bytes : message_bytes_) total += bytes;
  const double elapsed = Seconds(now - last_end_);
  const Write write{total, Seconds(now - write_begin_)};
  last_end_ = now;
  if (total == 0) return;  // only misses
  for (int tier = 0; tier < kTiers; ++tier) {
    bytes_[tier] += message_bytes_[tier];
    seconds_[tier] +=
        elapsed * static_cast<double>(message_bytes_[tier]) / static_cast<double>(total);
  }
  sent_.bytes += write.bytes;
  sent_.seconds += write.seconds;
  const bool slower = write.seconds * static_cast<double>(slowest_.bytes) >
                      slowest_.seconds * static_cast<double>(write.bytes);
  if (slowest_.bytes == 0 || slower) slowest_ = write;
}

bool TierSpeeds::StalledLocked(const FetchMeter& fetch) {
  const auto bytes = static_cast<double>(fetch.sent_.bytes);
  if (fetch.sent_.bytes < kLeastToJudgeSending || fetch.sent_.seconds <= 0) return false;
  const double per_byte = fetch.sent_.seconds / bytes;
  if (per_byte * kStallFactor < fastest_send_) {
    // What was taken for sending until now was readers that did not keep up.
    windows_ = {};
    fastest_send_ = 0;
  }
  const double known = fastest_send_;
  fastest_send_ = known > 0 ? std::min(per_byte, known * kForgetFastest) : per_byte;
  const double allowed =
      kStallSlack + kStallFactor * known * static_cast<double>(fetch.slowest_.bytes);
  return known > 0 && fetch.slowest_.seconds > allowed;
}

void TierSpeeds::Record(const FetchMeter& fetch) {
  MutexLock lock(mutex_);
  if (StalledLocked(fetch)) {
    stalled_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  for (int tier = 0; tier < kTiers; ++tier) {
    AddLocked(tier, {static_cast<double>(fetch.bytes_[tier]), fetch.seconds_[tier]});
  }
}

void TierSpeeds::RecordReading(uint64_t bytes, double seconds) {
  MutexLock lock(mutex_);
  AddLocked(static_cast<int>(TierKind::kRam), {static_cast<double>(bytes), seconds});
}

void TierSpeeds::RecordWaiting(TierKind tier, uint64_t bytes, double seconds) {
  const double reading = speed(TierKind::kRam).seconds_per_byte * static_cast<double>(bytes);
  MutexLock lock(mutex_);
  AddLocked(static_cast<int>(tier), {static_cast<double>(bytes), seconds + reading});
}

void TierSpeeds::AddLocked(int tier, Sample sample) {
  if (sample.bytes <= 0 || sample.seconds <= 0)
    return;  // a clock that stands still measures nothing
  windows_[tier].Add(sample);
  const TierSpeed line = windows_[tier].Fit();
  published_[tier].first_byte.store(line.first_byte_seconds, std::memory_order_relaxed);
  published_[tier].per_byte.store(line.seconds_per_byte, std::memory_order_relaxed);
}

void TierSpeeds::Window::Add(Sample sample) { samples_[added_++ % samples_.size()] = sample; }

// Weights by what was seen at first, then by what the line expects.
TierSpeed TierSpeeds::Window::Fit() const {
  Sums sums;
  for (const Sample& sample : samples()) {
    sums.Add(sample.bytes, sample.seconds, 1 / (sample.seconds * sample.seconds));
  }
  TierSpeed line = sums.Line();
  for (int round = 1; round < kFitRounds; ++round) {
    sums = {};
    for (const Sample& sample : samples()) {
      const double expected = line.first_byte_seconds + line.seconds_per_byte * sample.bytes;
      sums.Add(sample.bytes, std::min(sample.seconds, kMostTimesExpected * expected),
               1 / (expected * expected));
    }
    line = sums.Line();
  }
  return line;
}

}  // namespace kvtier
