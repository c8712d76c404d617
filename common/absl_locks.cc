#include "common/absl_locks.h"

#include "absl/synchronization/mutex.h"

namespace kvtier {

void SkipAbslLockChecks() { absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore); }

}  // namespace kvtier
