#include "service/store_call.h"

#include <algorithm>
#include <utility>

#include "common/copy_past.h"

namespace kvtier {
StoreCall* StoreCall::Start(ServiceCore* core, grpc::CallbackServerContext* context,
                            grpc::ByteBuffer* response) {
  auto call = std::make_shared<StoreCall>(core, context, response);
  const absl::Status opened = call->Open();
  {
    MutexLock lock(call->mutex_);
    call->self_ = call;
    if (!opened.ok()) call->AbortLocked(opened);
  }
  if (opened.ok()) call->StartRead(&call->incoming_);
  call->Pump();
  return call.get();
}

StoreCall::StoreCall(ServiceCore* core, grpc::CallbackServerContext* context,
                     grpc::ByteBuffer* response)
    : core_(core), context_(context), response_(response), call_(core, Rpc::kStore, context) {}

absl::Status StoreCall::Open() {
  MutexLock lock(mutex_);
  deadline_ = call_.Deadline(core_->options.stream_deadline);
  return core_->registry->Open(shared_from_this(), call_.ClientName(), deadline_);
}

StoreCall::Step StoreCall::NextStep() {
  MutexLock lock(mutex_);
  if (finished_ || processing_) return Step::kNone;
  if (!aborted_ && arrived_) {
    message_.Swap(&incoming_);
    incoming_.Clear();
    arrived_ = false;
    processing_ = true;
    return Step::kProcess;
  }
  if (!aborted_ && !ended_) return Step::kNone;
  if (!aborted_ && !kept_ && writer_ != nullptr && writer_->durable()) {
    processing_ = true;
    return Step::kMakeDurable;
  }
  finished_ = true;
  return Step::kFinish;
}

void StoreCall::Pump() {
  const std::shared_ptr<StoreCall> keep = shared_from_this();
  for (;;) {
    switch (NextStep()) {
      case Step::kNone:
        return;
      case Step::kProcess:
        StartRead(&incoming_);
        if (writer_ != nullptr && writer_->session().WouldBlock()) {
          core_->executor->Run([keep] {
            keep->Process();
            keep->Pump();
          });
          return;
        }
        Process();
        break;
      case Step::kMakeDurable:
        core_->executor->Run([keep] {
          keep->MakeDurable();
          keep->Pump();
        });
        return;
      case Step::kFinish:
        Finish();
        return;
    }
  }
}

void StoreCall::Finish() {
  absl::Status result;
  {
    MutexLock lock(mutex_);
    result = status_;
  }
  if (result.ok()) result = Complete();
  writer_.reset();  // what was not committed is free before the caller hears of the end
  message_.Clear();
  grpc::Status status;
  {
    MutexLock lock(mutex_);
    status = call_.End(result);
  }
  core_->registry->FreePlace(this);
  ServerReadReactor::Finish(std::move(status));
}

void StoreCall::Process() {
  const absl::Status processed = ProcessMessage();
  message_.Clear();
  MutexLock lock(mutex_);
  processing_ = false;
  if (!processed.ok()) AbortLocked(processed);
}

absl::Status StoreCall::ProcessMessage() {
  const MessageSlices message(message_);
  wire::StoreRequest request;
  KVTIER_RETURN_IF_ERROR(
      wire::DecodeStoreRequest(message.views(), core_->options.limits, &request));
  if (writer_ == nullptr) {
    if (!request.has_header) {
      return absl::InvalidArgumentError("header is missing, the first message must carry it");
    }
    if (request.pieces.size() > 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("pieces has ", request.pieces.size(),
                       " elements in the message with the header, the limit is 0"));
    }
    KVTIER_ASSIGN_OR_RETURN(writer_, StoreWriter::Open(core_, &request.header));
    block_ = writer_->session().first();
    return absl::OkStatus();
  }
  if (request.has_header) {
    return absl::InvalidArgumentError("header is given again, only the first message may carry it");
  }
  for (size_t i = 0; i < request.pieces.size(); ++i) {
    KVTIER_RETURN_IF_ERROR(TakePiece(request.pieces[i], request.pieces.payload(i)));
  }
  return absl::OkStatus();
}

absl::Status StoreCall::CheckPiece(const wire::Piece& piece) const {
  const uint64_t end = uint64_t{writer_->session().first()} + writer_->session().count();
  if (piece.block < writer_->session().first() || piece.block >= end) {
    return absl::InvalidArgumentError(absl::StrCat("piece.block is ", piece.block,
                                                   ", the header's range is [",
                                                   writer_->session().first(), ", ", end, ")"));
  }
  if (piece.block != block_) {
    return absl::InvalidArgumentError(absl::StrCat(
        "piece.block is ", piece.block, ", the next in order is ", block_, " at offset ", offset_));
  }
  if (piece.part_bytes != writer_->session().part_bytes()) {
    return absl::InvalidArgumentError(absl::StrCat("piece.part_bytes is ", piece.part_bytes,
                                                   ", the model's part has ",
                                                   writer_->session().part_bytes(), " bytes"));
  }
  if (piece.offset != offset_) {
    return absl::InvalidArgumentError(absl::StrCat("piece.offset is ", piece.offset, " in block ",
                                                   block_, ", the bytes before it end at ",
                                                   offset_));
  }
  if (piece.payload_bytes == 0 || piece.payload_bytes > piece.part_bytes - offset_) {
    return absl::InvalidArgumentError(
        absl::StrCat("piece.payload has ", piece.payload_bytes, " bytes at offset ", offset_,
                     " of block ", block_, ", the limits are 1 and ", piece.part_bytes - offset_));
  }
  return absl::OkStatus();
}

absl::Status StoreCall::TakePiece(const wire::Piece& piece, wire::Slices payload) {
  KVTIER_RETURN_IF_ERROR(CheckPiece(piece));
  if (offset_ == 0) KVTIER_RETURN_IF_ERROR(StartBlock());
  if (wanted_) Land(payload);
  offset_ += piece.payload_bytes;
  if (offset_ == writer_->session().part_bytes()) EndBlock(piece.checksum);
  return absl::OkStatus();
}

absl::Status StoreCall::StartBlock() {
  received_.Restart();
  KVTIER_ASSIGN_OR_RETURN(wanted_, writer_->StartBlock(block_, deadline_));
  return absl::OkStatus();
}

void StoreCall::Land(wire::Slices payload) {
  std::span<std::byte> to = writer_->Buffer(block_).subspan(offset_);
  for (std::string_view slice : payload) {
    const auto bytes = std::as_bytes(std::span(slice));
    // Hashed where the socket's read has just put it, while it is in the CPU's cache.
    received_.Update(bytes);
    CopyPast(to.data(), bytes);
    to = to.subspan(bytes.size());
  }
  FinishCopies();
}

void StoreCall::EndBlock(uint64_t checksum) {
  writer_->EndBlock(block_, wanted_, wanted_ ? received_.Value() : 0, checksum);
  wanted_ = false;
  ++block_;
  offset_ = 0;
}

void StoreCall::MakeDurable() {
  const absl::Status durable = writer_->MakeDurable(deadline_);
  MutexLock lock(mutex_);
  processing_ = false;
  kept_ = true;
  if (!durable.ok()) AbortLocked(durable);
}

// The reply to a stream that the client has ended.
absl::Status StoreCall::Complete() {
  if (writer_ == nullptr) {
    return absl::InvalidArgumentError("header is missing, the stream ended before it");
  }
  *response_ = writer_->Reply();
  return absl::OkStatus();
}

void StoreCall::AbortLocked(const absl::Status& status) {
  if (aborted_ || finished_) return;
  aborted_ = true;
  status_ = status;
}

void StoreCall::Expire() {
  {
    MutexLock lock(mutex_);
    if (done_) return;
    AbortLocked(absl::DeadlineExceededError("the call's deadline has passed"));
  }
  Pump();
}

void StoreCall::OnReadDone(bool ok) {
  {
    MutexLock lock(mutex_);
    if (ok) {
      arrived_ = true;
    } else if (context_->IsCancelled()) {
      AbortLocked(absl::CancelledError("the client has gone"));
    } else {
      ended_ = true;
    }
  }
  Pump();
}

void StoreCall::OnCancel() {
  {
    MutexLock lock(mutex_);
    AbortLocked(absl::CancelledError("the client has gone"));
  }
  Pump();
}

void StoreCall::OnDone() {
  std::shared_ptr<StoreCall> self;
  {
    MutexLock lock(mutex_);
    done_ = true;
    self = std::move(self_);
  }
  core_->registry->Close(this);
}

}  // namespace kvtier
