#include "common/hashed_copy.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "common/copy_past.h"

namespace kvtier {
namespace {

constexpr size_t kLine = 64;
constexpr size_t kAhead = 4096;  // hashing alone: 13.2 GB/s, 10.4 without
// Measured, memory to memory, in GB/s of CPU time where CopyPast alone has 8.6 and memcpy 6.1: 7.4
// (6.3 with pieces of 4 KiB and no prefetch, 5.2 with 64 KiB).
constexpr size_t kPiece = 2048;
// 6.4 (5.9 with 2 KiB; 5.0 where the copy is made first, 16 KiB at a time, and then hashed).
constexpr size_t kKeptPiece = 1024;

// Into the second cache: the first would lose what is being hashed.
void PrefetchPiece(std::span<const std::byte> from, size_t piece) {
  if (from.size() <= kAhead) return;
  const size_t end = std::min(from.size(), kAhead + piece);
  for (size_t i = kAhead; i < end; i += kLine) __builtin_prefetch(from.data() + i, 0, 2);
}

// Calls work(offset, piece) for pieces of at most kBytes, end to end.
template <size_t kBytes, typename Work>
void ByPieces(std::span<const std::byte> bytes, const Work& work) {
  for (size_t offset = 0; offset < bytes.size(); offset += kBytes) {
    const std::span<const std::byte> rest = bytes.subspan(offset);
    PrefetchPiece(rest, kBytes);
    work(offset, rest.first(std::min(rest.size(), kBytes)));
  }
}

}  // namespace

void HashAndCopyPast(std::byte* to, std::span<const std::byte> from, RunningChecksum* checksum) {
  ByPieces<kPiece>(from, [to, checksum](size_t offset, std::span<const std::byte> piece) {
    checksum->Update(piece);
    CopyPast(to + offset, piece);
  });
}

void HashAndCopy(std::byte* to, std::span<const std::byte> from, RunningChecksum* checksum) {
  ByPieces<kPiece>(from, [to, checksum](size_t offset, std::span<const std::byte> piece) {
    checksum->Update(piece);
    std::memcpy(to + offset, piece.data(), piece.size());
  });
}

void HashFromMemory(std::span<const std::byte> bytes, RunningChecksum* checksum) {
  ByPieces<kPiece>(
      bytes, [checksum](size_t, std::span<const std::byte> piece) { checksum->Update(piece); });
}

void HashAndCopyPastOnce(std::byte* to, std::span<const std::byte> from,
                         RunningChecksum* checksum) {
  alignas(kLine) std::array<std::byte, kKeptPiece> kept;
  ByPieces<kKeptPiece>(from, [&](size_t offset, std::span<const std::byte> piece) {
    CopyPastAndKeep(to + offset, kept.data(), piece);
    checksum->Update(std::span(kept).first(piece.size()));
  });
}

}  // namespace kvtier
