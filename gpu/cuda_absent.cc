// What a build without the CUDA toolkit has in place of cuda_memory.cc.
#include "gpu/device_memory.h"

namespace kvtier {

absl::StatusOr<std::unique_ptr<DeviceMemory>> MakeCudaMemory(int ordinal) {
  return absl::UnavailableError(
      absl::StrCat("cuda:", ordinal, ": this binary was built without CUDA"));
}

}  // namespace kvtier
