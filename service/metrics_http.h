// The Prometheus endpoint: what the daemon counts, under names and help texts of its own.
#pragma once

#include <prometheus/metric_family.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/metrics.h"
#include "common/status.h"
#include "service/shared_memory.h"
#include "service/tier_curves.h"
#include "storage/ssd_tier.h"
#include "storage/tier_manager.h"

namespace kvtier {

struct RpcSnapshot {
  std::string rpc;  // "Lookup"
  LatencyHistogram::Snapshot latency;
  std::map<std::string, uint64_t> errors;  // by status code name, only those that happened
};

struct CurveSnapshot {
  std::string model;  // its id in hex, or "all"
  std::vector<TierCurve> tiers;
};

// Everything one scrape shows, taken at one moment.
struct MetricsSnapshot {
  ManagerStats manager;
  std::optional<SsdTierStats> ssd;                  // empty when off
  std::optional<SharedMemoryStats> shared_memory;   // empty when none is offered
  std::vector<SlotPool::DomainUsage> shared_pools;  // empty with one pool for all
  std::vector<RpcSnapshot> rpcs;
  std::vector<CurveSnapshot> curves;
  HitCurveStats curve_stats;
  double uptime_seconds = 0;
  bool draining = false;
  uint64_t open_streams = 0;
  uint64_t process_memory_bytes = 0;
  uint64_t recorded_requests = 0;
  uint64_t recording_dropped = 0;
};

// docs/OPERATIONS.md lists the families and what to do about each.
std::vector<prometheus::MetricFamily> ToFamilies(const MetricsSnapshot& snapshot);

// Serves /metrics until destroyed. Thread-safe.
class MetricsHttp {
 public:
  // `take` is called at each scrape, on a thread of the endpoint. UNAVAILABLE naming the address
  // when it cannot be listened on.
  static absl::StatusOr<std::unique_ptr<MetricsHttp>> Start(const std::string& host_and_port,
                                                            std::function<MetricsSnapshot()> take);
  virtual ~MetricsHttp() = default;
  virtual int port() const = 0;
};

}  // namespace kvtier
