// Which blocks of its open leases a client has fetched and verified. Internal to the client.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "common/clock.h"
#include "common/mutex.h"
#include "kvtier/client.h"

namespace kvtier::client_internal {

// What was done with a lease.
struct LeaseUse {
  uint32_t verified_blocks = 0;  // each once however many parts of it were fetched
  uint64_t shared_bytes = 0;     // copied out of shared memory, and how long that took
  Duration shared_time = Duration::zero();
};

// Thread-safe. Holds one bit for each block of each lease between Open and Close.
class LeaseLedger {
 public:
  void Open(uint64_t lease_id, uint32_t blocks) KVTIER_EXCLUDES(mutex_);
  // What a Fetch by this lease brought, from block `first` on. Leases that are not open here
  // (others' whose id was passed on) are left alone.
  void Note(uint64_t lease_id, uint32_t first, const std::vector<FetchedBlock>& blocks)
      KVTIER_EXCLUDES(mutex_);
  void NoteShared(uint64_t lease_id, uint64_t bytes, Duration time) KVTIER_EXCLUDES(mutex_);
  // Forgets the lease. Nothing was done with one that is not open here.
  LeaseUse Close(uint64_t lease_id) KVTIER_EXCLUDES(mutex_);

 private:
  struct Entry {
    std::vector<bool> verified;
    LeaseUse use;  // but for verified_blocks
  };

  Mutex mutex_;
  std::unordered_map<uint64_t, Entry> leases_ KVTIER_GUARDED_BY(mutex_);
};

}  // namespace kvtier::client_internal
