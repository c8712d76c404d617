// One Store on the wire. Internal to the service; includes gRPC.
#pragma once

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <memory>
#include <string>

#include "common/mutex.h"
#include "common/running_checksum.h"
#include "service/call.h"
#include "service/store_writer.h"

namespace kvtier {

// Lands a stream of pieces in a StoreSession: each byte is copied once, from gRPC's slices into the
// slot, and hashed while it is in the cache. One message is processed while the next arrives; never
// more. Where room may have to be made by writing to a slower tier, the executor does the
// processing.
class StoreCall final : public grpc::ServerReadReactor<grpc::ByteBuffer>,
                        public CallRegistry::Stream,
                        public std::enable_shared_from_this<StoreCall> {
 public:
  // The returned reactor deletes itself after OnDone.
  static StoreCall* Start(ServiceCore* core, grpc::CallbackServerContext* context,
                          grpc::ByteBuffer* response);

  StoreCall(ServiceCore* core, grpc::CallbackServerContext* context, grpc::ByteBuffer* response);

  void Expire() override;
  void OnReadDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  enum class Step { kNone, kProcess, kMakeDurable, kFinish };

  absl::Status Open();
  // Does what can be done now; called whenever something has happened. Any thread.
  void Pump();
  Step NextStep() KVTIER_EXCLUDES(mutex_);
  void AbortLocked(const absl::Status& status) KVTIER_REQUIRES(mutex_);
  void Finish();
  // The processor's; one thread at a time, guarded by processing_.
  void Process();
  absl::Status ProcessMessage();
  absl::Status CheckPiece(const wire::Piece& piece) const;
  absl::Status TakePiece(const wire::Piece& piece, wire::Slices payload);
  absl::Status StartBlock();
  void Land(wire::Slices payload);
  void EndBlock(uint64_t checksum);
  void MakeDurable();
  absl::Status Complete();

  // Constant.
  ServiceCore* const core_;
  grpc::CallbackServerContext* const context_;
  grpc::ByteBuffer* const response_;
  TimePoint deadline_;

  // The processor's.
  grpc::ByteBuffer message_;
  std::unique_ptr<StoreWriter> writer_;  // from the header on
  uint32_t block_ = 0;                   // of the next piece
  uint64_t offset_ = 0;                  // of the next piece within the part
  bool wanted_ = false;                  // the part under way goes into a slot
  RunningChecksum received_;             // of the part under way

  // gRPC's while reading_.
  grpc::ByteBuffer incoming_;

  Mutex mutex_;
  Call call_ KVTIER_GUARDED_BY(mutex_);
  std::shared_ptr<StoreCall> self_ KVTIER_GUARDED_BY(mutex_);  // until OnDone
  bool arrived_ KVTIER_GUARDED_BY(mutex_) = false;             // incoming_ holds a message
  bool processing_ KVTIER_GUARDED_BY(mutex_) = false;
  bool ended_ KVTIER_GUARDED_BY(mutex_) = false;     // the client has sent all
  bool kept_ KVTIER_GUARDED_BY(mutex_) = false;      // as durable as was asked for
  bool aborted_ KVTIER_GUARDED_BY(mutex_) = false;   // nothing more is processed
  bool finished_ KVTIER_GUARDED_BY(mutex_) = false;  // Finish has been or is being called
  bool done_ KVTIER_GUARDED_BY(mutex_) = false;      // the context is gone
  absl::Status status_ KVTIER_GUARDED_BY(mutex_);
};

}  // namespace kvtier
