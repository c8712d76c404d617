#include "client/lease_times.h"

#include <algorithm>

namespace kvtier::client_internal {

void LeaseTimes::Open(uint64_t lease_id, TimePoint end) {
  MutexLock lock(mutex_);
  ForgetEnded();
  Lease& lease = leases_[lease_id];
  lease = Lease();
  lease.serial = next_serial_++;
  lease.end = end;
}

void LeaseTimes::ForgetEnded() {
  if (leases_.size() < forget_at_) return;
  const TimePoint now = clock_->Now();
  std::erase_if(leases_, [now](const auto& entry) {
    return entry.second.renewals == 0 && entry.second.end <= now;
  });
  forget_at_ = std::max(kFewLeases, leases_.size() * 2);
}

LeaseTimes::Renewal LeaseTimes::BeginRenew(uint64_t lease_id, Duration remaining) {
  MutexLock lock(mutex_);
  const TimePoint end = clock_->Now() + remaining;
  Lease& lease = leases_[lease_id];
  if (lease.serial == 0) lease.serial = next_serial_++;
  lease.end = std::min(lease.end, end);
  lease.renewed_end = lease.renewals == 0 ? end : std::min(lease.renewed_end, end);
  ++lease.renewals;
  return Renewal{lease_id, lease.serial};
}

void LeaseTimes::EndRenew(const Renewal& renewal, bool done) {
  MutexLock lock(mutex_);
  const auto found = leases_.find(renewal.lease_id);
  if (found == leases_.end() || found->second.serial != renewal.serial) return;
  Lease& lease = found->second;
  if (!done) lease.renewed_end = std::min(lease.renewed_end, lease.end);
  if (--lease.renewals > 0) return;
  lease.end = lease.renewed_end;
  if (lease.end == kUnknown) leases_.erase(found);
}

void LeaseTimes::Close(uint64_t lease_id) {
  MutexLock lock(mutex_);
  leases_.erase(lease_id);
}

std::optional<TimePoint> LeaseTimes::End(uint64_t lease_id) const {
  MutexLock lock(mutex_);
  const auto lease = leases_.find(lease_id);
  if (lease == leases_.end() || lease->second.end == kUnknown) return std::nullopt;
  return lease->second.end;
}

}  // namespace kvtier::client_internal
