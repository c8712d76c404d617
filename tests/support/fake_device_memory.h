// A device whose memory the CPU cannot touch: its addresses are mapped without access, so that code
// which follows a device pointer dies at once. Copy alone knows where the bytes really are. Takes
// no real memory until bytes are copied in, so that tests can have large ones.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "common/check.h"
#include "common/mutex.h"
#include "gpu/device_memory.h"

namespace kvtier {

class FakeDeviceMemory final : public DeviceMemory {
 public:
  explicit FakeDeviceMemory(uint64_t total_bytes = UINT64_MAX) : total_bytes_(total_bytes) {}
  ~FakeDeviceMemory() override {
    MutexLock lock(mutex_);
    KVTIER_CHECK(regions_.empty());
  }

  absl::StatusOr<Region> Allocate(uint64_t bytes) override {
    Region region;
    region.bytes = RoundUp(bytes);
    MutexLock lock(mutex_);
    if (region.bytes > total_bytes_ - taken_bytes_) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "fake device: ", region.bytes, " bytes wanted, ", total_bytes_ - taken_bytes_, " left"));
    }
    region.base = Map(region.bytes, PROT_NONE);
    std::byte* const real = Map(region.bytes, PROT_READ | PROT_WRITE);
    regions_[region.base + region.bytes - 1] = {region.base, real};
    taken_bytes_ += region.bytes;
    peak_bytes_ = std::max(peak_bytes_, taken_bytes_);
    return region;
  }

  void Free(const Region& region) override {
    MutexLock lock(mutex_);
    const auto it = regions_.find(region.base + region.bytes - 1);
    KVTIER_CHECK(it != regions_.end() && it->second.base == region.base);
    KVTIER_CHECK(munmap(region.base, region.bytes) == 0);
    KVTIER_CHECK(munmap(it->second.real, region.bytes) == 0);
    regions_.erase(it);
    taken_bytes_ -= region.bytes;
  }

  absl::Status Copy(std::span<const CopyOp> ops) override {
    MutexLock lock(mutex_);
    for (const CopyOp& op : ops) {
      std::memcpy(const_cast<std::byte*>(Real(op.to, op.bytes)), Real(op.from, op.bytes), op.bytes);
    }
    return absl::OkStatus();
  }

  bool host_addressable() const override { return false; }
  std::string_view name() const override { return "fake device"; }

  uint64_t taken_bytes() const {
    MutexLock lock(mutex_);
    return taken_bytes_;
  }
  uint64_t peak_bytes() const {
    MutexLock lock(mutex_);
    return peak_bytes_;
  }

 private:
  struct Mapping {
    std::byte* base;
    std::byte* real;
  };

  static std::byte* Map(uint64_t bytes, int protection) {
    void* base =
        mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    KVTIER_CHECK(base != MAP_FAILED);
    return static_cast<std::byte*>(base);
  }

  // Addresses outside of all regions are the host's.
  const std::byte* Real(const std::byte* address, uint64_t bytes) const KVTIER_REQUIRES(mutex_) {
    const auto it = regions_.lower_bound(address);
    if (it == regions_.end() || address < it->second.base) return address;
    KVTIER_CHECK(address + bytes - 1 <= it->first);
    return it->second.real + (address - it->second.base);
  }

  const uint64_t total_bytes_;
  mutable Mutex mutex_;
  std::map<const std::byte*, Mapping> regions_ KVTIER_GUARDED_BY(mutex_);  // by last byte
  uint64_t taken_bytes_ KVTIER_GUARDED_BY(mutex_) = 0;
  uint64_t peak_bytes_ KVTIER_GUARDED_BY(mutex_) = 0;
};

}  // namespace kvtier
