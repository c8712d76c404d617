#include "client/shared_memory.h"

#include <utility>

namespace kvtier::client_internal {
namespace {

// The daemon is on this host and answers at once, if at all.
constexpr Duration kConnectLimit = std::chrono::milliseconds(250);

// One refusal is enough: nothing is lost but speed.
BreakerOptions OpensAtOnce(BreakerOptions options) {
  options.failures_to_open = 1;
  return options;
}

}  // namespace

SharedMemory::SharedMemory(bool wanted, const BreakerOptions& breaker, const Clock* clock,
                           RegionListener* listener)
    : wanted_(wanted), listener_(listener), breaker_(OpensAtOnce(breaker), clock) {}

void SharedMemory::Offer(const std::string& path) {
  if (!wanted_) return;
  std::shared_ptr<SharedSession> former;  // closed, if at all, without the lock
  {
    MutexLock lock(mutex_);
    if (path != path_) former = std::exchange(session_, nullptr);
    path_ = path;
  }
  Session();
}

bool SharedMemory::StartsConnecting(std::string* path) {
  MutexLock lock(mutex_);
  if (path_.empty() || connecting_ || !breaker_.Admit().ok()) return false;
  connecting_ = true;
  *path = path_;
  return true;
}

std::shared_ptr<SharedSession> SharedMemory::Session() {
  {
    MutexLock lock(mutex_);
    if (session_ != nullptr && !session_->ended()) return session_;
  }
  std::string path;
  if (!StartsConnecting(&path)) return nullptr;
  absl::StatusOr<std::unique_ptr<SharedSession>> fresh =
      SharedSession::Open(path, kConnectLimit, listener_);
  breaker_.Record(!fresh.ok());
  std::shared_ptr<SharedSession> former = nullptr;
  MutexLock lock(mutex_);
  connecting_ = false;
  if (!fresh.ok() || path != path_) return nullptr;
  former = std::exchange(session_, std::move(*fresh));
  return session_;
}

}  // namespace kvtier::client_internal
