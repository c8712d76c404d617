// Checksums of the payloads of one Store, each computed while the one before it is being sent.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>

#include "common/executor.h"
#include "common/mutex.h"

namespace kvtier::client_internal {

// Not thread-safe. No task reads a payload after the destructor has returned.
class ChecksumAhead {
 public:
  // The arguments must outlive this.
  ChecksumAhead(std::span<const std::span<const std::byte>> payloads, Executor* executor);
  ~ChecksumAhead();
  ChecksumAhead(const ChecksumAhead&) = delete;
  ChecksumAhead& operator=(const ChecksumAhead&) = delete;

  // Of payload `i`; begins with that of i + 1.
  uint64_t Take(size_t i);

 private:
  class Task;

  void Begin(size_t i);

  const std::span<const std::span<const std::byte>> payloads_;
  Executor* const executor_;
  size_t ahead_ = 0;            // whose checksum task_ computes
  std::shared_ptr<Task> task_;  // null: nothing is begun
};

}  // namespace kvtier::client_internal
