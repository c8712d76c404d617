// A hardened gRPC server on a set of addresses.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <vector>

#include "common/status.h"
#include "service/config.h"

namespace kvtier {

struct GrpcServer {
  std::unique_ptr<grpc::Server> server;
  std::vector<std::string> addresses;  // as bound: a port of 0 is replaced by the one chosen
};

// Serves `service` (which must outlive the server) and the health service on all of `addresses`.
// Unix sockets are for this user only, and one that nobody listens on any more is replaced.
// UNAVAILABLE naming the address that is in use or not to be had; `field` is what the addresses are
// called in errors.
absl::StatusOr<GrpcServer> StartGrpcServer(const std::string& field,
                                           const std::vector<std::string>& addresses,
                                           grpc::Service* service, const Config& config);

// gRPC's own log lines go to our log, as warnings at most. For the whole process.
void RouteGrpcLog();

}  // namespace kvtier
