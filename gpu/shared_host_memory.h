// Host memory that other processes may map, to read and never to write.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "common/unique_fd.h"
#include "gpu/device_memory.h"

namespace kvtier {

// DeviceMemory in memfds that are sealed once they are there: nobody can shrink or grow them, nor
// map them for writing, save this process, which had done so before. So they are not truncatable,
// and Reallocate is Free and Allocate.
//
// A region that was opened may still be mapped elsewhere when it is freed: it is *retired* then.
// Its memory stays taken until the last who has it lets go, and is never used again. Whether that
// is so is asked of the kernel (a lease on the file is granted only once nobody else has it open or
// mapped), not of those who have it: they may be dead, or lie. Thread-safe.
class SharedHostMemory : public DeviceMemory {
 public:
  // OK, or UNAVAILABLE saying in one line what this system lacks (Linux 5.1 has all of it).
  static absl::Status Supported();

  struct OpenedRegion {
    UniqueFd fd;  // can be mapped read-only, and nothing else
    uint64_t bytes = 0;
  };
  // `region` is a Region::id. NOT_FOUND once it was freed, and when it is another domain's;
  // RESOURCE_EXHAUSTED without descriptors.
  virtual absl::StatusOr<OpenedRegion> Open(uint64_t region, MemoryDomain domain = {}) = 0;

  // Called with the id of each region that is freed after it was opened, on the thread that freed
  // it; null: nobody is. Waits for a call that is under way.
  virtual void OnRetired(std::function<void(uint64_t region)> listener) = 0;

  struct Retired {
    uint64_t regions = 0;
    uint64_t bytes = 0;
  };
  // What others still have of the regions freed, as of now.
  virtual Retired retired() = 0;
};

// A region takes one file descriptor, two once it was opened, and one while it is retired. While
// more than `max_retired_bytes` are retired Allocate gives nothing (RESOURCE_EXHAUSTED): so all
// memory, retired or not, is at most that above what was allowed to be allocated.
std::unique_ptr<SharedHostMemory> MakeSharedHostMemory(uint64_t max_retired_bytes);

}  // namespace kvtier
