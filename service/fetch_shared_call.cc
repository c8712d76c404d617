#include "service/fetch_shared_call.h"

#include <chrono>
#include <string>
#include <utility>

namespace kvtier {

absl::StatusOr<std::shared_ptr<StoreRegion>> FindSharedSession(const ServiceCore& core,
                                                               std::string_view session_id) {
  if (core.options.shared_memory == nullptr) {
    return absl::NotFoundError("session_id names no session: this daemon offers no shared memory");
  }
  if (session_id.size() != wire::kSessionIdBytes) {
    return absl::InvalidArgumentError(absl::StrCat("session_id has ", session_id.size(),
                                                   " bytes, it must have ", wire::kSessionIdBytes));
  }
  return core.options.shared_memory->Find(session_id);
}

absl::StatusOr<std::unique_ptr<FetchSession>> FetchSharedCall::Open(
    const grpc::ByteBuffer& request) {
  const MessageSlices message(request);
  wire::FetchSharedRequest fetch;
  KVTIER_RETURN_IF_ERROR(
      wire::DecodeFetchSharedRequest(message.views(), core_->options.limits, &fetch));
  KVTIER_ASSIGN_OR_RETURN(const std::shared_ptr<const StoreRegion> client,
                          FindSharedSession(*core_, fetch.session_id));
  if (fetch.lease_id == 0) {
    return absl::InvalidArgumentError("lease_id is missing: it keeps the bytes where they are");
  }
  KVTIER_ASSIGN_OR_RETURN(const ModelId id, core_->manager->LeaseModel(fetch.lease_id));
  KVTIER_ASSIGN_OR_RETURN(const ServedModel model, core_->models.Get(id));
  KVTIER_ASSIGN_OR_RETURN(const uint32_t part, PartIndex(fetch.part, model));
  KVTIER_ASSIGN_OR_RETURN(
      std::unique_ptr<FetchSession> session,
      core_->manager->BeginFetch(fetch.lease_id, fetch.first_block, fetch.last_block, part));
  session->KeepToRam(client->domain());
  allow_gaps_ = fetch.allow_gaps;
  return session;
}

bool FetchSharedCall::Build(Message* message) {
  std::vector<wire::SharedBlock> blocks;
  bool goes_on = true;
  while (goes_on && block_ < session_->last() && blocks.size() < core_->options.limits.pieces) {
    if (!blocks.empty() && WouldWait()) break;
    wire::SharedBlock block;
    goes_on = TakeBlock(&block);
    if (stop_.ok()) blocks.push_back(block);
  }
  message->empty = blocks.empty();
  if (!blocks.empty()) {
    const grpc::Slice bytes(wire::EncodeFetchSharedResponse(blocks));
    message->bytes = grpc::ByteBuffer(&bytes, 1);
    Count(blocks);
  }
  return !goes_on || block_ == session_->last();
}

// False when the stream ends here, with or without this block.
bool FetchSharedCall::TakeBlock(wire::SharedBlock* out) {
  out->block = block_++;
  const TimePoint asked = core_->clock->Now();
  const absl::StatusOr<PartView> view = session_->Next(out->block, deadline_);
  if (view.ok() && view->region != 0) {
    bytes_[static_cast<int>(view->tier)] += view->bytes.size();
    waited_[static_cast<int>(view->tier)] += core_->clock->Now() - asked;
    *out = {.block = out->block,
            .status = wire::kBlockStatusOk,
            .checksum = view->checksum,
            .region = view->region,
            .offset = view->offset,
            .bytes = view->bytes.size()};
    return true;
  }
  if (view.ok() || absl::IsResourceExhausted(view.status())) {
    out->status = wire::kBlockStatusNotShared;
    return allow_gaps_;
  }
  if (absl::IsNotFound(view.status()) || absl::IsDataLoss(view.status())) {
    out->status = wire::kBlockStatusMiss;
    return allow_gaps_;
  }
  stop_ = view.status();
  return false;
}

void FetchSharedCall::Drop() {
  FetchStream::Drop();
  for (const TierKind tier : kAllTiers) {
    const int i = static_cast<int>(tier);
    if (tier == TierKind::kRam || bytes_[i] == 0) continue;
    const double seconds = std::chrono::duration<double>(waited_[i]).count();
    core_->manager->speeds().RecordWaiting(tier, bytes_[i], seconds);
  }
}

void FetchSharedCall::Count(const std::vector<wire::SharedBlock>& blocks) {
  SharedMemoryCounters& counters = core_->options.shared_memory->counters();
  for (const wire::SharedBlock& block : blocks) {
    counters.fetched_blocks.Add(block.status == wire::kBlockStatusOk);
    counters.fetched_bytes.Add(block.bytes);
    counters.not_shared_blocks.Add(block.status == wire::kBlockStatusNotShared);
  }
}

}  // namespace kvtier
