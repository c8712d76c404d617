// gRPC's locks are absl's, and Debian builds absl with the detector of deadlocks on: it keeps a
// graph of all locks that are held, which costs up to a tenth of what a small call takes.
#pragma once

namespace kvtier {

// Switches the detector off for the whole process. For main(): a library leaves the choice to its
// program. Our own locks are common/mutex.h, which clang checks.
void SkipAbslLockChecks();

}  // namespace kvtier
