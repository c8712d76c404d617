// What all calls of one client share: the connection, the breaker, retries and counts.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "client/breaker.h"
#include "client/lease_ledger.h"
#include "client/lease_times.h"
#include "client/shared_memory.h"
#include "client/transport.h"
#include "common/metrics.h"
#include "common/mutex.h"
#include "kvtier/client.h"

namespace kvtier::client_internal {

// Thread-safe.
class Core {
 public:
  Core(ClientOptions options, std::unique_ptr<Transport> transport);

  const ClientOptions& options() const { return options_; }
  Transport& transport() { return *transport_; }
  LeaseLedger& leases() { return leases_; }
  LeaseTimes& lease_times() { return lease_times_; }
  const LeaseTimes& lease_times() const { return lease_times_; }
  SharedMemory& shared_memory() { return shared_memory_; }
  // The caller's: leases end by it.
  const Clock& clock() const { return *clock_; }

  // UNAVAILABLE when nobody accepts a connection within connect_deadline.
  absl::Status WaitConnected();

  // Makes a call through the breaker. `attempt` gets the time left and may run again, after
  // UNAVAILABLE and while nothing was received.
  using Attempt = std::function<CallResult(Duration left)>;
  absl::Status Call(Duration limit, const Attempt& attempt);

  // Release and Renew answer with an empty message.
  absl::Status Acknowledged(Rpc rpc, const std::string& request);

  void CountChecksumFailures(uint64_t failures) { checksum_failures_.Add(failures); }
  void CountSharedFetch(uint64_t blocks) { shared_fetched_blocks_.Add(blocks); }
  void CountSharedStore(uint64_t blocks) { shared_stored_blocks_.Add(blocks); }
  void CountEndedLease() { ended_leases_.Add(); }
  ClientCounters counters() const;

 private:
  absl::Status TryUntilDone(Duration limit, const Attempt& attempt);
  void Pause(Duration duration);

  const ClientOptions options_;
  const SteadyClock steady_clock_{};
  const Clock* const clock_;
  const std::unique_ptr<Transport> transport_;
  CircuitBreaker breaker_;
  LeaseLedger leases_;
  LeaseTimes lease_times_;
  SharedMemory shared_memory_;
  Counter calls_;
  Counter retries_;
  Counter failures_;
  Counter checksum_failures_;
  Counter shared_fetched_blocks_;
  Counter shared_stored_blocks_;
  Counter ended_leases_;
};

}  // namespace kvtier::client_internal
