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
  constexpr size_t kAhead =
      4096;  // the CPU's own prefetching does not keep up: 9.0 against 7.4 GB/s
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
    if (left > kAhead) __builtin_prefetch(source + kAhead, 0, 2);
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

void CopyPastAndKeep(std::byte* to, std::byte* kept, std::span<const std::byte> from) {
  constexpr size_t kVector = sizeof(__m128i);
  const bool aligned = reinterpret_cast<uintptr_t>(to) % kVector == 0;
  const size_t vectors = aligned ? from.size() / (4 * kVector) * 4 : 0;
  const auto* in = reinterpret_cast<const __m128i*>(from.data());
  auto* out = reinterpret_cast<__m128i*>(to);
  auto* own = reinterpret_cast<__m128i*>(kept);
  for (size_t i = 0; i < vectors; i += 4) {
    const __m128i a = _mm_loadu_si128(in + i);
    const __m128i b = _mm_loadu_si128(in + i + 1);
    const __m128i c = _mm_loadu_si128(in + i + 2);
    const __m128i d = _mm_loadu_si128(in + i + 3);
    _mm_storeu_si128(own + i, a);
    _mm_storeu_si128(own + i + 1, b);
    _mm_storeu_si128(own + i + 2, c);
    _mm_storeu_si128(own + i + 3, d);
    _mm_stream_si128(out + i, a);
    _mm_stream_si128(out + i + 1, b);
    _mm_stream_si128(out + i + 2, c);
    _mm_stream_si128(out + i + 3, d);
  }
  const size_t done = vectors * kVector;
  std::memcpy(kept + done, from.data() + done, from.size() - done);
  CopyPast(to + done, std::span<const std::byte>(kept + done, from.size() - done));
}

#else

void CopyPast(std::byte* to, std::span<const std::byte> from) {
  std::memcpy(to, from.data(), from.size());
}

void FinishCopies() {}

void CopyPastAndKeep(std::byte* to, std::byte* kept, std::span<const std::byte> from) {
  std::memcpy(kept, from.data(), from.size());
  std::memcpy(to, kept, from.size());
}

#endif

}  // namespace kvtier
