// One StoreShared on the wire. Internal to the service; includes gRPC.
#pragma once

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <memory>
#include <span>

#include "common/mutex.h"
#include "common/running_checksum.h"
#include "service/call.h"
#include "service/shared_memory.h"
#include "service/store_writer.h"

namespace kvtier {

// Takes the payloads out of the session's store region, one block after the other, on the executor:
// the region is held, and mapped, until the call has ended. Counts as a stream, as a Store does.
//
// The client may change the region at any moment. So every length and offset is checked once, in
// the message, which is this process's own; and of the payload every byte is read once, into a
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
  absl::Status CheckPayloads(const wire::StoreSharedRequest& request) const;
  absl::Status TakeBlock(uint32_t block, const wire::SharedPayload& payload, bool unverified);
  uint64_t Land(std::span<const std::byte> from, std::span<std::byte> to);
  void Finish(const absl::Status& status);

  // Constant.
  ServiceCore* const core_;
  grpc::CallbackServerContext* const context_;
  const grpc::ByteBuffer* const request_;
  grpc::ByteBuffer* const response_;
  TimePoint deadline_;

  std::atomic<bool> stopped_{false};  // the deadline has passed, or the client has gone

  // Run's.
  Call call_;
  std::shared_ptr<const StoreRegion> region_;
  std::unique_ptr<StoreWriter> writer_;
  RunningChecksum received_;

  std::shared_ptr<StoreSharedCall> self_;  // until OnDone
};

}  // namespace kvtier
