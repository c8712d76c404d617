#include "bench/disk.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>

#include "common/check.h"
#include "common/mutex.h"

namespace kvtier::bench {
namespace {

namespace fs = std::filesystem;

absl::Status Done(ssize_t done, uint64_t bytes, const char* what) {
  if (done < 0) return SystemError(what);
  if (static_cast<uint64_t>(done) == bytes) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(what, ": ", done, " of ", bytes, " bytes"));
}

absl::Status Checked(int result, const char* what) {
  return result == 0 ? absl::OkStatus() : SystemError(what);
}

// A number after `name` in a file of /proc/self.
uint64_t ProcValue(const char* file, const std::string& name) {
  std::ifstream in(file);
  for (std::string word; in >> word;) {
    uint64_t value = 0;
    if (word == name && in >> value) return value;
  }
  KVTIER_CHECK(false);
}

}  // namespace

absl::Status SystemError(const std::string& what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", strerror(errno)));
}

absl::StatusOr<File> File::Open(const std::string& path, int flags) {
  File file;
  file.fd_ = ::open(path.c_str(), flags | O_CLOEXEC, 0644);
  if (file.fd_ < 0) return SystemError(path);
  return file;
}

File::~File() {
  if (fd_ >= 0) ::close(fd_);
}

absl::Status File::Write(const void* from, uint64_t bytes, uint64_t offset) {
  return Done(::pwrite(fd_, from, bytes, static_cast<off_t>(offset)), bytes, "pwrite");
}

absl::Status File::Read(void* to, uint64_t bytes, uint64_t offset) const {
  return Done(::pread(fd_, to, bytes, static_cast<off_t>(offset)), bytes, "pread");
}

absl::Status File::Allocate(uint64_t bytes) {
  return Checked(::fallocate(fd_, 0, 0, static_cast<off_t>(bytes)), "fallocate");
}

absl::Status File::Sync() { return Checked(::fdatasync(fd_), "fdatasync"); }

absl::Status File::SyncFully() { return Checked(::fsync(fd_), "fsync"); }

Buffer::Buffer(uint64_t bytes)
    : bytes_(bytes), data_(static_cast<char*>(std::aligned_alloc(kPage, bytes)), &std::free) {
  KVTIER_CHECK(data_ != nullptr);
  std::memset(data_.get(), 1, bytes);
}

uint64_t BytesWritten() {
  return ProcValue("/proc/self/io", "write_bytes:") -
         ProcValue("/proc/self/io", "cancelled_write_bytes:");
}

uint64_t DiskBytes(const std::string& dir) {
  uint64_t bytes = 0;
  std::set<ino_t> seen;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(dir)) {
    struct stat info = {};
    if (entry.is_regular_file() && ::lstat(entry.path().c_str(), &info) == 0 &&
        seen.insert(info.st_ino).second) {
      bytes += static_cast<uint64_t>(info.st_blocks) * 512;
    }
  }
  return bytes;
}

absl::Status SyncAll(const std::string& dir) {
  KVTIER_ASSIGN_OR_RETURN(File file, File::Open(dir, O_RDONLY | O_DIRECTORY));
  return ::syncfs(file.fd()) == 0 ? absl::OkStatus() : SystemError("syncfs");
}

absl::Status DropCaches(const std::string& dir) {
  KVTIER_RETURN_IF_ERROR(SyncAll(dir));
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(dir)) {
    if (!entry.is_regular_file()) continue;
    KVTIER_ASSIGN_OR_RETURN(File file, File::Open(entry.path(), O_RDONLY));
    ::posix_fadvise(file.fd(), 0, 0, POSIX_FADV_DONTNEED);
  }
  std::ofstream("/proc/sys/vm/drop_caches") << "3\n";
  return absl::OkStatus();
}

absl::StatusOr<double> SideBySide(ThreadPool* pool, int threads, uint64_t count,
                                  const std::function<absl::Status(int, uint64_t)>& work) {
  std::atomic<uint64_t> next = 0;
  Mutex mutex;
  absl::Status status;
  const Stopwatch watch;
  for (int thread = 0; thread < threads; ++thread) {
    pool->Run([&, thread] {
      for (uint64_t i = next++; i < count; i = next++) {
        const absl::Status done = work(thread, i);
        MutexLock lock(mutex);
        status.Update(done);
      }
    });
  }
  pool->WaitIdle();
  KVTIER_RETURN_IF_ERROR(status);
  return watch.Seconds();
}

namespace {

// Takes reads out of the file's order; prime to the number of blocks, so that each is read once.
constexpr uint64_t kReadStride = 37;

}  // namespace

RawDisk::RawDisk(std::string path, uint64_t block_bytes, uint64_t blocks, int depth)
    : path_(std::move(path)), block_bytes_(block_bytes), blocks_(blocks), readers_(depth) {
  KVTIER_CHECK(blocks % kReadStride != 0);
  for (int i = 0; i < depth; ++i) buffers_.emplace_back(block_bytes);
}

RawDisk::~RawDisk() { ::unlink(path_.c_str()); }

absl::StatusOr<std::unique_ptr<RawDisk>> RawDisk::Make(const std::string& dir, uint64_t block_bytes,
                                                       uint64_t blocks, int depth) {
  std::unique_ptr<RawDisk> disk(new RawDisk(dir + "/raw", block_bytes, blocks, depth));
  KVTIER_RETURN_IF_ERROR(disk->Create());
  KVTIER_RETURN_IF_ERROR(disk->Write().status());
  return disk;
}

absl::Status RawDisk::Create() {
  ::unlink(path_.c_str());
  KVTIER_ASSIGN_OR_RETURN(file_, File::Open(path_, O_RDWR | O_CREAT | O_DIRECT));
  return absl::OkStatus();
}

absl::StatusOr<double> RawDisk::Write() {
  const Stopwatch watch;
  for (uint64_t i = 0; i < blocks_; ++i) {
    KVTIER_RETURN_IF_ERROR(file_.Write(buffers_[0].data(), block_bytes_, i * block_bytes_));
  }
  KVTIER_RETURN_IF_ERROR(file_.SyncFully());
  return watch.Seconds();
}

absl::StatusOr<double> RawDisk::WriteNew() {
  const Stopwatch watch;
  KVTIER_RETURN_IF_ERROR(Create());
  KVTIER_RETURN_IF_ERROR(Write().status());
  return watch.Seconds();
}

absl::StatusOr<double> RawDisk::Read() {
  const int depth = static_cast<int>(buffers_.size());
  return SideBySide(&readers_, depth, blocks_, [this](int thread, uint64_t i) {
    const uint64_t block = (i * kReadStride + 7) % blocks_;
    return file_.Read(buffers_[thread].data(), block_bytes_, block * block_bytes_);
  });
}

absl::StatusOr<double> RawDisk::ReadOne(uint64_t block) {
  const Stopwatch watch;
  KVTIER_RETURN_IF_ERROR(
      file_.Read(buffers_[0].data(), block_bytes_, block % blocks_ * block_bytes_));
  return watch.Seconds();
}

}  // namespace kvtier::bench
