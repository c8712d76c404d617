#include "cli/replay_payload.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "common/check.h"

namespace kvtier::cli {
namespace {

constexpr uint64_t kStep = 0x9e3779b97f4a7c15;
constexpr uint64_t kMultiplier = 0xd6e8feb86659fd93;
constexpr uint64_t kTag = 0x316b6c427679766b;
constexpr uint64_t kWordBytes = 8;

// Word `index` of the stream. Each stands alone, so that a piece can be checked wherever it begins,
// and one multiplication keeps this faster than the transport.
inline uint64_t Word(uint64_t seed, uint64_t index) {
  uint64_t x = seed + index * kStep;
  x ^= x >> 32;
  x *= kMultiplier;
  return x ^ (x >> 29);
}

uint64_t Seed(const BlockKey& key) { return key.high ^ (key.low << 1 | key.low >> 63); }

using Header = std::array<std::byte, kPayloadHeaderBytes>;

Header MakeHeader(const BlockKey& key, uint64_t payload_bytes) {
  Header header;
  const std::string name = key.ToBytes();
  std::memcpy(header.data(), name.data(), 16);
  std::memcpy(header.data() + 16, &payload_bytes, 8);
  std::memcpy(header.data() + 24, &kTag, 8);
  return header;
}

// Compares `bytes` of the stream from byte `offset` within word offset / 8, at most to that word's
// end.
bool PartOfWordMatches(uint64_t seed, uint64_t offset, const std::byte* data, size_t bytes) {
  const uint64_t word = Word(seed, offset / kWordBytes);
  return std::memcmp(reinterpret_cast<const char*>(&word) + offset % kWordBytes, data, bytes) == 0;
}

bool StreamMatches(uint64_t seed, uint64_t offset, const std::byte* data, size_t bytes) {
  const size_t lead = std::min<size_t>((kWordBytes - offset % kWordBytes) % kWordBytes, bytes);
  if (lead > 0 && !PartOfWordMatches(seed, offset, data, lead)) return false;
  data += lead;
  const uint64_t first = (offset + lead) / kWordBytes;
  const size_t words = (bytes - lead) / kWordBytes;
  uint64_t difference = 0;
  for (size_t i = 0; i < words; ++i) {
    uint64_t seen;
    std::memcpy(&seen, data + i * kWordBytes, kWordBytes);
    difference |= seen ^ Word(seed, first + i);
  }
  if (difference != 0) return false;
  const size_t rest = (bytes - lead) % kWordBytes;
  return rest == 0 ||
         PartOfWordMatches(seed, (first + words) * kWordBytes, data + words * kWordBytes, rest);
}

}  // namespace

absl::Status CheckPayloadBytes(uint64_t block_bytes) {
  if (block_bytes >= kPayloadHeaderBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("block-bytes is ", block_bytes, ", the least is ", kPayloadHeaderBytes));
}

void FillPayload(const BlockKey& key, std::span<std::byte> out) {
  KVTIER_CHECK(out.size() >= kPayloadHeaderBytes);
  const Header header = MakeHeader(key, out.size());
  std::memcpy(out.data(), header.data(), header.size());
  const uint64_t seed = Seed(key);
  std::byte* stream = out.data() + kPayloadHeaderBytes;
  const size_t bytes = out.size() - kPayloadHeaderBytes;
  const size_t words = bytes / kWordBytes;
  for (size_t i = 0; i < words; ++i) {
    const uint64_t word = Word(seed, i);
    std::memcpy(stream + i * kWordBytes, &word, kWordBytes);
  }
  const uint64_t last = Word(seed, words);
  std::memcpy(stream + words * kWordBytes, &last, bytes % kWordBytes);
}

bool PayloadMatches(const BlockKey& key, uint64_t payload_bytes, uint64_t offset,
                    std::span<const std::byte> piece) {
  if (payload_bytes < kPayloadHeaderBytes || offset > payload_bytes ||
      piece.size() > payload_bytes - offset) {
    return false;
  }
  if (offset < kPayloadHeaderBytes) {
    const Header header = MakeHeader(key, payload_bytes);
    const size_t bytes = std::min<size_t>(kPayloadHeaderBytes - offset, piece.size());
    if (bytes > 0 && std::memcmp(header.data() + offset, piece.data(), bytes) != 0) return false;
    offset += bytes;
    piece = piece.subspan(bytes);
  }
  if (piece.empty()) return true;
  return StreamMatches(Seed(key), offset - kPayloadHeaderBytes, piece.data(), piece.size());
}

}  // namespace kvtier::cli
