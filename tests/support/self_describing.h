// Payload that says whose it is: bytes of another block, of another prompt, or never written show.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace kvtier {

inline constexpr std::byte kPoison{0xEE};  // what a buffer has before it is fetched into

// The word at each multiple of 8, and what of it fits at the end.
inline uint64_t SelfDescribingWord(uint64_t seed, uint64_t block, uint64_t index) {
  return (seed << 40) ^ (block << 24) ^ (index * 0x9E3779B97F4A7C15);
}

inline void FillSelfDescribing(uint64_t seed, uint64_t block, std::span<std::byte> out) {
  for (size_t i = 0; i < out.size(); i += sizeof(uint64_t)) {
    const uint64_t word = SelfDescribingWord(seed, block, i);
    std::memcpy(out.data() + i, &word, std::min(sizeof(word), out.size() - i));
  }
}

inline std::vector<std::byte> SelfDescribing(uint64_t seed, uint64_t block, uint64_t bytes) {
  std::vector<std::byte> out(bytes);
  FillSelfDescribing(seed, block, out);
  return out;
}

inline bool IsSelfDescribing(uint64_t seed, uint64_t block, std::span<const std::byte> bytes) {
  for (size_t i = 0; i < bytes.size(); i += sizeof(uint64_t)) {
    const uint64_t word = SelfDescribingWord(seed, block, i);
    if (std::memcmp(bytes.data() + i, &word, std::min(sizeof(word), bytes.size() - i)) != 0) {
      return false;
    }
  }
  return !bytes.empty();
}

}  // namespace kvtier
