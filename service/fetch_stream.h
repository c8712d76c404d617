// What Fetch and FetchShared have in common on the wire. Internal to the service; includes gRPC.
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

// Streams messages about the blocks of a FetchSession. While one message is being written the next
// is prepared; never more, so a slow reader costs two messages' worth of pins and no memory. What
// would wait for a slower tier is prepared on the executor, never on gRPC's threads.
class FetchStream : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
                    public CallRegistry::Stream,
                    public std::enable_shared_from_this<FetchStream> {
 public:
  // The returned reactor deletes itself after OnDone.
  static FetchStream* Start(std::shared_ptr<FetchStream> call, const grpc::ByteBuffer& request);

  void Expire() final;
  void OnWriteDone(bool ok) final;
  void OnCancel() final;
  void OnDone() final;

 protected:
  struct Message {
    grpc::ByteBuffer bytes;
    bool empty = true;
    BytesByTier from{};  // the payload in it
  };

  // `metered`: the messages carry the payload, so the time that they take is that of a fetch.
  FetchStream(ServiceCore* core, Rpc rpc, bool metered, grpc::CallbackServerContext* context);

  // Decodes the request, and returns what it asks for.
  virtual absl::StatusOr<std::unique_ptr<FetchSession>> Open(const grpc::ByteBuffer& request) = 0;
  // Fills one message; what is ready is not held back by a block that would have to be waited for.
  // True when nothing is left to send; with `stop_` when the stream ends early. One thread at a
  // time.
  virtual bool Build(Message* message) = 0;
  // Build would wait for a slower tier. On the same threads as Build.
  virtual bool WouldWait() const;
  // Gives the session back, and what is left of a block.
  virtual void Drop() { session_.reset(); }

  ServiceCore* const core_;
  // Constant once Open has returned.
  bool allow_gaps_ = false;
  TimePoint deadline_;
  // Build's.
  std::unique_ptr<FetchSession> session_;
  uint32_t block_ = 0;  // next to take
  absl::Status stop_;   // why the stream ends early

 private:
  enum class Step { kNone, kWrite, kWriteLast, kProduce, kFinish };

  absl::Status Begin(const grpc::ByteBuffer& request);
  // Does what can be done now; called whenever something has happened. Any thread.
  void Pump();
  Step NextStep() KVTIER_EXCLUDES(mutex_);
  void AbortLocked(const absl::Status& status) KVTIER_REQUIRES(mutex_);
  void WriteLast();
  void Finish();
  // One thread at a time, guarded by producing_.
  void Produce();

  // Constant.
  grpc::CallbackServerContext* const context_;
  const bool metered_;
  std::optional<FetchClock::Running> lease_time_;  // until OnDone

  // The writer's: from the step kWrite to OnWriteDone.
  grpc::ByteBuffer outgoing_;

  Mutex mutex_;
  Call call_ KVTIER_GUARDED_BY(mutex_);
  std::shared_ptr<FetchStream> self_ KVTIER_GUARDED_BY(mutex_);  // until OnDone
  bool producing_ KVTIER_GUARDED_BY(mutex_) = true;              // Begin counts as producing
  bool exhausted_ KVTIER_GUARDED_BY(mutex_) = false;             // nothing more to produce
  bool has_ready_ KVTIER_GUARDED_BY(mutex_) = false;
  Message ready_ KVTIER_GUARDED_BY(mutex_);
  FetchMeter meter_ KVTIER_GUARDED_BY(mutex_);
  bool writing_ KVTIER_GUARDED_BY(mutex_) = false;
  bool aborted_ KVTIER_GUARDED_BY(mutex_) = false;   // nothing more is written
  bool finished_ KVTIER_GUARDED_BY(mutex_) = false;  // Finish has been or is being called
  bool done_ KVTIER_GUARDED_BY(mutex_) = false;      // the context is gone
  absl::Status status_ KVTIER_GUARDED_BY(mutex_);
};

}  // namespace kvtier
