#include <cuda_runtime_api.h>

#include <string>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/mutex.h"
#include "gpu/device_memory.h"

namespace kvtier {
namespace {

std::string Describe(const std::string& device, const char* call, cudaError_t error) {
  return absl::StrCat(device, ": ", call, ": ", cudaGetErrorName(error), " (",
                      cudaGetErrorString(error), ")");
}

// An error that leaves the process without this device: every later call would return it.
bool IsSticky() {
  (void)cudaGetLastError();  // what a call that merely failed leaves behind
  return cudaFree(nullptr) != cudaSuccess;
}

class CudaMemory final : public DeviceMemory {
 public:
  CudaMemory(int ordinal, std::string name) : ordinal_(ordinal), name_(std::move(name)) {}

  ~CudaMemory() override {
    MutexLock lock(mutex_);
    if (!dead_.ok()) return;
    for (const cudaStream_t stream : idle_streams_) (void)cudaStreamDestroy(stream);
  }

  absl::StatusOr<Region> Allocate(uint64_t bytes) override {
    KVTIER_CHECK(bytes > 0);
    KVTIER_RETURN_IF_ERROR(Enter());
    Region region;
    region.bytes = RoundUp(bytes);
    void* base = nullptr;
    const cudaError_t error = cudaMalloc(&base, region.bytes);
    if (error == cudaErrorMemoryAllocation) {
      (void)cudaGetLastError();
      return absl::ResourceExhaustedError(
          absl::StrCat(Describe(name_, "cudaMalloc", error), " of ", region.bytes, " bytes"));
    }
    KVTIER_RETURN_IF_ERROR(Check("cudaMalloc", error));
    region.base = static_cast<std::byte*>(base);
    return region;
  }

  void Free(const Region& region) override {
    if (!Enter().ok()) return;  // the memory went with the device
    const absl::Status status = Check("cudaFree", cudaFree(region.base));
    KVTIER_CHECK(status.ok() || !Enter().ok());
  }

  absl::Status Copy(std::span<const CopyOp> ops) override {
    KVTIER_RETURN_IF_ERROR(Enter());
    KVTIER_ASSIGN_OR_RETURN(const cudaStream_t stream, TakeStream());
    absl::Status status;
    for (const CopyOp& op : ops) {
      status = Check("cudaMemcpyAsync",
                     cudaMemcpyAsync(op.to, op.from, op.bytes, cudaMemcpyDefault, stream));
      if (!status.ok()) break;
    }
    // Also after an error: what was started must not go on behind the caller's back.
    const absl::Status landed = Check("cudaStreamSynchronize", cudaStreamSynchronize(stream));
    if (status.ok()) status = landed;
    MutexLock lock(mutex_);
    idle_streams_.push_back(stream);
    return status;
  }

  bool host_addressable() const override { return false; }
  std::string_view name() const override { return name_; }

 private:
  // Makes the device current on this thread; the first sticky error once there was one.
  absl::Status Enter() {
    {
      MutexLock lock(mutex_);
      if (!dead_.ok()) return dead_;
    }
    return Check("cudaSetDevice", cudaSetDevice(ordinal_));
  }

  absl::Status Check(const char* call, cudaError_t error) {
    if (error == cudaSuccess) return absl::OkStatus();
    const bool sticky = IsSticky();
    MutexLock lock(mutex_);
    if (!dead_.ok()) return dead_;
    const absl::Status status = absl::UnavailableError(Describe(name_, call, error));
    if (sticky) dead_ = status;
    return status;
  }

  // One stream per copy at a time, so that copies of different threads overlap and each waits for
  // its own only.
  absl::StatusOr<cudaStream_t> TakeStream() {
    {
      MutexLock lock(mutex_);
      if (!idle_streams_.empty()) {
        const cudaStream_t stream = idle_streams_.back();
        idle_streams_.pop_back();
        return stream;
      }
    }
    cudaStream_t stream = nullptr;
    KVTIER_RETURN_IF_ERROR(Check("cudaStreamCreateWithFlags",
                                 cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)));
    return stream;
  }

  // Constant.
  const int ordinal_;
  const std::string name_;

  // Guarded.
  Mutex mutex_;
  absl::Status dead_ KVTIER_GUARDED_BY(mutex_);
  std::vector<cudaStream_t> idle_streams_ KVTIER_GUARDED_BY(mutex_);
};

// Why there is no such device, in one line.
absl::Status FindDevice(int ordinal) {
  const std::string device = absl::StrCat("cuda:", ordinal);
  int driver = 0;
  cudaError_t error = cudaDriverGetVersion(&driver);
  if (error != cudaSuccess) {
    return absl::UnavailableError(Describe(device, "cudaDriverGetVersion", error));
  }
  if (driver == 0) return absl::UnavailableError(absl::StrCat(device, ": no NVIDIA driver"));
  int devices = 0;
  error = cudaGetDeviceCount(&devices);
  if (error != cudaSuccess) {
    return absl::UnavailableError(Describe(device, "cudaGetDeviceCount", error));
  }
  if (ordinal < 0 || ordinal >= devices) {
    return absl::UnavailableError(
        absl::StrCat(device, ": no such device; there are ", devices, ", counted from 0"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceMemory>> MakeCudaMemory(int ordinal) {
  KVTIER_RETURN_IF_ERROR(FindDevice(ordinal));
  std::string name = absl::StrCat("cuda:", ordinal);
  cudaDeviceProp properties{};
  cudaError_t error = cudaGetDeviceProperties(&properties, ordinal);
  if (error != cudaSuccess) {
    return absl::UnavailableError(Describe(name, "cudaGetDeviceProperties", error));
  }
  absl::StrAppend(&name, " (", properties.name, ")");
  error = cudaSetDevice(ordinal);
  if (error == cudaSuccess) error = cudaFree(nullptr);  // makes the context, so that it fails here
  if (error != cudaSuccess) return absl::UnavailableError(Describe(name, "starting", error));
  return std::make_unique<CudaMemory>(ordinal, std::move(name));
}

}  // namespace kvtier
