// One FetchShared on the wire. Internal to the service; includes gRPC.
#pragma once

#include <array>
#include <memory>
#include <string_view>
#include <vector>

#include "service/fetch_stream.h"
#include "service/shared_memory.h"

namespace kvtier {

// Tells where the views of a FetchSession lie. It is the lease that keeps them there, once the call
// has ended. Not metered as a Fetch is: when the last message is written the client has read
// nothing yet. What is recorded is the wait for slower tiers; how long it reads the client tells at
// Release.
class FetchSharedCall final : public FetchStream {
 public:
  FetchSharedCall(ServiceCore* core, grpc::CallbackServerContext* context)
      : FetchStream(core, Rpc::kFetchShared, /*metered=*/false, context) {}

 private:
  absl::StatusOr<std::unique_ptr<FetchSession>> Open(const grpc::ByteBuffer& request) override;
  bool Build(Message* message) override;
  bool TakeBlock(wire::SharedBlock* out);
  void Drop() override;
  void Count(const std::vector<wire::SharedBlock>& blocks);

  // By the tier that the bytes came from: what they waited for.
  BytesByTier bytes_{};
  std::array<Duration, kTiers> waited_{};
};

// NOT_FOUND without shared memory, or when it has no such session; INVALID_ARGUMENT without an id.
absl::StatusOr<std::shared_ptr<StoreRegion>> FindSharedSession(const ServiceCore& core,
                                                               std::string_view session_id);

}  // namespace kvtier
