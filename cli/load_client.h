// A client of the load generator on a running kvtierd.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cli/load.h"
#include "kvtier/client.h"

namespace kvtier::cli {

struct LoadClientOptions {
  uint64_t block_bytes = uint64_t{64} << 10;  // 32 bytes to 64 MiB
  uint32_t block_tokens = 512;                // of the trace
  bool full_only = false;                     // convention: full blocks only, or all ids
  Namespace name;
};

// `block_bytes` opaque bytes for `block_tokens` tokens.
ModelSpec LoadModel(const LoadClientOptions& options);

// Each operation is one call of the client library on the request's prompt (its first 256 MiB of
// payload):
//   lookup  Lookup without a lease
//   fetch   Fetch of all blocks, by the prompt. It ends at the first that is not there. Every byte
//   is
//           checked: payload is a function of the block's identity (cli/replay_payload.h)
//   store   Store of all blocks, which asks first and sends what is missing. That no block found
//   room
//           is no error.
// `client` must outlive it; `model` is what RegisterModel told.
std::unique_ptr<LoadTarget> MakeLoadClient(const LoadClientOptions& options, Client* client,
                                           const RegisteredModel& model);

}  // namespace kvtier::cli
