// The id that ties a call's reply, its error and its log line together. Includes gRPC.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/status.h>

#include <atomic>
#include <cstdint>
#include <string>

#include "common/status.h"

namespace kvtier {

// Thread-safe.
class RequestIds {
 public:
  RequestIds();
  // The caller's own, when it sent one of at most 64 printable ASCII bytes, else a new one. Puts it
  // into the call's initial metadata.
  std::string Take(grpc::CallbackServerContext* context);

 private:
  std::string New();

  const std::string prefix_;
  std::atomic<uint32_t> counter_{0};
};

// The same code; the message of an error ends with the id.
grpc::Status ToGrpcStatus(const absl::Status& status, const std::string& request_id);

}  // namespace kvtier
