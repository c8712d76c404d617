// One Fetch on the wire. Internal to the service; includes gRPC.
#pragma once

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <memory>
#include <optional>

#include "common/mutex.h"
#include "service/call.h"
#include "storage/fetch_clock.h"
#include "storage/sessions.h"
#include "storage/tier_speeds.h"

namespace kvtier {

// Streams the views of a FetchSession. While one message is being written the next is prepared;
// never more, so a slow reader costs two messages' worth of pins and no memory. What would wait for
// a slower tier is prepared on the executor, never on gRPC's threads.
class FetchCall final : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
                        public CallRegistry::Stream,
                        public std::enable_shared_from_this<FetchCall> {
 public:
  // The returned reactor deletes itself after OnDone.
  static FetchCall* Start(ServiceCore* core, grpc::CallbackServerContext* context,
                          const grpc::ByteBuffer& request);

  FetchCall(ServiceCore* core, grpc::CallbackServerContext* context);

  void Expire() override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  class MessageBuilder;
  enum class Step { kNone, kWrite, kWriteLast, kProduce, kFinish };

  absl::Status Begin(const grpc::ByteBuffer& request);
  absl::StatusOr<std::unique_ptr<FetchSession>> OpenSession(wire::FetchRequest* request);
  // Does what can be done now; called whenever something has happened. Any thread.
  void Pump();
  Step NextStep() KVTIER_EXCLUDES(mutex_);
  void AbortLocked(const absl::Status& status) KVTIER_REQUIRES(mutex_);
  void Finish();
  // The producer's; one thread at a time, guarded by producing_.
  void Produce();
  bool WouldWait() const;
  bool BuildMessage(MessageBuilder* message);
  bool TakeBlock(MessageBuilder* message);

  // Constant.
  ServiceCore* const core_;
  grpc::CallbackServerContext* const context_;
  bool allow_gaps_ = false;
  TimePoint deadline_;
  std::optional<FetchClock::Running> lease_time_;  // until OnDone

  // The producer's.
  std::unique_ptr<FetchSession> session_;
  uint32_t block_ = 0;            // next to take
  std::optional<PartView> view_;  // of block_ - 1, while some of it is unsent
  uint64_t offset_ = 0;           // of view_, sent
  absl::Status stop_;             // why the stream ends early

  // The writer's: from the step kWrite to OnWriteDone.
  grpc::ByteBuffer outgoing_;

  Mutex mutex_;
  Call call_ KVTIER_GUARDED_BY(mutex_);
  std::shared_ptr<FetchCall> self_ KVTIER_GUARDED_BY(mutex_);  // until OnDone
  bool producing_ KVTIER_GUARDED_BY(mutex_) = true;            // Begin counts as producing
  bool exhausted_ KVTIER_GUARDED_BY(mutex_) = false;           // nothing more to produce
  bool has_ready_ KVTIER_GUARDED_BY(mutex_) = false;
  grpc::ByteBuffer ready_ KVTIER_GUARDED_BY(mutex_);
  BytesByTier ready_bytes_ KVTIER_GUARDED_BY(mutex_){};
  FetchMeter meter_ KVTIER_GUARDED_BY(mutex_);
  bool writing_ KVTIER_GUARDED_BY(mutex_) = false;
  bool aborted_ KVTIER_GUARDED_BY(mutex_) = false;   // nothing more is written
  bool finished_ KVTIER_GUARDED_BY(mutex_) = false;  // Finish has been or is being called
  bool done_ KVTIER_GUARDED_BY(mutex_) = false;      // the context is gone
  absl::Status status_ KVTIER_GUARDED_BY(mutex_);
};

}  // namespace kvtier
