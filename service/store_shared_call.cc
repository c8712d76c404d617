#include "service/store_shared_call.h"

#include <cstring>
#include <utility>

#include "common/copy_past.h"
#include "common/hashed_copy.h"
#include "service/fetch_shared_call.h"

namespace kvtier {
StoreSharedCall* StoreSharedCall::Start(ServiceCore* core, grpc::CallbackServerContext* context,
                                        const grpc::ByteBuffer* request,
                                        grpc::ByteBuffer* response) {
  auto call = std::make_shared<StoreSharedCall>(core, context, request, response);
  call->self_ = call;
  if (const absl::Status opened = call->Open(); opened.ok()) {
    core->options.shared_memory->store_threads().Run([call] { call->Run(); });
  } else {
    call->Finish(opened);
  }
  return call.get();
}

StoreSharedCall::StoreSharedCall(ServiceCore* core, grpc::CallbackServerContext* context,
                                 const grpc::ByteBuffer* request, grpc::ByteBuffer* response)
    : core_(core),
      context_(context),
      request_(request),
      response_(response),
      call_(core, Rpc::kStoreShared, context) {}

absl::Status StoreSharedCall::Open() {
  if (core_->options.shared_memory == nullptr) return FindSharedSession(*core_, {}).status();
  deadline_ = call_.Deadline(core_->options.stream_deadline);
  return core_->registry->Open(shared_from_this(), call_.ClientName(), deadline_);
}

void StoreSharedCall::Run() {
  const absl::Status stored = Store();
  writer_.reset();  // what was not committed is free before the caller hears of the end
  if (region_ != nullptr) region_->Release();
  region_.reset();
  Finish(stored);
}

absl::Status StoreSharedCall::Store() {
  const MessageSlices message(*request_);
  wire::StoreSharedRequest request;
  KVTIER_RETURN_IF_ERROR(
      wire::DecodeStoreSharedRequest(message.views(), core_->options.limits, &request));
  KVTIER_ASSIGN_OR_RETURN(std::shared_ptr<StoreRegion> region,
                          FindSharedSession(*core_, request.session_id));
  if (!request.has_header) return absl::InvalidArgumentError("header is missing");
  KVTIER_ASSIGN_OR_RETURN(writer_, StoreWriter::Open(core_, &request.header));
  writer_->PutInto(region->domain());
  if (!region->Acquire(&stopped_)) {
    return absl::AbortedError("the session's store region serves another call");
  }
  region_ = std::move(region);
  ring_.emplace(region_->bytes());
  KVTIER_RETURN_IF_ERROR(TakeBlocks(request.unverified));
  if (writer_->durable()) KVTIER_RETURN_IF_ERROR(writer_->MakeDurable(deadline_));
  *response_ = writer_->Reply();
  return absl::OkStatus();
}

absl::Status StoreSharedCall::WhyStopped() const {
  if (context_->IsCancelled()) return absl::CancelledError("the client has gone");
  if (region_->session_ended()) return absl::AbortedError("the session has ended");
  return absl::DeadlineExceededError("the call's deadline has passed");
}

absl::Status StoreSharedCall::TakeBlocks(bool unverified) {
  const StoreSession& session = writer_->session();
  const uint32_t end = session.first() + session.count();
  for (uint32_t block = session.first(); block < end; ++block) {
    const absl::Status taken = TakeBlock(block, unverified);
    if (stopped_.load()) return WhyStopped();
    KVTIER_RETURN_IF_ERROR(taken);
    // Of what a block without a place leaves nothing can be stored, so nobody waits for it.
    if (session.outcome(block) == StoreOutcome::kRejected &&
        session.reason(block) != RejectReason::kChecksum) {
      writer_->RejectFrom(block + 1);
      break;
    }
  }
  return absl::OkStatus();
}

absl::Status StoreSharedCall::TakeBlock(uint32_t block, bool unverified) {
  KVTIER_ASSIGN_OR_RETURN(const bool wanted, writer_->StartBlock(block, deadline_));
  const StoreSession& session = writer_->session();
  if (!wanted && session.outcome(block) == StoreOutcome::kRejected) return absl::OkStatus();
  KVTIER_RETURN_IF_ERROR(TakePart(wanted ? writer_->Buffer(block).data() : nullptr));
  KVTIER_ASSIGN_OR_RETURN(const uint64_t sent, TakeChecksum());
  writer_->EndBlock(block, wanted, wanted ? received_.Value() : 0,
                    unverified ? std::nullopt : std::optional(sent));
  if (session.outcome(block) != StoreOutcome::kStored) return absl::OkStatus();
  SharedMemoryCounters& counters = core_->options.shared_memory->counters();
  counters.stored_blocks.Add();
  counters.stored_bytes.Add(session.part_bytes());
  return absl::OkStatus();
}

// Null: nobody wants it.
absl::Status StoreSharedCall::TakePart(std::byte* to) {
  received_.Restart();
  for (uint64_t left = writer_->session().part_bytes(); left > 0;) {
    KVTIER_ASSIGN_OR_RETURN(const std::span<const std::byte> piece, ring_->Next(left, stopped_));
    if (to != nullptr) {
      HashAndCopyPastOnce(to, piece, &received_);
      to += piece.size();
    }
    ring_->Take(piece.size());
    left -= piece.size();
  }
  FinishCopies();
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> StoreSharedCall::TakeChecksum() {
  uint64_t checksum = 0;
  KVTIER_ASSIGN_OR_RETURN(const std::span<const std::byte> line,
                          ring_->Next(StoreRing::kLine, stopped_));
  std::memcpy(&checksum, line.data(), sizeof(checksum));
  ring_->Take(StoreRing::kLine);
  return checksum;
}

void StoreSharedCall::Finish(const absl::Status& status) {
  grpc::Status ended = call_.End(status);
  core_->registry->FreePlace(this);
  ServerUnaryReactor::Finish(std::move(ended));
}

void StoreSharedCall::OnDone() {
  const std::shared_ptr<StoreSharedCall> self = std::move(self_);
  core_->registry->Close(this);
}

}  // namespace kvtier
