// The 128-bit names of blocks and models.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

namespace kvtier {

// 128 bits, compared and hashed as they are. The bytes are XXH3-128's canonical (big-endian) form.
struct Digest128 {
  static constexpr size_t kBytes = 16;
  uint64_t high = 0;
  uint64_t low = 0;

  friend bool operator==(const Digest128&, const Digest128&) = default;
  friend auto operator<=>(const Digest128&, const Digest128&) = default;

  // 16 bytes, most significant first.
  std::string ToBytes() const;
  // 32 lower-case hex digits.
  std::string ToHex() const;
  // Empty unless `bytes` has 16 bytes.
  static std::optional<Digest128> FromBytes(std::string_view bytes);
  static std::optional<Digest128> FromHex(std::string_view hex);
  static Digest128 Of(std::string_view data);  // XXH3-128, seed 0

  template <typename H>
  friend H AbslHashValue(H h, const Digest128& d) {
    return H::combine(std::move(h), d.low);  // already uniform
  }
};

using BlockKey = Digest128;  // a block and everything before it
using ModelId = Digest128;   // digest of a canonical ModelSpec

// XXH3-64, seed 0: the checksum of a part's payload.
uint64_t PayloadChecksum(const void* data, size_t bytes);

}  // namespace kvtier
