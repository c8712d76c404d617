#include "service/store_writer.h"

#include <utility>

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

}  // namespace

absl::StatusOr<std::unique_ptr<StoreWriter>> StoreWriter::Open(ServiceCore* core,
                                                               wire::StoreHeader* header) {
  if (header->durability > v1::DURABILITY_DURABLE) {
    return absl::InvalidArgumentError(absl::StrCat("header.durability is ", header->durability,
                                                   ", the limit is ", +v1::DURABILITY_DURABLE));
  }
  KVTIER_ASSIGN_OR_RETURN(const ModelId id, RequireModelId(header->prompt));
  KVTIER_ASSIGN_OR_RETURN(const ServedModel model, core->models.Get(id));
  KVTIER_ASSIGN_OR_RETURN(const uint32_t part, PartIndex(header->part, model));
  const bool durable = header->durability == v1::DURABILITY_DURABLE;
  if (durable && !core->manager->has_ssd()) {
    return absl::FailedPreconditionError(
        "header.durability is DURABLE, which needs the SSD tier: it is off");
  }
  KVTIER_ASSIGN_OR_RETURN(PromptRef prompt, ToPromptRef(&header->prompt, id, model));
  KVTIER_ASSIGN_OR_RETURN(
      std::unique_ptr<StoreSession> session,
      core->manager->BeginStore(prompt, header->first_block, header->block_count, part));
  return std::unique_ptr<StoreWriter>(new StoreWriter(core, std::move(session), durable));
}

absl::StatusOr<bool> StoreWriter::StartBlock(uint32_t block, TimePoint deadline) {
  const bool wanted =
      session_->outcome(block) == StoreOutcome::kPending && session_->Reserve(block, deadline);
  const bool no_space = session_->outcome(block) == StoreOutcome::kRejected &&
                        session_->reason(block) == RejectReason::kNoSpace;
  if (block != session_->first() || !no_space) return wanted;
  return absl::ResourceExhaustedError(
      absl::StrCat("not one block fits: a part has ", session_->part_bytes(),
                   " bytes and nothing that could be evicted makes room for it"));
}

void StoreWriter::EndBlock(uint32_t block, bool wanted, uint64_t received,
                           std::optional<uint64_t> sent) {
  if (session_->outcome(block) == StoreOutcome::kAlreadyPresent && sent) {
    mismatches_ += session_->NotePresent(block, *sent);
  }
  if (wanted && received == sent.value_or(received)) {
    session_->Commit(block, received);
  } else if (wanted) {
    session_->Reject(block, RejectReason::kChecksum);
  }
}

void StoreWriter::RejectFrom(uint32_t block) {
  const bool full = session_->reason(block - 1) == RejectReason::kNoSpace;
  const uint32_t end = session_->first() + session_->count();
  for (; block < end; ++block) {
    if (session_->outcome(block) != StoreOutcome::kPending) continue;
    session_->Reject(block, full ? RejectReason::kNoSpace : RejectReason::kNoParent);
  }
}

// Blocks stay in RAM when the SSD takes nothing: the client hears that they may not outlive it.
absl::Status StoreWriter::MakeDurable(TimePoint deadline) {
  const absl::Status durable = WriteDurably(deadline);
  if (durable.ok() || absl::IsDeadlineExceeded(durable)) return durable;
  return absl::ResourceExhaustedError(
      absl::StrCat("held in RAM, but not durable: ", std::string(durable.message())));
}

// After a restart a block is known only if its model is.
absl::Status StoreWriter::WriteDurably(TimePoint deadline) {
  if (core_->options.save_models) KVTIER_RETURN_IF_ERROR(core_->options.save_models());
  return session_->MakeDurable(deadline);
}

grpc::ByteBuffer StoreWriter::Reply() {
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
  return grpc::ByteBuffer(&bytes, 1);
}

}  // namespace kvtier
