#include "client/lease_ledger.h"

#include <algorithm>

namespace kvtier::client_internal {

void LeaseLedger::Open(uint64_t lease_id, uint32_t blocks) {
  MutexLock lock(mutex_);
  verified_[lease_id].assign(blocks, false);
}

void LeaseLedger::Note(uint64_t lease_id, uint32_t first, const std::vector<FetchedBlock>& blocks) {
  MutexLock lock(mutex_);
  const auto lease = verified_.find(lease_id);
  if (lease == verified_.end()) return;
  std::vector<bool>& verified = lease->second;
  for (size_t i = 0; i < blocks.size() && first + i < verified.size(); ++i) {
    if (blocks[i].status == FetchStatus::kOk) verified[first + i] = true;
  }
}

uint32_t LeaseLedger::Close(uint64_t lease_id) {
  MutexLock lock(mutex_);
  const auto lease = verified_.find(lease_id);
  if (lease == verified_.end()) return 0;
  const auto count = std::count(lease->second.begin(), lease->second.end(), true);
  verified_.erase(lease);
  return static_cast<uint32_t>(count);
}

}  // namespace kvtier::client_internal
