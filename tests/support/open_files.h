// What a test looks at to see that memory really went back to the system.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <filesystem>
#include <set>
#include <string>

namespace kvtier {

struct OpenFiles {
  uint64_t count = 0;        // file descriptors of this process
  uint64_t memfds = 0;       // of those, of its memory
  uint64_t memfd_bytes = 0;  // memory behind its memfds, each counted once
};

inline OpenFiles CountOpenFiles() {
  OpenFiles files;
  std::error_code error;
  std::set<ino_t> memfds;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", error)) {
    const std::string target = std::filesystem::read_symlink(entry.path(), error).string();
    if (error) continue;  // the iterator's own
    ++files.count;
    files.memfds += target.starts_with("/memfd:kvtier");
    struct stat info {};
    if (target.starts_with("/memfd:kvtier") && stat(entry.path().c_str(), &info) == 0 &&
        memfds.insert(info.st_ino).second) {
      files.memfd_bytes += static_cast<uint64_t>(info.st_blocks) * 512;
    }
  }
  return files;
}

}  // namespace kvtier
