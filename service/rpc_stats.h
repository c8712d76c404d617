// What the data service counts per rpc.
#pragma once

#include <array>

#include "common/metrics.h"
#include "common/rpc.h"

namespace kvtier {

// Status codes of gRPC and absl, which are the same numbers: 0 is OK.
inline constexpr int kStatusCodes = 17;

// Of calls that have ended. Thread-safe.
struct RpcStats {
  std::array<Counter, kStatusCodes> by_code;
  LatencyHistogram latency;  // from the request's arrival; streams: to their last message
};

class RpcStatsTable {
 public:
  RpcStats& of(Rpc rpc) { return stats_[static_cast<int>(rpc)]; }
  const RpcStats& of(Rpc rpc) const { return stats_[static_cast<int>(rpc)]; }

 private:
  std::array<RpcStats, kRpcs> stats_;
};

}  // namespace kvtier
