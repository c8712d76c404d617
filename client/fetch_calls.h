// The ways to fetch: by prompt over gRPC; by lease through shared memory where there is any, and
// the rest over gRPC. Internal to the client.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "client/core.h"
#include "client/transport.h"
#include "kvtier/client.h"

namespace kvtier::client_internal {

// As Client::Fetch, and with `visit` as Client::FetchViews; exactly one of buffers and `visit` is
// used.
absl::StatusOr<FetchReport> FetchByPrompt(Core* core, const Prompt& prompt,
                                          const FetchParams& params,
                                          std::span<const std::span<std::byte>> buffers,
                                          const PieceVisitor* visit);
absl::StatusOr<FetchReport> FetchByLease(Core* core, uint64_t lease_id, const FetchParams& params,
                                         std::span<const std::span<std::byte>> buffers,
                                         const PieceVisitor* visit);

}  // namespace kvtier::client_internal
