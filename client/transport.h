// The only file of the client that knows gRPC: one connection, raw messages, bounded calls. Policy
// (retries, breaker) and meaning (protocol) are elsewhere.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.h"
#include "common/rpc.h"
#include "common/status.h"
#include "common/wire.h"

namespace kvtier::client_internal {

// A message to send: its bytes, end to end, wherever they lie. Slices of at least kLentBytes are
// sent from there and must stay valid until the call returns; shorter ones are copied when they are
// handed over.
inline constexpr size_t kLentBytes = 16 << 10;
using Outgoing = std::vector<std::string_view>;
// A message whose head is followed by a prompt's tokens, if it has any.
inline Outgoing HeadAndTokens(std::string_view head, std::string_view tokens) {
  return tokens.empty() ? Outgoing{head} : Outgoing{head, tokens};
}
// A message that was received. Its slices are readable only during the call.
using OnMessage = std::function<absl::Status(wire::Slices)>;
// Fills in the next message to send; says whether another follows.
using NextMessage = std::function<bool(Outgoing*)>;

struct CallResult {
  absl::Status status;    // of the rpc or of the callback
  bool received = false;  // a message came back before the end
};

// Thread-safe. Memory lent to a call is let go when the call returns: one whose peer has stopped
// reading breaks the connection rather than returning too early or waiting for ever.
class Transport {
 public:
  // Does not connect: the first call does, and any call after the connection was lost.
  // INVALID_ARGUMENT unless the address is "unix:/path" or "host:port".
  static absl::StatusOr<std::unique_ptr<Transport>> Create(const std::string& address);
  virtual ~Transport() = default;

  // Connects unless it is connected; tries once.
  virtual absl::Status Connect(Duration limit) = 0;
  virtual CallResult Unary(Rpc rpc, const Outgoing& request, Duration limit,
                           const OnMessage& on_reply) = 0;
  virtual CallResult ServerStream(Rpc rpc, const Outgoing& request, Duration limit,
                                  const OnMessage& on_message) = 0;
  virtual CallResult ClientStream(Rpc rpc, Duration limit, const NextMessage& next,
                                  const OnMessage& on_reply) = 0;
};

}  // namespace kvtier::client_internal
