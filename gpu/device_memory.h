// The seam between kvtier and the memory that holds KV: host RAM or a GPU's own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "common/status.h"

namespace kvtier {

// One piece of device memory. `base` is a host address only where DeviceMemory::host_addressable().
struct Region {
  std::byte* base = nullptr;
  uint64_t bytes = 0;
  int fd = -1;  // the memfd behind it, owned by the DeviceMemory; -1 where there is none
};

// `from` and `to` are each a host address or an address within a Region of the same DeviceMemory.
struct CopyOp {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  uint64_t bytes = 0;
};

// Thread-safe. Streams and events are an implementation's secret.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;

  // Memory that is really there: touching it later costs no page fault. At least 256-byte aligned,
  // contents undefined. RESOURCE_EXHAUSTED when the device has no more.
  virtual absl::StatusOr<Region> Allocate(uint64_t bytes) = 0;
  // Gives the memory back to the system before it returns.
  virtual void Free(const Region& region) = 0;

  // Returns when all bytes have landed. On error some may have.
  virtual absl::Status Copy(std::span<const CopyOp> ops) = 0;

  // True when the CPU may read and write Region::base.
  virtual bool host_addressable() const = 0;
  // For logs and errors: "host memory", "cuda:0 (NVIDIA H200)".
  virtual std::string_view name() const = 0;
};

// Host memory in memfds (so that it can be shared and shrunk), populated when allocated.
std::unique_ptr<DeviceMemory> MakeHostMemory();

// The CUDA device `ordinal`. UNAVAILABLE with the reason in one line when this binary was built without
// CUDA, or there is no driver or device.
absl::StatusOr<std::unique_ptr<DeviceMemory>> MakeCudaMemory(int ordinal);

}  // namespace kvtier
