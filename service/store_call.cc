#include "service/store_call.h"

#include <algorithm>
#include <utility>

#include "common/copy_past.h"
#include "kvtier/v1/kvtier.pb.h"

namespace kvtier {
namespace {

v1::BlockOutcome OutcomeOf(const StoreSession& session, uint32_t block) {
  v1::BlockOutcome out;
  switch (session.outcome(block)) {
    case StoreOutcome::kStored:
      out.set_status(v1::STORE_STATUS_STORED);
      return out;
    case StoreOutcome::kAlreadyPresent:
      out.set_status(v1::STORE_STATUS_ALREADY_PRESENT);
      return out;
    case StoreOutcome::kPending:
    case StoreOutcome::kRejected:
      break;
  }
  out.set_status(v1::STORE_STATUS_REJECTED);
  // The reasons have the same numbers.
  out.set_reason(static_cast<v1::RejectReason>(session.reason(block)));
  return out;
}
static_assert(static_cast<int>(RejectReason::kNoSpace) == v1::REJECT_REASON_NO_SPACE);
static_assert(static_cast<int>(RejectReason::kChecksum) == v1::REJECT_REASON_CHECKSUM);
static_assert(static_cast<int>(RejectReason::kNoParent) == v1::REJECT_REASON_NO_PARENT);
static_assert(static_cast<int>(RejectReason::kReset) == v1::REJECT_REASON_RESET);
static_assert(static_cast<int>(RejectReason::kNotSent) == v1::REJECT_REASON_NOT_SENT);
static_assert(static_cast<int>(RejectReason::kCollision) == v1::REJECT_REASON_COLLISION);

absl::Status NothingFits(uint64_t part_bytes) {
  return absl::ResourceExhaustedError(
      absl::StrCat("not one block fits: a part has ", part_bytes,
                   " bytes and nothing that could be evicted makes room for it"));
}

}  // namespace

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
  if (!aborted_ && !kept_ && durable_) {
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
        if (session_ != nullptr && session_->WouldBlock()) {
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
  session_.reset();  // what was not committed is free before the caller hears of the end
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
  if (session_ == nullptr) {
    if (!request.has_header) {
      return absl::InvalidArgumentError("header is missing, the first message must carry it");
    }
    if (request.pieces.size() > 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("pieces has ", request.pieces.size(),
                       " elements in the message with the header, the limit is 0"));
    }
    return TakeHeader(&request.header);
  }
  if (request.has_header) {
    return absl::InvalidArgumentError("header is given again, only the first message may carry it");
  }
  for (size_t i = 0; i < request.pieces.size(); ++i) {
    KVTIER_RETURN_IF_ERROR(TakePiece(request.pieces[i], request.pieces.payload(i)));
  }
  return absl::OkStatus();
}

absl::Status StoreCall::TakeHeader(wire::StoreHeader* header) {
  if (header->durability > v1::DURABILITY_DURABLE) {
    return absl::InvalidArgumentError(absl::StrCat("header.durability is ", header->durability,
                                                   ", the limit is ", +v1::DURABILITY_DURABLE));
  }
  KVTIER_ASSIGN_OR_RETURN(const ModelId id, RequireModelId(header->prompt));
  KVTIER_ASSIGN_OR_RETURN(const ServedModel model, core_->models.Get(id));
  KVTIER_ASSIGN_OR_RETURN(const uint32_t part, PartIndex(header->part, model));
  const bool durable = header->durability == v1::DURABILITY_DURABLE;
  if (durable && !core_->manager->has_ssd()) {
    return absl::FailedPreconditionError(
        "header.durability is DURABLE, which needs the SSD tier: it is off");
  }
  KVTIER_ASSIGN_OR_RETURN(PromptRef prompt, ToPromptRef(&header->prompt, id, model));
  KVTIER_ASSIGN_OR_RETURN(
      session_, core_->manager->BeginStore(prompt, header->first_block, header->block_count, part));
  durable_ = durable;
  block_ = session_->first();
  return absl::OkStatus();
}

absl::Status StoreCall::CheckPiece(const wire::Piece& piece) const {
  const uint64_t end = uint64_t{session_->first()} + session_->count();
  if (piece.block < session_->first() || piece.block >= end) {
    return absl::InvalidArgumentError(absl::StrCat("piece.block is ", piece.block,
                                                   ", the header's range is [", session_->first(),
                                                   ", ", end, ")"));
  }
  if (piece.block != block_) {
    return absl::InvalidArgumentError(absl::StrCat(
        "piece.block is ", piece.block, ", the next in order is ", block_, " at offset ", offset_));
  }
  if (piece.part_bytes != session_->part_bytes()) {
    return absl::InvalidArgumentError(absl::StrCat("piece.part_bytes is ", piece.part_bytes,
                                                   ", the model's part has ",
                                                   session_->part_bytes(), " bytes"));
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
  if (offset_ == session_->part_bytes()) EndBlock(piece.checksum);
  return absl::OkStatus();
}

absl::Status StoreCall::StartBlock() {
  received_.Restart();
  wanted_ =
      session_->outcome(block_) == StoreOutcome::kPending && session_->Reserve(block_, deadline_);
  const bool no_space = session_->outcome(block_) == StoreOutcome::kRejected &&
                        session_->reason(block_) == RejectReason::kNoSpace;
  // Without its first block nothing of the rest fits either: no use in receiving it.
  if (block_ == session_->first() && no_space) return NothingFits(session_->part_bytes());
  return absl::OkStatus();
}

void StoreCall::Land(wire::Slices payload) {
  std::span<std::byte> to = session_->Buffer(block_).subspan(offset_);
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
  if (session_->outcome(block_) == StoreOutcome::kAlreadyPresent) {
    mismatches_ += session_->NotePresent(block_, checksum);
  }
  if (wanted_ && received_.Value() == checksum) {
    session_->Commit(block_, checksum);
  } else if (wanted_) {
    session_->Reject(block_, RejectReason::kChecksum);
  }
  wanted_ = false;
  ++block_;
  offset_ = 0;
}

// Blocks stay in RAM when the SSD takes nothing: the client hears that they may not outlive it.
void StoreCall::MakeDurable() {
  absl::Status durable = session_->MakeDurable(deadline_);
  if (!durable.ok() && !absl::IsDeadlineExceeded(durable)) {
    durable = absl::ResourceExhaustedError(
        absl::StrCat("held in RAM, but not durable: ", std::string(durable.message())));
  }
  MutexLock lock(mutex_);
  processing_ = false;
  kept_ = true;
  if (!durable.ok()) AbortLocked(durable);
}

// The reply to a stream that the client has ended.
absl::Status StoreCall::Complete() {
  if (session_ == nullptr) {
    return absl::InvalidArgumentError("header is missing, the stream ended before it");
  }
  v1::StoreResponse response;
  for (uint32_t i = 0; i < session_->count(); ++i) {
    const uint32_t block = session_->first() + i;
    if (session_->outcome(block) == StoreOutcome::kPending) {
      session_->Reject(block, RejectReason::kNotSent);
    }
    *response.add_outcomes() = OutcomeOf(*session_, block);
  }
  response.set_checksum_mismatches(mismatches_);
  const grpc::Slice bytes(response.SerializeAsString());
  *response_ = grpc::ByteBuffer(&bytes, 1);
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
