// One StoreShared on the wire. Internal to the service; includes gRPC.
#pragma once

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <memory>
#include <optional>
#include <span>

#include "common/running_checksum.h"
#include "common/store_ring.h"
#include "service/call.h"
#include "service/shared_memory.h"
#include "service/store_writer.h"

namespace kvtier {

// Takes the payloads out of the session's store region, one block after the other, while the client
// fills them in; on a thread for such calls, since it waits for the client. The region is held, and
// mapped, until the call has ended. Counts as a stream, as a Store does.
//
// The client may change the region at any moment. What has which length is known from the header
// and the model, which are this process's own; and of the payload every byte is read once, into a
// small buffer that stays in the CPU's cache: what is hashed there is what goes on to the slot.
class StoreSharedCall final : public grpc::ServerUnaryReactor,
                              public CallRegistry::Stream,
                              public std::enable_shared_from_this<StoreSharedCall> {
 public:
  // The returned reactor deletes itself after OnDone.
  static StoreSharedCall* Start(ServiceCore* core, grpc::CallbackServerContext* context,
                                const grpc::ByteBuffer* request, grpc::ByteBuffer* response);

  StoreSharedCall(ServiceCore* core, grpc::CallbackServerContext* context,
                  const grpc::ByteBuffer* request, grpc::ByteBuffer* response);

  void Expire() override { stopped_.store(true); }
  void OnCancel() override { stopped_.store(true); }
  void OnDone() override;

 private:
  absl::Status Open();
  void Run();
  absl::Status Store();
  absl::Status WhyStopped() const;
  absl::Status TakeBlocks(bool unverified);
  absl::Status TakeBlock(uint32_t block, bool unverified);
  absl::Status TakePart(std::byte* to);
  absl::StatusOr<uint64_t> TakeChecksum();
  void Finish(const absl::Status& status);

  // Constant.
  ServiceCore* const core_;
  grpc::CallbackServerContext* const context_;
  const grpc::ByteBuffer* const request_;
  grpc::ByteBuffer* const response_;
  TimePoint deadline_;

  // The deadline has passed, or the client or its session has gone.
  std::atomic<bool> stopped_{false};

  // Run's.
  Call call_;
  std::shared_ptr<StoreRegion> region_;  // acquired
  std::optional<StoreRingReader> ring_;
  std::unique_ptr<StoreWriter> writer_;
  RunningChecksum received_;

  std::shared_ptr<StoreSharedCall> self_;  // until OnDone
};

}  // namespace kvtier
