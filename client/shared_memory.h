// Whether a client has shared memory, and its session while it has. Internal to the client.
#pragma once

#include <memory>
#include <string>

#include "client/breaker.h"
#include "client/shared_session.h"
#include "common/mutex.h"

namespace kvtier::client_internal {

// A session that was lost, or was not to be had, is tried for again now and then, by a breaker of
// its own; meanwhile everything goes over gRPC. Thread-safe.
class SharedMemory {
 public:
  // `clock` must outlive this, `listener` (null: none) also what is mapped.
  SharedMemory(bool wanted, const BreakerOptions& breaker, const Clock* clock,
               RegionListener* listener);

  // What RegisterModel says: the socket's path, or nothing. Connects.
  void Offer(const std::string& path) KVTIER_EXCLUDES(mutex_);

  // Null: there is none now, or another thread is about to connect.
  std::shared_ptr<SharedSession> Session() KVTIER_EXCLUDES(mutex_);

 private:
  bool StartsConnecting(std::string* path) KVTIER_EXCLUDES(mutex_);

  const bool wanted_;
  RegionListener* const listener_;
  CircuitBreaker breaker_;
  Mutex mutex_;
  std::string path_ KVTIER_GUARDED_BY(mutex_);
  bool connecting_ KVTIER_GUARDED_BY(mutex_) = false;
  std::shared_ptr<SharedSession> session_ KVTIER_GUARDED_BY(mutex_);
};

}  // namespace kvtier::client_internal
