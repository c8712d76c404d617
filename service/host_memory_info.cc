#include "service/host_memory_info.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>

#include "common/bytes.h"

namespace kvtier {
namespace {

constexpr uint64_t kUsablePercent = 90;

// The figure after `name` in a file such as /proc/meminfo or memory.stat.
std::optional<uint64_t> ReadEntry(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  std::string word;
  uint64_t value = 0;
  while (file >> word) {
    if (word == name && file >> value) return value;
  }
  return std::nullopt;
}

std::optional<uint64_t> ReadKilobytes(const std::string& path, const std::string& name) {
  const std::optional<uint64_t> value = ReadEntry(path, name);
  return value ? std::optional<uint64_t>(*value * 1024) : std::nullopt;
}

// Nothing when the file is not there or says "max".
std::optional<uint64_t> ReadNumber(const std::filesystem::path& path) {
  std::ifstream file(path);
  uint64_t value = 0;
  if (file >> value) return value;
  return std::nullopt;
}

struct GroupFiles {
  const char* mount;
  const char* limit;
  const char* used;
  const char* stat_prefix;
};
constexpr GroupFiles kUnified = {"/sys/fs/cgroup", "memory.max", "memory.current", ""};
constexpr GroupFiles kLegacy = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes",
                                "memory.usage_in_bytes", "total_"};

// What one group leaves; the page cache counted in it can be had back.
uint64_t GroupRoom(const std::filesystem::path& folder, const GroupFiles& files) {
  const std::optional<uint64_t> limit = ReadNumber(folder / files.limit);
  if (!limit) return UINT64_MAX;
  const std::string stat = folder / "memory.stat";
  const std::string prefix = files.stat_prefix;
  const uint64_t cache = ReadEntry(stat, prefix + "inactive_file").value_or(0) +
                         ReadEntry(stat, prefix + "active_file").value_or(0);
  const uint64_t used = ReadNumber(folder / files.used).value_or(0);
  return *limit - std::min(*limit, used - std::min(used, cache));
}

// What the memory control groups leave, from this process's own up to the root. In a container the
// path may not exist under the mount, whose root is then the container's own group.
uint64_t ControlGroupRoom(const std::string& root) {
  std::ifstream file(root + "/proc/self/cgroup");
  uint64_t room = UINT64_MAX;
  std::string line;
  while (std::getline(file, line)) {
    const size_t path_at = line.find(':', line.find(':') + 1) + 1;
    const bool unified = line.rfind("0::", 0) == 0;
    if (!unified && line.find(":memory:") == std::string::npos) continue;
    const GroupFiles& files = unified ? kUnified : kLegacy;
    const std::string mount = root + files.mount;
    for (std::filesystem::path group = line.substr(path_at);; group = group.parent_path()) {
      room = std::min(room, GroupRoom(mount + group.string(), files));
      if (group == group.parent_path()) break;
    }
  }
  return room;
}

}  // namespace

absl::StatusOr<uint64_t> AvailableMemory(const std::string& root) {
  const std::string path = root + "/proc/meminfo";
  const std::optional<uint64_t> available = ReadKilobytes(path, "MemAvailable:");
  if (!available) return absl::UnavailableError(absl::StrCat(path, ": no MemAvailable"));
  return std::min(*available, ControlGroupRoom(root));
}

absl::StatusOr<uint64_t> ProcessMemory(const std::string& root) {
  const std::string path = root + "/proc/self/status";
  const std::optional<uint64_t> anonymous = ReadKilobytes(path, "RssAnon:");
  const std::optional<uint64_t> shared = ReadKilobytes(path, "RssShmem:");
  if (!anonymous || !shared) return absl::UnavailableError(absl::StrCat(path, ": no RssAnon"));
  return *anonymous + *shared;
}

absl::Status CheckHostMemory(const std::string& field, uint64_t wanted, uint64_t held,
                             uint64_t available) {
  const uint64_t usable = (available + held) / 100 * kUsablePercent;
  if (wanted <= usable) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      field, ": ", FormatBytes(wanted), " (", wanted, " bytes) is more than ", kUsablePercent,
      " % of the ", FormatBytes(available + held), " (", available + held,
      " bytes) that this host or control group has available: at most ", usable, " bytes"));
}

}  // namespace kvtier
