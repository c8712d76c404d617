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

StoreRing::StoreRing(std::span<std::byte> region)
    : ring_(region.subspan(kRingOffset, (region.size() - kRingOffset) / kLine * kLine)),
      lines_(LinesOf(ring_.size())),
      filled_(region.data()),
      taken_(region.data() + kLine) {
  KVTIER_CHECK(lines_ > 0);
}

std::span<std::byte> StoreRing::At(uint64_t line, uint32_t lines, uint64_t bytes) const {
  const uint64_t begin = line % lines_ * kLine;
  return ring_.subspan(begin,
                       std::min({bytes, uint64_t{lines} * kLine, kPiece, ring_.size() - begin}));
}

void StoreRing::Tell(SharedCounter* counter, uint64_t line, uint64_t* told, bool now) {
  if (line == *told || (!now && (line - *told) * kLine < kPiece)) return;
  counter->Set(static_cast<uint32_t>(line));
  *told = line;
}

StoreRingWriter::StoreRingWriter(std::span<std::byte> region) : StoreRing(region) {
  taken_.Set(0);
  filled_.Set(0);
}

std::span<std::byte> StoreRingWriter::Room(uint64_t bytes, const std::atomic<bool>& stop) {
  for (;;) {
    const uint32_t taken = taken_.Get();
    const uint32_t full = static_cast<uint32_t>(next_) - taken;
    if (full < lines_) return At(next_, lines_ - full, bytes);
    if (stop.load()) return {};
    Flush();
    taken_.Await(taken);
  }
}

void StoreRingWriter::Fill(uint64_t bytes) {
  next_ += LinesOf(bytes);
  Tell(&filled_, next_, &told_, false);
}

void StoreRingWriter::Flush() { Tell(&filled_, next_, &told_, true); }

absl::StatusOr<std::span<const std::byte>> StoreRingReader::Next(uint64_t bytes,
                                                                 const std::atomic<bool>& stop) {
  const TimePoint end = std::chrono::steady_clock::now() + kStall;
  for (;;) {
    const uint32_t filled = filled_.Get();
    const uint32_t lines = filled - static_cast<uint32_t>(next_);
    if (lines > lines_) {
      return absl::InvalidArgumentError(
          absl::StrCat("filled is ", lines, " lines beyond taken, the ", "ring has ", lines_));
    }
    if (lines > 0) return At(next_, lines, bytes);
    if (stop.load()) return absl::CancelledError("stopped");
    Tell(&taken_, next_, &told_, true);
    if (std::chrono::steady_clock::now() > end) {
      // Not the call's deadline: a client that was only late has time left, and can Store.
      return absl::AbortedError(absl::StrCat("the client has filled nothing in for ",
                                             kStall / std::chrono::seconds(1), " s"));
    }
    filled_.Await(filled);
  }
}

void StoreRingReader::Take(uint64_t bytes) {
  next_ += LinesOf(bytes);
  Tell(&taken_, next_, &told_, false);
}

}  // namespace kvtier
