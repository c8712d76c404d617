#include "client/checksum_ahead.h"

#include "common/block_key.h"

namespace kvtier::client_internal {
namespace {

// Smaller ones take less time than waking a thread.
constexpr size_t kLeastBytes = 256 << 10;

uint64_t ChecksumOf(std::span<const std::byte> payload) {
  return PayloadChecksum(payload.data(), payload.size());
}

}  // namespace

// One checksum. Whoever comes first, the executor's thread or the caller, computes it.
class ChecksumAhead::Task {
 public:
  explicit Task(std::span<const std::byte> payload) : payload_(payload) {}

  void RunIfUnclaimed() {
    if (claimed_.exchange(true)) return;
    const uint64_t value = ChecksumOf(payload_);
    MutexLock lock(mutex_);
    value_ = value;
    done_ = true;
    finished_.NotifyOne();
  }
  uint64_t Result() {
    RunIfUnclaimed();
    MutexLock lock(mutex_);
    while (!done_) finished_.Wait(mutex_);
    return value_;
  }
  // Afterwards nobody reads the payload.
  void Abandon() {
    if (!claimed_.exchange(true)) return;
    MutexLock lock(mutex_);
    while (!done_) finished_.Wait(mutex_);
  }

 private:
  const std::span<const std::byte> payload_;
  std::atomic<bool> claimed_{false};
  Mutex mutex_;
  CondVar finished_;
  bool done_ KVTIER_GUARDED_BY(mutex_) = false;
  uint64_t value_ KVTIER_GUARDED_BY(mutex_) = 0;
};

ChecksumAhead::ChecksumAhead(std::span<const std::span<const std::byte>> payloads,
                             Executor* executor)
    : payloads_(payloads), executor_(executor) {}

ChecksumAhead::~ChecksumAhead() {
  if (task_ != nullptr) task_->Abandon();
}

uint64_t ChecksumAhead::Take(size_t i) {
  const bool begun = task_ != nullptr && ahead_ == i;
  if (task_ != nullptr && !begun) task_->Abandon();
  const uint64_t checksum = begun ? task_->Result() : ChecksumOf(payloads_[i]);
  task_.reset();
  if (i + 1 < payloads_.size() && payloads_[i + 1].size() >= kLeastBytes) Begin(i + 1);
  return checksum;
}

void ChecksumAhead::Begin(size_t i) {
  ahead_ = i;
  task_ = std::make_shared<Task>(payloads_[i]);
  executor_->Run([task = task_] { task->RunIfUnclaimed(); });
}

}  // namespace kvtier::client_internal
