#include "cli/read_file.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

namespace kvtier::cli {

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  const auto error = [&path] {
    return absl::NotFoundError(absl::StrCat("cannot read ", path, ": ", std::strerror(errno)));
  };
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "rb"), &std::fclose);
  if (file == nullptr) return error();
  std::string out;
  char buffer[16 << 10];
  while (const size_t bytes = std::fread(buffer, 1, sizeof(buffer), file.get())) {
    out.append(buffer, bytes);
  }
  if (std::ferror(file.get()) != 0) return error();
  return out;
}

}  // namespace kvtier::cli
