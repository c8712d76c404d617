#include "common/store_ring.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <ctime>

#include "common/check.h"

namespace kvtier {
namespace {

// The other side is as a rule in the middle of a piece, which takes some 40 us; to fall asleep and
// be woken takes longer than to look on.
constexpr int kLooks = 500;
constexpr timespec kNap = {0, 20'000'000};

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

void SharedCounter::Await(uint32_t value) const {
  for (int i = 0; i < kLooks; ++i) {
    if (Get() != value) return;
    Pause();
  }
  // Does not sleep if it has changed. Whatever ends the sleep, the caller looks again.
  syscall(SYS_futex, word_, FUTEX_WAIT, value, &kNap, nullptr, 0);
}

void SharedCounter::Wake() { syscall(SYS_futex, word_, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0); }

StoreRing::StoreRing(std::span<std::byte> region, uint64_t own, uint64_t other)
    : ring_(region.subspan(kRingOffset, (region.size() - kRingOffset) / kLine * kLine)),
      lines_(static_cast<uint32_t>(ring_.size() / kLine)),
      own_(region.data() + own),
      other_(region.data() + other) {
  KVTIER_CHECK(lines_ > 0);
}

std::span<std::byte> StoreRing::At(uint32_t lines, uint64_t bytes) const {
  const uint64_t begin = next_ % lines_ * kLine;
  return ring_.subspan(begin,
                       std::min({bytes, uint64_t{lines} * kLine, kPiece, ring_.size() - begin}));
}

void StoreRing::Advance(uint64_t bytes) {
  next_ += ToLine(bytes) / kLine;
  if ((next_ - told_) * kLine >= kPiece) Tell();
}

void StoreRing::Tell() {
  if (told_ == next_) return;
  told_ = next_;
  own_.Set(next());
}

StoreRingWriter::StoreRingWriter(std::span<std::byte> region)
    : StoreRing(region, kFilledOffset, kTakenOffset) {
  other_.Set(0);
  own_.Set(0);
}

std::span<std::byte> StoreRingWriter::Room(uint64_t bytes, const std::atomic<bool>& stop) {
  for (;;) {
    const uint32_t taken = other_.Get();
    const uint32_t full = next() - taken;
    if (full < lines_) return StoreRing::At(lines_ - full, bytes);
    if (stop.load()) return {};
    Tell();
    other_.Await(taken);
  }
}

absl::StatusOr<std::span<const std::byte>> StoreRingReader::Next(uint64_t bytes,
                                                                 const std::atomic<bool>& stop) {
  const TimePoint end = std::chrono::steady_clock::now() + kStall;
  for (;;) {
    const uint32_t filled = other_.Get();
    const uint32_t lines = filled - next();
    if (lines > lines_) {
      return absl::InvalidArgumentError(
          absl::StrCat("filled is ", lines, " lines beyond taken, the ring has ", lines_));
    }
    if (lines > 0) return StoreRing::At(lines, bytes);
    if (stop.load()) return absl::CancelledError("stopped");
    Tell();
    if (std::chrono::steady_clock::now() > end) {
      // Not the call's deadline: a client that was only late has time left, and can Store.
      return absl::AbortedError(absl::StrCat("the client has filled nothing in for ",
                                             kStall / std::chrono::seconds(1), " s"));
    }
    other_.Await(filled);
  }
}

}  // namespace kvtier
