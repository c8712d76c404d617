#include "common/copy_past.h"

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace kvtier {

#if defined(__x86_64__)

void CopyPast(std::byte* to, std::span<const std::byte> from) {
  constexpr size_t kLine = 64;
  const std::byte* source = from.data();
  size_t left = from.size();
  const size_t to_line = -reinterpret_cast<uintptr_t>(to) % kLine;
  if (left < kLine * 4) {
    std::memcpy(to, source, left);
    return;
  }
  std::memcpy(to, source, to_line);
  to += to_line;
  source += to_line;
  left -= to_line;
  for (; left >= kLine; left -= kLine, to += kLine, source += kLine) {
    const __m128i* in = reinterpret_cast<const __m128i*>(source);
    __m128i* out = reinterpret_cast<__m128i*>(to);
    const __m128i a = _mm_loadu_si128(in);
    const __m128i b = _mm_loadu_si128(in + 1);
    const __m128i c = _mm_loadu_si128(in + 2);
    const __m128i d = _mm_loadu_si128(in + 3);
    _mm_stream_si128(out, a);
    _mm_stream_si128(out + 1, b);
    _mm_stream_si128(out + 2, c);
    _mm_stream_si128(out + 3, d);
  }
  std::memcpy(to, source, left);
}

void FinishCopies() { _mm_sfence(); }

#else

void CopyPast(std::byte* to, std::span<const std::byte> from) {
  std::memcpy(to, from.data(), from.size());
}

void FinishCopies() {}

#endif

}  // namespace kvtier
