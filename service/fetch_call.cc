#include "service/fetch_call.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace kvtier {
namespace {

// Below this, copying payload into the message's head costs less than a slice of its own.
constexpr uint64_t kCopyBelow = 2048;

struct Hold {
  std::shared_ptr<const void> pins;
  LentSlices* lent;
};

void DropHold(void* hold) {
  LentSlices* lent = static_cast<Hold*>(hold)->lent;
  delete static_cast<Hold*>(hold);
  lent->Return();
}

// A slice over the view's own bytes that keeps them where they are.
grpc::Slice HoldingSlice(const PartView& view, uint64_t offset, uint64_t bytes, LentSlices* lent) {
  lent->Lend();
  std::byte* from = const_cast<std::byte*>(view.bytes.data()) + offset;
  return grpc::Slice(from, bytes, &DropHold, new Hold{view.hold, lent});
}

}  // namespace

// A FetchResponse of at most limits.payload_bytes of payload.
class FetchCall::MessageBuilder {
 public:
  MessageBuilder(const wire::Limits& limits, LentSlices* lent) : limits_(limits), lent_(lent) {}

  bool empty() const { return pieces_ == 0; }
  const BytesByTier& bytes_from() const { return bytes_from_; }
  bool full() const { return room() == 0 || pieces_ == limits_.pieces; }
  uint64_t room() const { return limits_.payload_bytes - payload_bytes_; }

  void AddMiss(uint32_t block) { AddHead({.block = block, .status = wire::kBlockStatusMiss}); }

  // REQUIRES: bytes <= room().
  void AddPiece(uint32_t block, const PartView& view, uint64_t offset, uint64_t bytes) {
    AddHead({.block = block,
             .status = wire::kBlockStatusOk,
             .offset = offset,
             .part_bytes = view.bytes.size(),
             .checksum = view.checksum,
             .payload_bytes = bytes});
    payload_bytes_ += bytes;
    bytes_from_[static_cast<int>(view.tier)] += bytes;
    if (bytes < kCopyBelow) {
      copied_.append(reinterpret_cast<const char*>(view.bytes.data()) + offset, bytes);
      return;
    }
    FlushCopied();
    slices_.push_back(HoldingSlice(view, offset, bytes, lent_));
  }

  grpc::ByteBuffer Build() {
    FlushCopied();
    return grpc::ByteBuffer(slices_.data(), slices_.size());
  }

 private:
  void AddHead(const wire::Piece& piece) {
    char head[wire::kMaxPieceHead];
    copied_.append(head, wire::EncodePieceHead(wire::PieceField::kFetchResponse, piece, head));
    ++pieces_;
  }

  void FlushCopied() {
    if (copied_.empty()) return;
    slices_.emplace_back(copied_);
    copied_.clear();
  }

  const wire::Limits& limits_;
  LentSlices* const lent_;
  uint64_t payload_bytes_ = 0;
  BytesByTier bytes_from_{};
  uint64_t pieces_ = 0;
  std::string copied_;  // heads and small payloads since the last slice
  std::vector<grpc::Slice> slices_;
};

FetchCall* FetchCall::Start(ServiceCore* core, grpc::CallbackServerContext* context,
                            const grpc::ByteBuffer& request) {
  auto call = std::make_shared<FetchCall>(core, context);
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

FetchCall::FetchCall(ServiceCore* core, grpc::CallbackServerContext* context)
    : core_(core),
      context_(context),
      call_(core, Rpc::kFetch, context),
      meter_(core->clock->Now()) {}

absl::Status FetchCall::Begin(const grpc::ByteBuffer& request) {
  std::string client;
  {
    MutexLock lock(mutex_);
    deadline_ = call_.Deadline(core_->options.stream_deadline);
    client = call_.ClientName();
  }
  KVTIER_RETURN_IF_ERROR(core_->registry->Open(shared_from_this(), client, deadline_));
  const MessageSlices message(request);
  wire::FetchRequest fetch;
  KVTIER_RETURN_IF_ERROR(wire::DecodeFetchRequest(message.views(), core_->options.limits, &fetch));
  KVTIER_ASSIGN_OR_RETURN(session_, OpenSession(&fetch));
  if (session_->fetch_clock() != nullptr) lease_time_.emplace(session_->fetch_clock());
  allow_gaps_ = fetch.allow_gaps;
  block_ = session_->first();
  return absl::OkStatus();
}

// A prompt, when there is one, says which blocks are meant; a lease alone names those it pins.
absl::StatusOr<std::unique_ptr<FetchSession>> FetchCall::OpenSession(wire::FetchRequest* request) {
  if (request->has_prompt) {
    KVTIER_ASSIGN_OR_RETURN(const ModelId id, RequireModelId(request->prompt));
    KVTIER_ASSIGN_OR_RETURN(const ServedModel model, core_->models.Get(id));
    KVTIER_ASSIGN_OR_RETURN(const uint32_t part, PartIndex(request->part, model));
    KVTIER_ASSIGN_OR_RETURN(PromptRef prompt, ToPromptRef(&request->prompt, id, model));
    return core_->manager->BeginFetch(prompt, request->first_block, request->last_block, part);
  }
  if (request->lease_id == 0) {
    return absl::InvalidArgumentError("prompt and lease_id are missing, one of them must be given");
  }
  KVTIER_ASSIGN_OR_RETURN(const ModelId id, core_->manager->LeaseModel(request->lease_id));
  KVTIER_ASSIGN_OR_RETURN(const ServedModel model, core_->models.Get(id));
  KVTIER_ASSIGN_OR_RETURN(const uint32_t part, PartIndex(request->part, model));
  return core_->manager->BeginFetch(request->lease_id, request->first_block, request->last_block,
                                    part);
}

FetchCall::Step FetchCall::NextStep() {
  MutexLock lock(mutex_);
  if (finished_) return Step::kNone;
  if (!aborted_ && has_ready_ && !writing_) {
    outgoing_.Swap(&ready_);
    ready_.Clear();
    has_ready_ = false;
    writing_ = true;
    meter_.WriteBegins(ready_bytes_, core_->clock->Now());
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

void FetchCall::Pump() {
  const std::shared_ptr<FetchCall> keep = shared_from_this();
  const grpc::WriteOptions options = grpc::WriteOptions().set_no_compression();
  for (;;) {
    switch (NextStep()) {
      case Step::kNone:
        return;
      case Step::kWrite:
        StartWrite(&outgoing_, options);
        break;
      case Step::kWriteLast: {
        session_.reset();
        grpc::Status ok;
        {
          MutexLock lock(mutex_);
          ok = call_.End(absl::OkStatus());
        }
        core_->registry->FreePlace(this);
        StartWriteAndFinish(&outgoing_, options, ok);
        return;
      }
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

void FetchCall::Finish() {
  view_.reset();
  session_.reset();
  grpc::Status status;
  {
    MutexLock lock(mutex_);
    ready_.Clear();
    status = call_.End(status_);
  }
  core_->registry->FreePlace(this);
  ServerWriteReactor::Finish(std::move(status));
}

bool FetchCall::WouldWait() const {
  return !view_.has_value() && block_ < session_->last() && session_->WouldBlock(block_);
}

void FetchCall::Produce() {
  MessageBuilder message(core_->options.limits, &core_->lent);
  const bool exhausted = BuildMessage(&message);
  grpc::ByteBuffer built;
  if (!message.empty()) built = message.Build();
  MutexLock lock(mutex_);
  producing_ = false;
  exhausted_ = exhausted;
  if (exhausted && !aborted_) status_ = stop_;
  has_ready_ = !message.empty() && !aborted_;
  if (has_ready_) {
    ready_.Swap(&built);
    ready_bytes_ = message.bytes_from();
  }
}

// Fills one message; what is ready is not held back by a block that would have to be waited for.
// True when nothing is left to send.
bool FetchCall::BuildMessage(MessageBuilder* message) {
  while (!message->full()) {
    if (!view_.has_value()) {
      if (block_ == session_->last()) return true;
      if (!message->empty() && WouldWait()) return false;
      if (!TakeBlock(message)) return true;
      if (!view_.has_value()) continue;  // a miss
    }
    const uint64_t bytes = std::min(message->room(), view_->bytes.size() - offset_);
    message->AddPiece(block_ - 1, *view_, offset_, bytes);
    offset_ += bytes;
    if (offset_ == view_->bytes.size()) view_.reset();
  }
  return !view_.has_value() && block_ == session_->last();
}

// The next block's view, or a miss in the message. False when the stream ends here.
bool FetchCall::TakeBlock(MessageBuilder* message) {
  absl::StatusOr<PartView> view = session_->Next(block_, deadline_);
  ++block_;
  offset_ = 0;
  if (view.ok()) {
    view_ = std::move(*view);
    return true;
  }
  if (!absl::IsNotFound(view.status()) && !absl::IsDataLoss(view.status())) {
    stop_ = view.status();
    return false;
  }
  message->AddMiss(block_ - 1);
  return allow_gaps_;
}

void FetchCall::AbortLocked(const absl::Status& status) {
  if (aborted_ || finished_) return;
  aborted_ = true;
  status_ = status;
}

// What the peer does not read can be ended only by resetting the stream.
void FetchCall::Expire() {
  {
    MutexLock lock(mutex_);
    if (done_) return;
    AbortLocked(absl::DeadlineExceededError("the call's deadline has passed"));
    if (writing_) context_->TryCancel();
  }
  Pump();
}

void FetchCall::OnWriteDone(bool ok) {
  {
    MutexLock lock(mutex_);
    writing_ = false;
    meter_.WriteEnds(core_->clock->Now());
    outgoing_.Clear();
    if (!ok) AbortLocked(absl::CancelledError("the client has gone"));
  }
  Pump();
}

void FetchCall::OnCancel() {
  {
    MutexLock lock(mutex_);
    AbortLocked(absl::CancelledError("the client has gone"));
  }
  Pump();
}

void FetchCall::OnDone() {
  std::shared_ptr<FetchCall> self;
  lease_time_.reset();
  {
    MutexLock lock(mutex_);
    done_ = true;
    self = std::move(self_);
    if (writing_) meter_.WriteEnds(core_->clock->Now());  // of kWriteLast
    if (!aborted_ && status_.ok()) core_->manager->speeds().Record(meter_);
  }
  core_->registry->Close(this);
}

}  // namespace kvtier
