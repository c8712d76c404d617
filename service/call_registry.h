// The data calls in flight: who may start one, until when it may run, and when all are done.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "common/status.h"

namespace kvtier {

// Thread-safe; calls nobody but Stream::Expire, and that without its lock.
class CallRegistry {
 public:
  // A streaming call in flight.
  class Stream {
   public:
    virtual ~Stream() = default;
    // Its deadline has passed: end it. May come more than once, and after its end.
    virtual void Expire() = 0;
  };

  // `clock` must outlive the registry.
  CallRegistry(uint32_t max_streams_per_client, const Clock* clock)
      : max_streams_per_client_(max_streams_per_client), clock_(clock) {}

  // Lets a stream in until Close; the registry keeps it alive as long. Errors: UNAVAILABLE
  // (draining), RESOURCE_EXHAUSTED (open streams of `client`).
  absl::Status Open(std::shared_ptr<Stream> stream, const std::string& client, TimePoint deadline);
  // Its last message is on its way, so its client may open another one; Close follows when it is
  // gone.
  void FreePlace(const Stream* stream);
  // Both are no-ops for a stream that was not let in.
  void Close(const Stream* stream);

  // The same for calls that end by themselves. Errors: UNAVAILABLE (draining).
  absl::Status BeginUnary();
  void EndUnary();  // once for each BeginUnary that was OK

  // Ends the streams whose deadline has passed. Call it every now and then.
  void Sweep();

  // From now on nothing is let in.
  void StartDrain();
  bool draining() const { return draining_.load(std::memory_order_acquire); }
  // Waits until no call is in flight; false when that took longer than `timeout` of real time.
  bool WaitIdle(Duration timeout);

  uint64_t open_streams() const;

 private:
  struct Entry {
    std::shared_ptr<Stream> stream;
    std::string client;
    bool has_place = true;  // counts in streams_of_
    TimePoint deadline;
  };
  void FreePlaceLocked(Entry* entry) KVTIER_REQUIRES(mutex_);

  const uint32_t max_streams_per_client_;
  const Clock* const clock_;

  std::atomic<bool> draining_{false};
  std::atomic<int64_t> unary_calls_{0};

  mutable Mutex mutex_;
  CondVar idle_;
  absl::flat_hash_map<const Stream*, Entry> streams_ KVTIER_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, uint32_t> streams_of_ KVTIER_GUARDED_BY(mutex_);
};

}  // namespace kvtier
