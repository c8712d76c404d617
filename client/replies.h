// Reading the daemon's answers. Internal to the client.
#pragma once

#include <cstddef>

#include "common/status.h"
#include "common/wire.h"
#include "kvtier/client.h"
#include "kvtier/v1/kvtier.pb.h"

namespace kvtier::client_internal {

// A reply that generated code reads.
template <typename Message>
absl::Status Parse(wire::Slices slices, Message* out) {
  std::string bytes;
  for (std::string_view slice : slices) bytes.append(slice);
  if (out->ParseFromString(bytes)) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("reply of ", bytes.size(), " bytes is not protobuf"));
}

// What the hand-written codec says about a reply is a fault of the peer, not of our caller.
absl::Status AsReplyError(const absl::Status& status);

// What fails by shared memory and may well work over gRPC: NOT_FOUND (the session, perhaps),
// UNIMPLEMENTED (another daemon than the one that offered it), ABORTED (the session was lost).
bool GrpcMayDo(const absl::Status& status);

// The outcomes of blocks [first, first + count) of the report, which were sent; adds to its totals.
// INTERNAL when there are not as many.
absl::Status TakeOutcomes(const v1::StoreResponse& reply, size_t first, size_t count,
                          StoreReport* report);

}  // namespace kvtier::client_internal
