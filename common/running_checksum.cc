#include "common/running_checksum.h"

#include "common/check.h"

#define XXH_STATIC_LINKING_ONLY  // for a state that can be allocated here
#include "xxhash.h"

#if defined(__x86_64__)
#define XXH_DISPATCH_DISABLE_REPLACE
#include "xxh_x86dispatch.h"
#else
#define XXH3_64bits_update_dispatch XXH3_64bits_update
#endif

namespace kvtier {

struct RunningChecksum::State {
  XXH3_state_t xxh;
};

RunningChecksum::RunningChecksum() : state_(std::make_unique<State>()) { Restart(); }
RunningChecksum::~RunningChecksum() = default;
RunningChecksum::RunningChecksum(RunningChecksum&&) noexcept = default;
RunningChecksum& RunningChecksum::operator=(RunningChecksum&&) noexcept = default;

void RunningChecksum::Restart() { KVTIER_CHECK(XXH3_64bits_reset(&state_->xxh) == XXH_OK); }

void RunningChecksum::Update(std::span<const std::byte> bytes) {
  KVTIER_CHECK(XXH3_64bits_update_dispatch(&state_->xxh, bytes.data(), bytes.size()) == XXH_OK);
}

uint64_t RunningChecksum::Value() const { return XXH3_64bits_digest(&state_->xxh); }

}  // namespace kvtier
