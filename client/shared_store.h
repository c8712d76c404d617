// Stores through a session's store region.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "client/core.h"
#include "client/requests.h"
#include "client/shared_session.h"
#include "kvtier/client.h"
#include "kvtier/v1/kvtier.pb.h"

namespace kvtier::client_internal {

// payloads[skip...] in batches, each a StoreShared call: one half of the region is filled while the
// daemon takes the batch before out of the other. The reports of the calls add up to what one Store
// would have said. Not thread-safe.
class SharedStore {
 public:
  // What the arguments point at must outlive the store.
  SharedStore(Core* core, SharedSession* session, const EncodedPrompt& prompt,
              const StoreParams& params, std::span<const std::span<const std::byte>> payloads,
              uint32_t skip);

  // Every part fits into half of the region; otherwise Run must not be called.
  bool fits() const { return fits_; }
  // Fills in the report from `skip` on. After an error stored() payloads, `skip` included, are
  // accounted for. NOT_FOUND, UNIMPLEMENTED: gRPC can do the rest.
  absl::Status Run(Duration limit, StoreReport* report);
  uint32_t stored() const { return stored_; }

 private:
  // Consecutive payloads in one half of the region.
  struct Batch {
    uint32_t first = 0;
    uint32_t last = 0;  // not included
  };
  struct Call;

  void MakeBatches();
  bool IsLast(const Batch& batch) const { return batch.last == payloads_.size(); }
  bool Durable() const { return params_.durability == StoreDurability::kDurable; }
  std::string Fill(const Batch& batch, std::span<std::byte> half, uint64_t half_offset);
  void Copy(std::span<const std::byte> payload, std::byte* to, v1::SharedPayload* out);
  void Send(Call* call);
  absl::Status Take(const Batch& batch, Call* call);
  void RefuseRest(uint32_t first, uint32_t last, StoreRefusal refusal);

  Core* const core_;
  SharedSession* const session_;
  const EncodedPrompt& prompt_;
  const StoreParams& params_;
  const std::span<const std::span<const std::byte>> payloads_;
  const uint64_t half_bytes_;
  bool fits_ = true;
  std::vector<Batch> batches_;
  TimePoint end_;
  bool stopped_ = false;  // the calls' own: they run one after the other
  StoreReport* report_ = nullptr;
  uint32_t stored_;
  RunningChecksum checksum_;
};

}  // namespace kvtier::client_internal
