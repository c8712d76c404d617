// One FetchShared on the wire. Internal to the service; includes gRPC.
#pragma once

#include <memory>
#include <vector>

#include "service/fetch_stream.h"
#include "service/shared_memory.h"

namespace kvtier {

// Tells where the views of a FetchSession lie. It is the lease that keeps them there, once the call
// has ended. Not metered: when the last message is written the client has read nothing yet.
class FetchSharedCall final : public FetchStream {
 public:
  FetchSharedCall(ServiceCore* core, grpc::CallbackServerContext* context)
      : FetchStream(core, Rpc::kFetchShared, /*metered=*/false, context) {}

 private:
  absl::StatusOr<std::unique_ptr<FetchSession>> Open(const grpc::ByteBuffer& request) override;
  bool Build(Message* message) override;
  bool TakeBlock(wire::SharedBlock* out);
  void Count(const std::vector<wire::SharedBlock>& blocks);
};

// NOT_FOUND without shared memory, or when it has no such session; INVALID_ARGUMENT without an id.
absl::StatusOr<std::shared_ptr<const StoreRegion>> FindSharedSession(const ServiceCore& core,
                                                                     std::string_view session_id);

}  // namespace kvtier
