#include "common/block_key.h"

#include "absl/strings/escaping.h"
#include "absl/strings/string_view.h"
#include "xxhash.h"

#if defined(__x86_64__)
#define XXH_DISPATCH_DISABLE_REPLACE
#include "xxh_x86dispatch.h"
#endif

namespace kvtier {
namespace {

void PutBigEndian(uint64_t value, char* out) {
  const uint64_t swapped = __builtin_bswap64(value);
  std::memcpy(out, &swapped, sizeof(swapped));
}

uint64_t GetBigEndian(const char* in) {
  uint64_t value;
  std::memcpy(&value, in, sizeof(value));
  return __builtin_bswap64(value);
}

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

std::string Digest128::ToBytes() const {
  std::string out(kBytes, '\0');
  PutBigEndian(high, out.data());
  PutBigEndian(low, out.data() + 8);
  return out;
}

std::string Digest128::ToHex() const { return absl::BytesToHexString(ToBytes()); }

std::optional<Digest128> Digest128::FromBytes(std::string_view bytes) {
  if (bytes.size() != kBytes) return std::nullopt;
  return Digest128{GetBigEndian(bytes.data()), GetBigEndian(bytes.data() + 8)};
}

std::optional<Digest128> Digest128::FromHex(std::string_view hex) {
  if (hex.size() != 2 * kBytes) return std::nullopt;
  std::string bytes(kBytes, '\0');
  for (size_t i = 0; i < kBytes; ++i) {
    const int high = HexDigit(hex[2 * i]);
    const int low = HexDigit(hex[2 * i + 1]);
    if (high < 0 || low < 0) return std::nullopt;
    bytes[i] = static_cast<char>(high << 4 | low);
  }
  return FromBytes(bytes);
}

Digest128 Digest128::Of(std::string_view data) {
  const XXH128_hash_t hash = XXH3_128bits(data.data(), data.size());
  return Digest128{hash.high64, hash.low64};
}

uint64_t PayloadChecksum(const void* data, size_t bytes) {
#if defined(__x86_64__)
  return XXH3_64bits_dispatch(data, bytes);  // the widest vectors that the CPU has
#else
  return XXH3_64bits(data, bytes);
#endif
}

}  // namespace kvtier
