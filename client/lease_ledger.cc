#include "client/lease_ledger.h"

#include <algorithm>

namespace kvtier::client_internal {

void LeaseLedger::Open(uint64_t lease_id, uint32_t blocks) {
  MutexLock lock(mutex_);
  leases_[lease_id] = Entry{std::vector<bool>(blocks, false), {}};
}

void LeaseLedger::Note(uint64_t lease_id, uint32_t first, const std::vector<FetchedBlock>& blocks) {
  MutexLock lock(mutex_);
  const auto lease = leases_.find(lease_id);
  if (lease == leases_.end()) return;
  std::vector<bool>& verified = lease->second.verified;
  for (size_t i = 0; i < blocks.size() && first + i < verified.size(); ++i) {
    if (blocks[i].status == FetchStatus::kOk) verified[first + i] = true;
  }
}

void LeaseLedger::NoteShared(uint64_t lease_id, uint64_t bytes, Duration time) {
  MutexLock lock(mutex_);
  const auto lease = leases_.find(lease_id);
  if (lease == leases_.end()) return;
  lease->second.use.shared_bytes += bytes;
  lease->second.use.shared_time += time;
}

LeaseUse LeaseLedger::Close(uint64_t lease_id) {
  MutexLock lock(mutex_);
  const auto lease = leases_.find(lease_id);
  if (lease == leases_.end()) return {};
  const std::vector<bool>& verified = lease->second.verified;
  LeaseUse use = lease->second.use;
  use.verified_blocks = static_cast<uint32_t>(std::count(verified.begin(), verified.end(), true));
  leases_.erase(lease);
  return use;
}

}  // namespace kvtier::client_internal
