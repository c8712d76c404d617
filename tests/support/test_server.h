// The data service in this process, on a Unix socket in a directory of its own, over tiers of host
// memory and a clock that stands still until it is moved. Any client may connect.
#pragma once

#include <grpcpp/impl/codegen/service_type.h>
#include <grpcpp/server.h>

#include <memory>
#include <string>

#include "common/clock.h"
#include "common/executor.h"
#include "gpu/device_memory.h"
#include "service/call_registry.h"
#include "service/kv_cache_service.h"
#include "service/rpc_stats.h"
#include "service/shared_memory.h"
#include "storage/tier_manager.h"
#include "tests/support/fake_log_tier.h"

namespace kvtier {

struct TestServerOptions {
  uint64_t ram_bytes = uint64_t{64} << 20;
  uint64_t ssd_bytes = 0;  // > 0: FakeLogTier stands in for the SSD
  ManagerOptions manager;
  ServiceOptions service;
  uint32_t max_streams_per_client = 128;
  bool shared_memory = false;  // RAM lies in regions that clients may map
  SharedMemoryOptions shared;  // but for its socket_path
  uint64_t max_retired_bytes = UINT64_MAX;
};

class TestServer {
 public:
  explicit TestServer(TestServerOptions options = {});
  // Ends the calls in flight.
  ~TestServer();

  std::string address() const;  // "unix:..."
  TierManager& manager() { return *manager_; }
  FakeLogTier* ssd() { return ssd_; }  // null when off
  CallRegistry& registry() { return *registry_; }
  ManualClock& clock() { return clock_; }
  const RpcStatsTable& stats() const { return stats_; }
  SharedMemory* shared_memory() { return shared_memory_.get(); }  // null when off
  // What the daemon's ticker does.
  void Tick();
  void Stop();

 private:
  std::string directory_;
  ManualClock clock_;
  std::unique_ptr<SharedHostMemory> shared_host_memory_;  // null without shared memory
  std::unique_ptr<DeviceMemory> host_memory_;             // null with
  std::unique_ptr<ThreadPool> executor_;
  std::unique_ptr<ThreadPool> ssd_reader_;
  std::unique_ptr<ThreadPool> ssd_writer_;
  FakeLogTier* ssd_ = nullptr;  // the manager's
  std::unique_ptr<TierManager> manager_;
  std::unique_ptr<CallRegistry> registry_;
  RpcStatsTable stats_;
  std::unique_ptr<SharedMemory> shared_memory_;
  std::unique_ptr<grpc::Service> service_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace kvtier
