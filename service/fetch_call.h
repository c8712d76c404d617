// One Fetch on the wire. Internal to the service; includes gRPC.
#pragma once

#include <memory>
#include <optional>

#include "service/fetch_stream.h"

namespace kvtier {

// Sends the views of a FetchSession as pieces, in slices that keep them pinned.
class FetchCall final : public FetchStream {
 public:
  FetchCall(ServiceCore* core, grpc::CallbackServerContext* context)
      : FetchStream(core, Rpc::kFetch, /*metered=*/true, context) {}

 private:
  class MessageBuilder;

  absl::StatusOr<std::unique_ptr<FetchSession>> Open(const grpc::ByteBuffer& request) override;
  absl::StatusOr<std::unique_ptr<FetchSession>> OpenSession(wire::FetchRequest* request);
  bool Build(Message* message) override;
  bool WouldWait() const override { return !view_.has_value() && FetchStream::WouldWait(); }
  void Drop() override;
  bool Fill(MessageBuilder* message);
  bool TakeBlock(MessageBuilder* message);

  std::optional<PartView> view_;  // of block_ - 1, while some of it is unsent
  uint64_t offset_ = 0;           // of view_, sent
};

}  // namespace kvtier
