// What the calls of the data service have in common. Internal to the service; includes gRPC.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>
#include <grpcpp/support/status.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/mutex.h"
#include "common/status.h"
#include "common/wire.h"
#include "service/kv_cache_service.h"
#include "service/prompt_ref.h"
#include "service/request_id.h"

namespace kvtier {

// Counts the slices of tiers' memory that gRPC still refers to. A transport may keep some for a
// moment after its server is gone, and they must not outlive the manager. Thread-safe.
class LentSlices {
 public:
  void Lend();
  void Return();
  // False when some are still out after `timeout` of real time.
  bool WaitReturned(Duration timeout);

 private:
  Mutex mutex_;
  CondVar returned_;
  int64_t lent_ KVTIER_GUARDED_BY(mutex_) = 0;
};

// What the service is made of; one for all calls. Thread-safe.
struct ServiceCore {
  ServiceCore(ServiceOptions options, TierManager* manager, CallRegistry* registry,
              Executor* executor, const Clock* clock, RpcStatsTable* stats);
  // Waits for the slices lent.
  ~ServiceCore();

  const ServiceOptions options;
  TierManager* const manager;
  CallRegistry* const registry;
  Executor* const executor;
  const Clock* const clock;
  RpcStatsTable* const stats;
  ServedModels models;
  LentSlices lent;
  RequestIds request_ids;
};

// One rpc's identity, deadline and end. Made when the request arrives; not thread-safe.
class Call {
 public:
  // Takes or makes the request id and puts it into the initial metadata.
  Call(ServiceCore* core, Rpc rpc, grpc::CallbackServerContext* context);

  // The client's, or `default_deadline` from its arrival.
  TimePoint Deadline(Duration default_deadline) const;
  // Whose limits the call counts against: the connection.
  std::string ClientName() const;
  // Counts and logs the end of the call and makes its status: with the request id in the message
  // and, where it is worth trying again, the delay in the trailing metadata. Once, before Finish.
  grpc::Status End(const absl::Status& status);

 private:
  ServiceCore* const core_;
  const Rpc rpc_;
  grpc::CallbackServerContext* const context_;
  const TimePoint arrival_;
  const std::string request_id_;
};

// A message that arrived, as slices that stay where they are while this lives.
class MessageSlices {
 public:
  explicit MessageSlices(const grpc::ByteBuffer& message);
  wire::Slices views() const { return views_; }

 private:
  std::vector<grpc::Slice> slices_;
  std::vector<std::string_view> views_;
};

}  // namespace kvtier
