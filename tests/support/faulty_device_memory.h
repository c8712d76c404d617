// Passes everything on to another DeviceMemory, save for the calls that a test wants to fail, and
// counts the bytes taken.
#pragma once

#include <algorithm>
#include <functional>
#include <utility>

#include "common/mutex.h"
#include "gpu/device_memory.h"

namespace kvtier {

class FaultyDeviceMemory final : public DeviceMemory {
 public:
  explicit FaultyDeviceMemory(DeviceMemory* device) : device_(device) {}

  // Of the calls that can fail (Allocate, Reallocate, Truncate, Copy) from now on, the `first`-th
  // (1 is the next) and those after it, `count` in all, fail.
  void Fail(uint64_t first, uint64_t count) {
    MutexLock lock(mutex_);
    calls_ = 0;
    first_ = first;
    count_ = count;
  }
  // Runs `hook` within the next Allocate, once, before the memory is taken.
  void OnAllocate(std::function<void()> hook) {
    MutexLock lock(mutex_);
    on_allocate_ = std::move(hook);
  }
  uint64_t taken_bytes() const {
    MutexLock lock(mutex_);
    return taken_bytes_;
  }
  uint64_t failures() const {
    MutexLock lock(mutex_);
    return failures_;
  }
  // The most bytes taken since the last call of this.
  uint64_t TakePeak() {
    MutexLock lock(mutex_);
    const uint64_t peak = peak_bytes_;
    peak_bytes_ = taken_bytes_;
    return peak;
  }

  absl::StatusOr<Region> Allocate(uint64_t bytes) override {
    if (const std::function<void()> hook = TakeHook()) hook();
    if (ShouldFail()) return Error("Allocate");
    absl::StatusOr<Region> region = device_->Allocate(bytes);
    if (region.ok()) Count(0, region->bytes);
    return region;
  }
  void Free(const Region& region) override {
    device_->Free(region);
    Count(region.bytes, 0);
  }
  absl::StatusOr<Region> Reallocate(const Region& region, uint64_t bytes) override {
    if (ShouldFail()) {
      Free(region);
      return Error("Reallocate");
    }
    absl::StatusOr<Region> resized = device_->Reallocate(region, bytes);
    Count(region.bytes, resized.ok() ? resized->bytes : 0);
    return resized;
  }
  void Assign(const Region& region, MemoryDomain domain) override {
    device_->Assign(region, domain);
  }
  bool truncatable() const override { return device_->truncatable(); }
  absl::Status Truncate(Region* region, uint64_t bytes) override {
    if (ShouldFail()) return Error("Truncate");
    const uint64_t before = region->bytes;
    const absl::Status status = device_->Truncate(region, bytes);
    Count(before, region->bytes);
    return status;
  }
  absl::Status Copy(std::span<const CopyOp> ops) override {
    if (ShouldFail()) return Error("Copy");
    return device_->Copy(ops);
  }
  bool host_addressable() const override { return device_->host_addressable(); }
  std::string_view name() const override { return "faulty memory"; }

 private:
  static absl::Status Error(const char* call) {
    return absl::ResourceExhaustedError(absl::StrCat("faulty memory: ", call, " was told to fail"));
  }
  std::function<void()> TakeHook() {
    MutexLock lock(mutex_);
    return std::exchange(on_allocate_, nullptr);
  }
  bool ShouldFail() {
    MutexLock lock(mutex_);
    ++calls_;
    const bool fail = calls_ >= first_ && calls_ - first_ < count_;
    failures_ += fail;
    return fail;
  }
  void Count(uint64_t less, uint64_t more) {
    MutexLock lock(mutex_);
    taken_bytes_ = taken_bytes_ - less + more;
    peak_bytes_ = std::max(peak_bytes_, taken_bytes_);
  }

  DeviceMemory* const device_;
  mutable Mutex mutex_;
  std::function<void()> on_allocate_ KVTIER_GUARDED_BY(mutex_);
  uint64_t calls_ KVTIER_GUARDED_BY(mutex_) = 0;
  uint64_t first_ KVTIER_GUARDED_BY(mutex_) = 0;
  uint64_t count_ KVTIER_GUARDED_BY(mutex_) = 0;  // 0: none fails
  uint64_t failures_ KVTIER_GUARDED_BY(mutex_) = 0;
  uint64_t taken_bytes_ KVTIER_GUARDED_BY(mutex_) = 0;
  uint64_t peak_bytes_ KVTIER_GUARDED_BY(mutex_) = 0;
};

}  // namespace kvtier
