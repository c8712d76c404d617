// Which blocks of its open leases a client has fetched and verified. Internal to the client.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "common/mutex.h"
#include "kvtier/client.h"

namespace kvtier::client_internal {

// Thread-safe. Holds one bit for each block of each lease between Open and Close.
class LeaseLedger {
 public:
  void Open(uint64_t lease_id, uint32_t blocks) KVTIER_EXCLUDES(mutex_);
  // What a Fetch by this lease brought, from block `first` on. Leases that are not open here
  // (others' whose id was passed on) are left alone.
  void Note(uint64_t lease_id, uint32_t first, const std::vector<FetchedBlock>& blocks)
      KVTIER_EXCLUDES(mutex_);
  // Forgets the lease. Returns how many of its blocks were verified, each once however many parts
  // of it were fetched; 0 when it is not open here.
  uint32_t Close(uint64_t lease_id) KVTIER_EXCLUDES(mutex_);

 private:
  Mutex mutex_;
  std::unordered_map<uint64_t, std::vector<bool>> verified_ KVTIER_GUARDED_BY(mutex_);
};

}  // namespace kvtier::client_internal
