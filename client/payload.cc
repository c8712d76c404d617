#include "client/payload.h"

#include <cstring>

#include "common/check.h"

#define XXH_STATIC_LINKING_ONLY  // for a state that can be allocated here
#include "xxhash.h"

#if defined(__x86_64__)
#define XXH_DISPATCH_DISABLE_REPLACE
#include <emmintrin.h>

#include "xxh_x86dispatch.h"
#endif

namespace kvtier::client_internal {

struct RunningChecksum::State {
  XXH3_state_t xxh;
};

RunningChecksum::RunningChecksum() : state_(std::make_unique<State>()) { Restart(); }
RunningChecksum::RunningChecksum(RunningChecksum&&) noexcept = default;
RunningChecksum& RunningChecksum::operator=(RunningChecksum&&) noexcept = default;
RunningChecksum::~RunningChecksum() = default;

void RunningChecksum::Restart() { KVTIER_CHECK(XXH3_64bits_reset(&state_->xxh) == XXH_OK); }

void RunningChecksum::Update(std::span<const std::byte> bytes) {
#if defined(__x86_64__)
  KVTIER_CHECK(XXH3_64bits_update_dispatch(&state_->xxh, bytes.data(), bytes.size()) == XXH_OK);
#else
  KVTIER_CHECK(XXH3_64bits_update(&state_->xxh, bytes.data(), bytes.size()) == XXH_OK);
#endif
}

uint64_t RunningChecksum::Value() const { return XXH3_64bits_digest(&state_->xxh); }

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

}  // namespace kvtier::client_internal
