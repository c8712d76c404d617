// The data service, kvtier.v1.KvCache: protocol <-> types, validation, limits, deadlines, status
// codes. No policy: that is the TierManager's. Tokens are hashed and payload is moved where gRPC's
// messages lie.
//
//   Lookup  message slices -> wire -> PromptCursor -> TierManager::Lookup -> reply
//   Fetch   FetchSession -> views of slots -> message slices that keep them pinned -> one write in
//           flight and one message ready
//   Store   message slices -> copied once, into the slot, and hashed while in the cache -> Commit
//   FetchShared, StoreShared   the same, with references into shared memory for payload
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "common/clock.h"
#include "common/executor.h"
#include "common/model_spec.h"
#include "common/status.h"
#include "common/wire.h"
#include "service/call_registry.h"
#include "service/recorder.h"
#include "service/rpc_stats.h"
#include "storage/tier_manager.h"

namespace grpc {
class Service;
}

namespace kvtier {

class SharedMemory;

struct ServiceOptions {
  wire::Limits limits;  // of request messages; Fetch keeps to payload_bytes and pieces too
  uint64_t max_part_bytes = uint64_t{64} << 20;
  Duration min_lease = std::chrono::milliseconds(1);
  Duration max_lease = std::chrono::minutes(10);
  // For calls that come without a deadline.
  Duration unary_deadline = std::chrono::seconds(1);
  Duration stream_deadline = std::chrono::seconds(30);
  uint32_t retry_delay_ms = 100;  // told with RESOURCE_EXHAUSTED
  // Of engines that do not tell their own; 0: not known.
  double prefill_tokens_per_second = 0;
  // Makes a registered model survive a restart; may block. On a full disk it may say OK and leave
  // that to save_models. Empty: it does not survive.
  std::function<absl::Status(const ModelSpec&)> save_model;
  // OK once all registered models survive a restart, without which no block is durable; may block.
  std::function<absl::Status()> save_models;
  SharedMemory* shared_memory = nullptr;  // null: none is offered
  Recorder* recorder = nullptr;  // gets each Lookup that was answered; null: nothing is recorded
};

// What is passed in must outlive the service; `executor`'s tasks must have ended before the service
// is destroyed. The service must not be destroyed before the gRPC server it is registered with.
std::unique_ptr<grpc::Service> MakeKvCacheService(ServiceOptions options, TierManager* manager,
                                                  CallRegistry* registry, Executor* executor,
                                                  const Clock* clock, RpcStatsTable* stats);

}  // namespace kvtier
