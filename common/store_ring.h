// The stream of payload in a session's store region, from the client that fills it in to the daemon
// that takes it out, at the same time (kvtier.proto, StoreSharedRequest).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "common/clock.h"
#include "common/status.h"

namespace kvtier {

// A counter in memory that several processes have mapped: one advances it, others wait for that.
class SharedCounter {
 public:
  // REQUIRES: `at` is aligned to 4 bytes and outlives the counter.
  explicit SharedCounter(std::byte* at) : word_(reinterpret_cast<uint32_t*>(at)) {}

  // What was written before a Set is seen after the Get that sees it.
  uint32_t Get() const { return std::atomic_ref(*word_).load(std::memory_order_acquire); }
  void Set(uint32_t value) {
    std::atomic_ref(*word_).store(value, std::memory_order_release);
    Wake();
  }
  // Waits while it is `value`, but no longer than 20 ms, nor past a Wake.
  void Await(uint32_t value) const;
  void Wake();

 private:
  uint32_t* const word_;
};

// Where things lie in a region, and how far one side has come.
class StoreRing {
 public:
  static constexpr uint64_t kLine = 64;
  static constexpr uint64_t kRingOffset = 4096;
  // Handed over at once: large beside the cost of saying so, small beside a core's cache.
  static constexpr uint64_t kPiece = uint64_t{256} << 10;

  static constexpr uint64_t ToLine(uint64_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }
  // Of a part with its checksum.
  static constexpr uint64_t StreamBytes(uint64_t part_bytes) { return ToLine(part_bytes) + kLine; }

 protected:
  static constexpr uint64_t kFilledOffset = 0;
  static constexpr uint64_t kTakenOffset = kLine;

  // `own`: where the counter lies that this side advances. REQUIRES: `region` begins on a line, and
  // has one after kRingOffset.
  StoreRing(std::span<std::byte> region, uint64_t own, uint64_t other);

  // At most `bytes` of what the next `lines` lines hold, at most a piece, in one span: so not
  // beyond the ring's end.
  std::span<std::byte> At(uint32_t lines, uint64_t bytes) const;
  // So many bytes are done, up to a whole line. The other side hears of it when a piece has come
  // together, or by Tell.
  void Advance(uint64_t bytes);
  void Tell();
  // The next line of the stream, as counters have it.
  uint32_t next() const { return static_cast<uint32_t>(next_); }

  const std::span<std::byte> ring_;
  const uint32_t lines_;  // of the ring
  SharedCounter own_;
  SharedCounter other_;

 private:
  uint64_t next_ = 0;  // line of the stream
  uint64_t told_ = 0;
};

// The client's side. Not thread-safe, save for Wake.
class StoreRingWriter : private StoreRing {
 public:
  // Begins a stream. REQUIRES: no call takes from the region.
  explicit StoreRingWriter(std::span<std::byte> region);

  // Whether so many bytes go in without anybody taking.
  bool Holds(uint64_t bytes) const { return bytes <= ring_.size(); }
  // Where the first of the next `bytes` bytes go. Waits while the ring is full; empty when `stop`
  // is set meanwhile.
  std::span<std::byte> Room(uint64_t bytes, const std::atomic<bool>& stop);
  // So many are there, and what remains of the last line is skipped. The daemon hears of it when a
  // piece has come together, when Room waits, or by Flush.
  void Fill(uint64_t bytes) { Advance(bytes); }
  void Flush() { Tell(); }
  // A Room that waits looks at its `stop`.
  void Wake() { other_.Wake(); }
};

// The daemon's side. The client may write anything anywhere in the region at any moment. Not
// thread-safe.
class StoreRingReader : private StoreRing {
 public:
  static constexpr Duration kStall = std::chrono::seconds(2);

  explicit StoreRingReader(std::span<std::byte> region)
      : StoreRing(region, kTakenOffset, kFilledOffset) {}

  // The first of the next `bytes` bytes; read each once. Waits while there are none. Errors:
  // CANCELLED when `stop` is set meanwhile, INVALID_ARGUMENT when more is filled in than the ring
  // has, ABORTED when nothing is for kStall.
  absl::StatusOr<std::span<const std::byte>> Next(uint64_t bytes, const std::atomic<bool>& stop);
  // So many have been taken, and what remains of the last line is skipped. The client hears of it
  // when a piece has come together, or when Next waits.
  void Take(uint64_t bytes) { Advance(bytes); }
};

}  // namespace kvtier
