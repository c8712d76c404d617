#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/check.h"
#include "common/mutex.h"
#include "gpu/shared_host_memory.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14; Debian 12's headers may predate it
#endif
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010  // Linux 5.1; glibc has it in <linux/fcntl.h> alone
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

absl::Status MapNew(Region* region) {
  if (ftruncate(region->fd, static_cast<off_t>(region->bytes)) != 0) {
    return SystemError("ftruncate", region->bytes);
  }
  void* base = mmap(nullptr, region->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, region->fd, 0);
  if (base == MAP_FAILED) return SystemError("mmap", region->bytes);
  region->base = static_cast<std::byte*>(base);
  return absl::OkStatus();
}

void Unmap(const Region& region) {
  if (region.base != nullptr) KVTIER_CHECK(munmap(region.base, region.bytes) == 0);
}

void Release(const Region& region) {
  Unmap(region);
  KVTIER_CHECK(close(region.fd) == 0);
}

absl::StatusOr<Region> TakeRegion(uint64_t bytes, unsigned memfd_flags) {
  KVTIER_CHECK(bytes > 0);
  Region region;
  region.bytes = DeviceMemory::RoundUp(bytes);
  region.fd = memfd_create("kvtier", MFD_CLOEXEC | memfd_flags);
  if (region.fd < 0) return SystemError("memfd_create", region.bytes);
  absl::Status status = MapNew(&region);
  if (status.ok()) status = Populate(region, 0);
  if (status.ok()) return region;
  Release(region);
  return status;
}

absl::Status CopyAll(std::span<const CopyOp> ops) {
  for (const CopyOp& op : ops) std::memcpy(op.to, op.from, op.bytes);
  return absl::OkStatus();
}

class HostMemory final : public DeviceMemory {
 public:
  absl::StatusOr<Region> Allocate(uint64_t bytes) override { return TakeRegion(bytes, 0); }
  void Free(const Region& region) override { Release(region); }

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

  absl::Status Copy(std::span<const CopyOp> ops) override { return CopyAll(ops); }
  bool host_addressable() const override { return true; }
  std::string_view name() const override { return "host memory"; }

 private:
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

// An open file of its own, so that it can only be read: a duplicate of the memfd's descriptor would
// share its right to write, and the kernel could not tell one holder from another.
UniqueFd OpenReadOnly(int fd) {
  return UniqueFd(open(absl::StrCat("/proc/self/fd/", fd).c_str(), O_RDONLY | O_CLOEXEC));
}

absl::Status Seal(const Region& region) {
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;
  if (fcntl(region.fd, F_ADD_SEALS, kSeals) == 0) return absl::OkStatus();
  return SystemError("sealing", region.bytes);
}

// The lease comes with the question, and goes when `fd` is closed: nobody is there who would break
// it.
bool NobodyElseHas(const UniqueFd& fd) { return fcntl(fd.get(), F_SETLEASE, F_WRLCK) == 0; }

class SealedHostMemory final : public SharedHostMemory {
 public:
  explicit SealedHostMemory(uint64_t max_retired_bytes) : max_retired_bytes_(max_retired_bytes) {}
  ~SealedHostMemory() override {
    MutexLock lock(mutex_);
    KVTIER_CHECK(regions_.empty());
  }

  absl::StatusOr<Region> Allocate(uint64_t bytes) override {
    if (const Retired held = retired(); held.bytes > max_retired_bytes_) {
      return absl::ResourceExhaustedError(
          absl::StrCat("host memory: clients still have ", held.bytes,
                       " bytes mapped that were given up, the limit is ", max_retired_bytes_));
    }
    KVTIER_ASSIGN_OR_RETURN(Region region, TakeRegion(bytes, MFD_ALLOW_SEALING));
    if (absl::Status sealed = Seal(region); !sealed.ok()) {
      Release(region);
      return sealed;
    }
    MutexLock lock(mutex_);
    region.id = ++last_id_;
    regions_[region.id].fd = region.fd;
    regions_[region.id].own.bytes = region.bytes;
    return region;
  }

  void Free(const Region& region) override {
    OpenedRegion own;
    {
      MutexLock lock(mutex_);
      const auto it = regions_.find(region.id);
      KVTIER_CHECK(it != regions_.end());
      own = std::move(it->second.own);
      regions_.erase(it);
    }
    Release(region);
    if (!own.fd) return;
    {
      MutexLock lock(mutex_);
      if (!NobodyElseHas(own.fd)) retired_.push_back(std::move(own));
    }
    MutexLock lock(listener_mutex_);
    if (listener_) listener_(region.id);
  }

  void Assign(const Region& region, MemoryDomain domain) override {
    MutexLock lock(mutex_);
    Serving& serving = regions_.at(region.id);
    if (serving.domain == domain) return;
    KVTIER_CHECK(serving.domain.common() && !serving.own.fd);
    serving.domain = domain;
  }

  absl::StatusOr<OpenedRegion> Open(uint64_t id, MemoryDomain domain) override {
    MutexLock lock(mutex_);
    const auto it = regions_.find(id);
    if (it == regions_.end() || it->second.domain != domain) {
      return absl::NotFoundError(absl::StrCat("region ", id, " is not there, or no longer"));
    }
    OpenedRegion& own = it->second.own;
    if (!own.fd) own.fd = OpenReadOnly(it->second.fd);
    OpenedRegion out{OpenReadOnly(it->second.fd), own.bytes};
    if (!own.fd || !out.fd) return SystemError("opening for reading", out.bytes);
    return out;
  }

  void OnRetired(std::function<void(uint64_t region)> listener) override {
    MutexLock lock(listener_mutex_);
    listener_ = std::move(listener);
  }

  Retired retired() override {
    MutexLock lock(mutex_);
    std::erase_if(retired_, [](const auto& held) { return NobodyElseHas(held.fd); });
    Retired out;
    out.regions = retired_.size();
    for (const OpenedRegion& held : retired_) out.bytes += held.bytes;
    return out;
  }

  absl::Status Copy(std::span<const CopyOp> ops) override { return CopyAll(ops); }
  bool host_addressable() const override { return true; }
  std::string_view name() const override { return "shared host memory"; }

 private:
  struct Serving {
    int fd = -1;
    MemoryDomain domain;
    OpenedRegion own;  // its descriptor, from the first Open on: to ask by, once this is retired
  };

  const uint64_t max_retired_bytes_;
  Mutex mutex_;
  uint64_t last_id_ KVTIER_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<uint64_t, Serving> regions_ KVTIER_GUARDED_BY(mutex_);
  std::vector<OpenedRegion> retired_ KVTIER_GUARDED_BY(mutex_);
  Mutex listener_mutex_;
  std::function<void(uint64_t)> listener_ KVTIER_GUARDED_BY(listener_mutex_);
};

// What SealedHostMemory rests on, tried out on one page.
absl::Status TryOut() {
  KVTIER_ASSIGN_OR_RETURN(const Region region, TakeRegion(1, MFD_ALLOW_SEALING));
  const absl::Status sealed = Seal(region);
  const UniqueFd own = OpenReadOnly(region.fd);
  UniqueFd other = OpenReadOnly(region.fd);
  Release(region);
  if (!sealed.ok()) return sealed;
  if (!own || !other) return absl::UnavailableError("/proc/self/fd cannot be opened");
  const bool seen = !NobodyElseHas(own);
  other = UniqueFd();
  if (seen && NobodyElseHas(own)) return absl::OkStatus();
  return absl::UnavailableError("F_SETLEASE does not tell whether somebody has a memfd open");
}

}  // namespace

std::unique_ptr<DeviceMemory> MakeHostMemory() { return std::make_unique<HostMemory>(); }

std::unique_ptr<SharedHostMemory> MakeSharedHostMemory(uint64_t max_retired_bytes) {
  return std::make_unique<SealedHostMemory>(max_retired_bytes);
}

absl::Status SharedHostMemory::Supported() {
  const absl::Status tried = TryOut();
  if (tried.ok()) return tried;
  return absl::UnavailableError(
      absl::StrCat("this system cannot share sealed memory: ", std::string(tried.message())));
}

}  // namespace kvtier
