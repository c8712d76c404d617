#include "client/core.h"

#include <algorithm>
#include <utility>

namespace kvtier::client_internal {
namespace {

constexpr Duration kConnectPause = std::chrono::milliseconds(20);
constexpr Duration kFirstPause = std::chrono::milliseconds(5);  // doubles with each retry

bool IsFailure(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
}

}  // namespace

Core::Core(ClientOptions options, std::unique_ptr<Transport> transport)
    : options_(std::move(options)),
      clock_(options_.clock != nullptr ? options_.clock : &steady_clock_),
      transport_(std::move(transport)),
      breaker_(options_.breaker, clock_),
      lease_times_(clock_),
      shared_memory_(options_.shared_memory, options_.breaker, clock_, options_.region_listener) {}

absl::Status Core::WaitConnected() {
  const TimePoint end = steady_clock_.Now() + options_.connect_deadline;
  while (true) {
    const Duration left = std::max(end - steady_clock_.Now(), Duration::zero());
    const absl::Status status = transport_->Connect(left);
    if (status.ok() || steady_clock_.Now() + kConnectPause >= end) return status;
    Pause(kConnectPause);
  }
}

absl::Status Core::Call(Duration limit, const Attempt& attempt) {
  KVTIER_RETURN_IF_ERROR(Annotate(breaker_.Admit(), options_.address));
  calls_.Add();
  const absl::Status status = TryUntilDone(limit, attempt);
  const bool failed = IsFailure(status);
  if (failed) failures_.Add();
  breaker_.Record(failed);
  return status;
}

absl::Status Core::TryUntilDone(Duration limit, const Attempt& attempt) {
  const TimePoint end = steady_clock_.Now() + limit;
  Duration pause = kFirstPause;
  for (int retries = 0;; ++retries) {
    const CallResult result = attempt(end - steady_clock_.Now());
    const bool again = absl::IsUnavailable(result.status) && !result.received &&
                       retries < options_.retries && steady_clock_.Now() + pause < end;
    if (!again) return result.status;
    retries_.Add();
    Pause(pause);
    pause *= 2;
  }
}

void Core::Pause(Duration duration) {
  Mutex mutex;
  CondVar never;
  const TimePoint end = steady_clock_.Now() + duration;
  MutexLock lock(mutex);
  for (Duration left = duration; left > Duration::zero(); left = end - steady_clock_.Now()) {
    never.WaitFor(mutex, left);
  }
}

absl::Status Core::Acknowledged(Rpc rpc, const std::string& request) {
  return Call(options_.lookup_deadline, [&](Duration left) {
    return transport_->Unary(rpc, {request}, left, [](wire::Slices) { return absl::OkStatus(); });
  });
}

ClientCounters Core::counters() const {
  ClientCounters counters;
  counters.calls = calls_.value();
  counters.retries = retries_.value();
  counters.failures = failures_.value();
  counters.refused_by_breaker = breaker_.refused();
  counters.breaker_opened = breaker_.opened();
  counters.checksum_failures = checksum_failures_.value();
  counters.shared_fetched_blocks = shared_fetched_blocks_.value();
  counters.shared_stored_blocks = shared_stored_blocks_.value();
  counters.ended_leases = ended_leases_.value();
  return counters;
}

}  // namespace kvtier::client_internal
