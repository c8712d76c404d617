// Stores through a session's store region.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "client/core.h"
#include "client/requests.h"
#include "client/shared_session.h"
#include "common/running_checksum.h"
#include "common/store_ring.h"
#include "kvtier/client.h"

namespace kvtier::client_internal {

// payloads[skip...] by one StoreShared call: this thread fills the region's ring while the daemon
// takes out of it. Not thread-safe.
class SharedStore {
 public:
  // What the arguments point at must outlive the store.
  SharedStore(Core* core, SharedSession* session, const EncodedPrompt& prompt,
              const StoreParams& params, std::span<const std::span<const std::byte>> payloads,
              uint32_t skip)
      : core_(core),
        session_(session),
        prompt_(prompt),
        params_(params),
        payloads_(payloads.subspan(skip)),
        skip_(skip) {}

  // Fills in the report from `skip` on; after an error nothing of it. NOT_FOUND, UNIMPLEMENTED:
  // gRPC can do it.
  absl::Status Run(Duration limit, StoreReport* report);

 private:
  struct Call;

  std::string Head() const;
  void Send(Duration limit, Call* call);
  void Fill(StoreRingWriter* ring, const std::atomic<bool>& stop);
  bool FillPart(std::span<const std::byte> part, StoreRingWriter* ring,
                const std::atomic<bool>& stop);

  Core* const core_;
  SharedSession* const session_;
  const EncodedPrompt& prompt_;
  const StoreParams& params_;
  const std::span<const std::span<const std::byte>> payloads_;
  const uint32_t skip_;
  RunningChecksum checksum_;
};

}  // namespace kvtier::client_internal
