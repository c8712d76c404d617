#include "storage/ssd_directory.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <vector>

#include "common/bytes.h"

namespace kvtier {
namespace {

namespace fs = std::filesystem;

absl::Status HostError(const std::string& what, const std::string& path, int error) {
  const std::string text = absl::StrCat("cannot ", what, " ", path, ": ", std::strerror(error));
  if (error == ENOSPC || error == EDQUOT) {
    return absl::ResourceExhaustedError(text + "; make room on its filesystem");
  }
  return absl::FailedPreconditionError(
      text + "; check that it is on a healthy disk and that this user may write there");
}

// 0, or the errno of creating a file with these flags on top.
int TryToCreate(const std::string& path, int flags) {
  const int fd = ::open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC | flags, 0600);
  const int error = fd < 0 ? errno : 0;
  if (fd >= 0) ::close(fd);
  ::unlink(path.c_str());  // O_DIRECT may fail after the file was made
  return error;
}

// Everything beside `directory` that was set aside from it.
std::vector<fs::path> SetAsideBefore(const fs::path& directory, uint64_t* highest) {
  const std::string prefix = directory.filename().string() + ".damaged-";
  std::vector<fs::path> found;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory.parent_path(), error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(prefix)) continue;
    found.push_back(entry.path());
    *highest =
        std::max<uint64_t>(*highest, std::strtoull(name.c_str() + prefix.size(), nullptr, 10));
  }
  return found;
}

void RemovePayloadFiles(const fs::path& directory) {
  std::error_code error;
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(directory, error)) {
    if (entry.path().extension() == ".sst") files.push_back(entry.path());
  }
  for (const fs::path& file : files) fs::remove(file, error);
}

}  // namespace

absl::StatusOr<bool> PrepareSsdDirectory(const std::string& directory) {
  std::error_code error;
  if (fs::create_directories(directory, error)) {
    fs::permissions(directory, fs::perms::owner_all, error);
  }
  if (error) return HostError("make the directory", directory, error.value());
  const std::string probe = directory + "/probe";
  const int direct = TryToCreate(probe, O_DIRECT);
  if (direct == 0) return true;
  const int buffered = TryToCreate(probe, 0);
  if (buffered == 0) return false;
  return HostError("make files in", directory, buffered);
}

absl::StatusOr<std::string> SetSsdDirectoryAside(const std::string& directory) {
  const fs::path from = fs::path(directory).lexically_normal();
  uint64_t highest = 0;
  std::error_code error;
  for (const fs::path& old : SetAsideBefore(from, &highest)) fs::remove_all(old, error);
  const std::string to = absl::StrCat(from.string(), ".damaged-", highest + 1);
  fs::rename(from, to, error);
  if (error) return HostError("rename", directory, error.value());
  RemovePayloadFiles(to);
  return to;
}

absl::Status CheckFreeSpace(const std::string& directory, uint64_t bytes) {
  std::error_code error;
  const fs::space_info space = fs::space(directory, error);
  if (error || space.available >= bytes) return absl::OkStatus();  // then writing will tell
  return absl::UnavailableError(absl::StrCat("the filesystem of ", directory, " has ",
                                             FormatBytes(space.available), " left; ",
                                             FormatBytes(bytes), " are needed"));
}

}  // namespace kvtier
