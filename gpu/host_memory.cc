#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "common/check.h"
#include "gpu/device_memory.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14; Debian 12's headers may predate it
#endif

namespace kvtier {
namespace {

absl::Status SystemError(const char* call, uint64_t bytes) {
  const int error = errno;
  std::string message =
      absl::StrCat("host memory: ", call, " of ", bytes, " bytes: ", std::strerror(error));
  if (error == EMFILE) {
    rlimit limit{};
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
      absl::StrAppend(&message, " (limit ", limit.rlim_cur, ", raise RLIMIT_NOFILE)");
    }
  }
  return absl::ResourceExhaustedError(message);
}

// For kernels without MADV_POPULATE_WRITE. fallocate first: touching a page that the system cannot
// give is SIGBUS, fallocate says ENOSPC.
absl::Status TouchPages(const Region& region, uint64_t offset) {
  const int error = posix_fallocate(region.fd, static_cast<off_t>(offset),
                                    static_cast<off_t>(region.bytes - offset));
  if (error != 0) {
    errno = error;
    return SystemError("fallocate", region.bytes - offset);
  }
  for (uint64_t at = offset; at < region.bytes; at += DeviceMemory::kRegionGranule) {
    static_cast<volatile std::byte*>(region.base)[at] = std::byte{0};
  }
  return absl::OkStatus();
}

// Makes the pages from `offset` on be there.
absl::Status Populate(const Region& region, uint64_t offset) {
  int result;
  do {
    result = madvise(region.base + offset, region.bytes - offset, MADV_POPULATE_WRITE);
  } while (result != 0 && (errno == EINTR || errno == EAGAIN));
  if (result == 0) return absl::OkStatus();
  if (errno == EINVAL) return TouchPages(region, offset);
  return SystemError("populating", region.bytes - offset);
}

class HostMemory final : public DeviceMemory {
 public:
  absl::StatusOr<Region> Allocate(uint64_t bytes) override {
    KVTIER_CHECK(bytes > 0);
    Region region;
    region.bytes = RoundUp(bytes);
    region.fd = memfd_create("kvtier", MFD_CLOEXEC);
    if (region.fd < 0) return SystemError("memfd_create", region.bytes);
    absl::Status status = MapNew(&region);
    if (status.ok()) status = Populate(region, 0);
    if (status.ok()) return region;
    Free(region);
    return status;
  }

  void Free(const Region& region) override {
    if (region.base != nullptr) KVTIER_CHECK(munmap(region.base, region.bytes) == 0);
    KVTIER_CHECK(close(region.fd) == 0);
  }

  absl::StatusOr<Region> Reallocate(const Region& region, uint64_t bytes) override {
    KVTIER_CHECK(bytes > 0);
    Region resized = region;
    const absl::Status status =
        bytes <= region.bytes ? Truncate(&resized, bytes) : Extend(&resized, RoundUp(bytes));
    if (status.ok()) return resized;
    Free(resized);
    return status;
  }

  bool truncatable() const override { return true; }

  absl::Status Truncate(Region* region, uint64_t bytes) override {
    const uint64_t kept = RoundUp(bytes);
    KVTIER_CHECK(bytes > 0 && kept <= region->bytes);
    if (kept == region->bytes) return absl::OkStatus();
    if (ftruncate(region->fd, static_cast<off_t>(kept)) != 0) return SystemError("ftruncate", kept);
    KVTIER_CHECK(munmap(region->base + kept, region->bytes - kept) == 0);
    region->bytes = kept;
    return absl::OkStatus();
  }

  absl::Status Copy(std::span<const CopyOp> ops) override {
    for (const CopyOp& op : ops) std::memcpy(op.to, op.from, op.bytes);
    return absl::OkStatus();
  }

  bool host_addressable() const override { return true; }
  std::string_view name() const override { return "host memory"; }

 private:
  static absl::Status MapNew(Region* region) {
    if (ftruncate(region->fd, static_cast<off_t>(region->bytes)) != 0) {
      return SystemError("ftruncate", region->bytes);
    }
    void* base = mmap(nullptr, region->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, region->fd, 0);
    if (base == MAP_FAILED) return SystemError("mmap", region->bytes);
    region->base = static_cast<std::byte*>(base);
    return absl::OkStatus();
  }

  // Populates only what is new.
  static absl::Status Extend(Region* region, uint64_t bytes) {
    if (ftruncate(region->fd, static_cast<off_t>(bytes)) != 0)
      return SystemError("ftruncate", bytes);
    void* base = mremap(region->base, region->bytes, bytes, MREMAP_MAYMOVE);
    if (base == MAP_FAILED) return SystemError("mremap", bytes);
    const uint64_t populated = region->bytes;
    region->base = static_cast<std::byte*>(base);
    region->bytes = bytes;
    return Populate(*region, populated);
  }
};

}  // namespace

std::unique_ptr<DeviceMemory> MakeHostMemory() { return std::make_unique<HostMemory>(); }

}  // namespace kvtier
