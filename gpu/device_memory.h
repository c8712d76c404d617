// The seam between kvtier and the memory that holds KV: host RAM or a GPU's own.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "common/status.h"

namespace kvtier {

// Whose memory it is, among processes that may map memory of this one. One domain is common: it has
// all memory that was given to no other.
struct MemoryDomain {
  uint64_t value = 0;  // 0: the common one
  static constexpr MemoryDomain OfUid(uint32_t uid) { return {uint64_t{uid} + 1}; }
  bool common() const { return value == 0; }
  uint64_t uid() const { return value - 1; }  // REQUIRES: !common()
  friend bool operator==(const MemoryDomain&, const MemoryDomain&) = default;
  friend auto operator<=>(const MemoryDomain&, const MemoryDomain&) = default;
  template <typename H>
  friend H AbslHashValue(H hash, const MemoryDomain& domain) {
    return H::combine(std::move(hash), domain.value);
  }
};

// One piece of device memory. `base` is a host address only where DeviceMemory::host_addressable().
struct Region {
  std::byte* base = nullptr;
  uint64_t bytes = 0;
  int fd = -1;      // the memfd behind it, owned by the DeviceMemory; -1 where there is none
  uint64_t id = 0;  // of a region that others may map (gpu/shared_host_memory.h), never used again;
                    // 0: they may not
};

// `from` and `to` are each a host address or an address within a Region of the same DeviceMemory.
// They must not overlap.
struct CopyOp {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  uint64_t bytes = 0;
};

// Thread-safe. Streams and events are an implementation's secret. Every region must have been freed
// before the memory is destroyed.
class DeviceMemory {
 public:
  static constexpr uint64_t kRegionGranule = 4096;  // Region::bytes are multiples of this
  static constexpr uint64_t RoundUp(uint64_t bytes) {
    return (bytes + kRegionGranule - 1) / kRegionGranule * kRegionGranule;
  }

  virtual ~DeviceMemory() = default;

  // RoundUp(bytes) of memory that is really there: touching it later costs no page fault. At least
  // 256-byte aligned, contents undefined. REQUIRES: bytes > 0. RESOURCE_EXHAUSTED when the device
  // has no more, with the system's words; nothing was taken then.
  virtual absl::StatusOr<Region> Allocate(uint64_t bytes) = 0;
  // Gives the memory back to the system before it returns.
  virtual void Free(const Region& region) = 0;
  // `region` in another size: it may move, its contents are undefined, and never more than the
  // larger of the two sizes is taken. On error (as Allocate's) the region is gone.
  virtual absl::StatusOr<Region> Reallocate(const Region& region, uint64_t bytes) {
    Free(region);
    return Allocate(bytes);
  }

  // Gives the region to a domain, once, and before it has been written to or could be mapped: a new
  // one is the common one's. The same domain again is fine. Means nothing to memory that no other
  // process maps.
  virtual void Assign(const Region& region, MemoryDomain domain) {
    (void)region;
    (void)domain;
  }

  // True when Truncate works.
  virtual bool truncatable() const { return false; }
  // Gives back what lies after the first RoundUp(bytes) of `region`; those stay where they are,
  // with their contents, and may be in use meanwhile. REQUIRES: 0 < bytes <= region->bytes. On
  // error `region` is unchanged.
  virtual absl::Status Truncate(Region* region, uint64_t bytes) {
    (void)region;
    (void)bytes;
    return absl::UnimplementedError("this memory cannot be shrunk in place");
  }

  // Returns when all bytes have landed. On error some may have.
  virtual absl::Status Copy(std::span<const CopyOp> ops) = 0;

  // True when the CPU may read and write Region::base.
  virtual bool host_addressable() const = 0;
  // For logs and errors: "host memory", "cuda:0 (NVIDIA H200)".
  virtual std::string_view name() const = 0;
};

// Host memory in memfds (so that it can be shrunk), populated when allocated. Each region takes one
// file descriptor.
std::unique_ptr<DeviceMemory> MakeHostMemory();

// The CUDA device `ordinal`. UNAVAILABLE with the reason in one line when this binary was built
// without CUDA, or there is no driver or device. In the library kvtier_gpu_cuda.
absl::StatusOr<std::unique_ptr<DeviceMemory>> MakeCudaMemory(int ordinal);

}  // namespace kvtier
