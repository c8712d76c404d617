#include "service/fetch_stream.h"

#include <string>
#include <utility>

namespace kvtier {

FetchStream* FetchStream::Start(std::shared_ptr<FetchStream> call,
                                const grpc::ByteBuffer& request) {
  const absl::Status begun = call->Begin(request);
  {
    MutexLock lock(call->mutex_);
    call->self_ = call;
    call->producing_ = false;
    if (!begun.ok()) call->AbortLocked(begun);
  }
  call->Pump();
  return call.get();
}

FetchStream::FetchStream(ServiceCore* core, Rpc rpc, bool metered,
                         grpc::CallbackServerContext* context)
    : core_(core),
      context_(context),
      metered_(metered),
      call_(core, rpc, context),
      meter_(core->clock->Now()) {}

absl::Status FetchStream::Begin(const grpc::ByteBuffer& request) {
  std::string client;
  {
    MutexLock lock(mutex_);
    deadline_ = call_.Deadline(core_->options.stream_deadline);
    client = call_.ClientName();
  }
  KVTIER_RETURN_IF_ERROR(core_->registry->Open(shared_from_this(), client, deadline_));
  KVTIER_ASSIGN_OR_RETURN(session_, Open(request));
  if (session_->fetch_clock() != nullptr) lease_time_.emplace(session_->fetch_clock());
  block_ = session_->first();
  return absl::OkStatus();
}

bool FetchStream::WouldWait() const {
  return block_ < session_->last() && session_->WouldBlock(block_);
}

FetchStream::Step FetchStream::NextStep() {
  MutexLock lock(mutex_);
  if (finished_) return Step::kNone;
  if (!aborted_ && has_ready_ && !writing_) {
    outgoing_.Swap(&ready_.bytes);
    ready_.bytes.Clear();
    has_ready_ = false;
    writing_ = true;
    meter_.WriteBegins(ready_.from, core_->clock->Now());
    finished_ = exhausted_ && status_.ok();
    return finished_ ? Step::kWriteLast : Step::kWrite;
  }
  if (!aborted_ && !exhausted_ && !producing_ && !has_ready_) {
    producing_ = true;
    return Step::kProduce;
  }
  const bool over = aborted_ || (exhausted_ && !has_ready_);
  if (!over || producing_ || writing_) return Step::kNone;
  finished_ = true;
  return Step::kFinish;
}

void FetchStream::Pump() {
  const std::shared_ptr<FetchStream> keep = shared_from_this();
  for (;;) {
    switch (NextStep()) {
      case Step::kNone:
        return;
      case Step::kWrite:
        StartWrite(&outgoing_, grpc::WriteOptions().set_no_compression());
        break;
      case Step::kWriteLast:
        WriteLast();
        return;
      case Step::kProduce:
        if (WouldWait()) {
          core_->executor->Run([keep] {
            keep->Produce();
            keep->Pump();
          });
          return;
        }
        Produce();
        break;
      case Step::kFinish:
        Finish();
        return;
    }
  }
}

void FetchStream::WriteLast() {
  Drop();
  grpc::Status ok;
  {
    MutexLock lock(mutex_);
    ok = call_.End(absl::OkStatus());
  }
  core_->registry->FreePlace(this);
  StartWriteAndFinish(&outgoing_, grpc::WriteOptions().set_no_compression(), ok);
}

void FetchStream::Finish() {
  Drop();
  grpc::Status status;
  {
    MutexLock lock(mutex_);
    ready_.bytes.Clear();
    status = call_.End(status_);
  }
  core_->registry->FreePlace(this);
  ServerWriteReactor::Finish(std::move(status));
}

void FetchStream::Produce() {
  Message message;
  const bool exhausted = Build(&message);
  MutexLock lock(mutex_);
  producing_ = false;
  exhausted_ = exhausted;
  if (exhausted && !aborted_) status_ = stop_;
  has_ready_ = !message.empty && !aborted_;
  if (has_ready_) {
    ready_.bytes.Swap(&message.bytes);
    ready_.from = message.from;
  }
}

void FetchStream::AbortLocked(const absl::Status& status) {
  if (aborted_ || finished_) return;
  aborted_ = true;
  status_ = status;
}

// What the peer does not read can be ended only by resetting the stream.
void FetchStream::Expire() {
  {
    MutexLock lock(mutex_);
    if (done_) return;
    AbortLocked(absl::DeadlineExceededError("the call's deadline has passed"));
    if (writing_) context_->TryCancel();
  }
  Pump();
}

void FetchStream::OnWriteDone(bool ok) {
  {
    MutexLock lock(mutex_);
    writing_ = false;
    meter_.WriteEnds(core_->clock->Now());
    outgoing_.Clear();
    if (!ok) AbortLocked(absl::CancelledError("the client has gone"));
  }
  Pump();
}

void FetchStream::OnCancel() {
  {
    MutexLock lock(mutex_);
    AbortLocked(absl::CancelledError("the client has gone"));
  }
  Pump();
}

void FetchStream::OnDone() {
  std::shared_ptr<FetchStream> self;
  lease_time_.reset();
  {
    MutexLock lock(mutex_);
    done_ = true;
    self = std::move(self_);
    if (writing_) meter_.WriteEnds(core_->clock->Now());  // of kWriteLast
    if (metered_ && !aborted_ && status_.ok()) core_->manager->speeds().Record(meter_);
  }
  core_->registry->Close(this);
}

}  // namespace kvtier
