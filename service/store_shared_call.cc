#include "service/store_shared_call.h"

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
    core->executor->Run([call] { call->Run(); });
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
  deadline_ = call_.Deadline(core_->options.stream_deadline);
  return core_->registry->Open(shared_from_this(), call_.ClientName(), deadline_);
}

void StoreSharedCall::Run() {
  const absl::Status stored = Store();
  writer_.reset();  // what was not committed is free before the caller hears of the end
  region_.reset();
  Finish(stored);
}

absl::Status StoreSharedCall::Store() {
  const MessageSlices message(*request_);
  wire::StoreSharedRequest request;
  KVTIER_RETURN_IF_ERROR(
      wire::DecodeStoreSharedRequest(message.views(), core_->options.limits, &request));
  KVTIER_ASSIGN_OR_RETURN(region_, FindSharedSession(*core_, request.session_id));
  if (!request.has_header) return absl::InvalidArgumentError("header is missing");
  KVTIER_ASSIGN_OR_RETURN(writer_, StoreWriter::Open(core_, &request.header));
  writer_->PutInto(region_->domain());
  KVTIER_RETURN_IF_ERROR(CheckPayloads(request));
  uint32_t block = writer_->session().first();
  for (const wire::SharedPayload& payload : request.payloads) {
    if (stopped_.load()) return WhyStopped();
    KVTIER_RETURN_IF_ERROR(TakeBlock(block++, payload, request.unverified));
  }
  if (writer_->durable()) KVTIER_RETURN_IF_ERROR(writer_->MakeDurable(deadline_));
  *response_ = writer_->Reply();
  return absl::OkStatus();
}

absl::Status StoreSharedCall::WhyStopped() const {
  if (context_->IsCancelled()) return absl::CancelledError("the client has gone");
  return absl::DeadlineExceededError("the call's deadline has passed");
}

absl::Status StoreSharedCall::CheckPayloads(const wire::StoreSharedRequest& request) const {
  if (request.payloads.size() != writer_->session().count()) {
    return absl::InvalidArgumentError(absl::StrCat("payloads has ", request.payloads.size(),
                                                   " elements, header.block_count is ",
                                                   writer_->session().count()));
  }
  const uint64_t bytes = writer_->session().part_bytes();
  const uint64_t region = region_->bytes().size();
  for (size_t i = 0; i < request.payloads.size(); ++i) {
    const uint64_t offset = request.payloads[i].offset;
    if (offset <= region && bytes <= region - offset) continue;
    return absl::InvalidArgumentError(absl::StrCat("payloads[", i, "].offset is ", offset,
                                                   ", a part has ", bytes,
                                                   " bytes and the store region ", region));
  }
  return absl::OkStatus();
}

absl::Status StoreSharedCall::TakeBlock(uint32_t block, const wire::SharedPayload& payload,
                                        bool unverified) {
  KVTIER_ASSIGN_OR_RETURN(const bool wanted, writer_->StartBlock(block, deadline_));
  uint64_t received = 0;
  if (wanted) {
    const std::span<std::byte> to = writer_->Buffer(block);
    received = Land(region_->bytes().subspan(payload.offset, to.size()), to);
  }
  writer_->EndBlock(block, wanted, received,
                    unverified ? std::nullopt : std::optional(payload.checksum));
  if (!wanted || writer_->session().outcome(block) != StoreOutcome::kStored) {
    return absl::OkStatus();
  }
  SharedMemoryCounters& counters = core_->options.shared_memory->counters();
  counters.stored_blocks.Add();
  counters.stored_bytes.Add(writer_->session().part_bytes());
  return absl::OkStatus();
}

// The checksum of what has landed.
uint64_t StoreSharedCall::Land(std::span<const std::byte> from, std::span<std::byte> to) {
  received_.Restart();
  HashAndCopyPastOnce(to.data(), from, &received_);
  FinishCopies();
  return received_.Value();
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
