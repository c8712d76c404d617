// Sockets to the daemon.
#pragma once

#include <string>

#include "common/clock.h"
#include "common/status.h"

namespace kvtier::client_internal {

// INVALID_ARGUMENT unless it is "unix:/path" or "host:port".
absl::Status CheckAddress(const std::string& address);

// A connected, non-blocking socket that the caller closes. Tries once. UNAVAILABLE naming the
// address and the system's reason.
absl::StatusOr<int> ConnectSocket(const std::string& address, Duration limit);
// The same for a Unix socket of packets (SOCK_SEQPACKET) at `path`.
absl::StatusOr<int> ConnectPacketSocket(const std::string& path, Duration limit);

}  // namespace kvtier::client_internal
