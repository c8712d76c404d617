#include "client/replies.h"

namespace kvtier::client_internal {
namespace {

StoredBlock ToStoredBlock(const v1::BlockOutcome& outcome) {
  switch (outcome.status()) {
    case v1::STORE_STATUS_STORED:
      return {StoreVerdict::kStored, StoreRefusal::kNone};
    case v1::STORE_STATUS_ALREADY_PRESENT:
      return {StoreVerdict::kAlreadyPresent, StoreRefusal::kNone};
    default:
      return {StoreVerdict::kRejected, static_cast<StoreRefusal>(outcome.reason())};
  }
}

}  // namespace

absl::Status AsReplyError(const absl::Status& status) {
  if (status.ok()) return status;
  return absl::InternalError(absl::StrCat("reply breaks the protocol: ", status.message()));
}

bool GrpcMayDo(const absl::Status& status) {
  return absl::IsNotFound(status) || absl::IsUnimplemented(status) || absl::IsAborted(status);
}

absl::Status TakeOutcomes(const v1::StoreResponse& reply, size_t first, size_t count,
                          StoreReport* report) {
  if (static_cast<size_t>(reply.outcomes_size()) != count) {
    return absl::InternalError(absl::StrCat("Store: the reply has ", reply.outcomes_size(),
                                            " outcomes for ", count, " blocks"));
  }
  for (size_t i = 0; i < count; ++i) {
    report->blocks[first + i] = ToStoredBlock(reply.outcomes(static_cast<int>(i)));
  }
  report->sent += static_cast<uint32_t>(count);
  report->checksum_mismatches += reply.checksum_mismatches();
  return absl::OkStatus();
}

}  // namespace kvtier::client_internal
