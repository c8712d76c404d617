#include "tests/bench/disk.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>

#include "common/check.h"

namespace kvtier {
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

}  // namespace kvtier
