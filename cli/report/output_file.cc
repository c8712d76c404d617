#include "cli/report/output_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

namespace kvtier::cli {
namespace {

namespace fs = std::filesystem;

absl::Status CannotWrite(const std::string& path, const std::string& reason) {
  return absl::FailedPreconditionError(absl::StrCat("cannot write ", path, ": ", reason));
}

// A new file beside the one that is to be replaced; removed unless it took its place.
class FileBeside {
 public:
  static absl::StatusOr<FileBeside> Create(const std::string& path) {
    std::error_code error;
    const fs::path target = fs::weakly_canonical(path, error);
    if (error) return CannotWrite(path, error.message());
    const fs::file_status status = fs::status(target, error);
    if (fs::exists(status) && !fs::is_regular_file(status)) {
      return absl::InvalidArgumentError(
          absl::StrCat("cannot write ", path, ": it is no regular file"));
    }
    FileBeside file(path, target.string());
    file.descriptor_ = open(file.name_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file.descriptor_ < 0) return CannotWrite(path, std::strerror(errno));
    return file;
  }

  FileBeside(FileBeside&& other) noexcept
      : path_(other.path_),
        target_(other.target_),
        name_(other.name_),
        descriptor_(std::exchange(other.descriptor_, -1)) {}
  FileBeside& operator=(FileBeside&&) = delete;
  ~FileBeside() {
    if (descriptor_ < 0) return;
    close(descriptor_);
    unlink(name_.c_str());
  }

  absl::Status Write(std::string_view content) {
    while (!content.empty()) {
      const ssize_t written = write(descriptor_, content.data(), content.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return CannotWrite(path_, std::strerror(errno));
      content.remove_prefix(static_cast<size_t>(written));
    }
    return absl::OkStatus();
  }

  absl::Status Replace() {
    if (fsync(descriptor_) != 0 || rename(name_.c_str(), target_.c_str()) != 0) {
      return CannotWrite(path_, std::strerror(errno));
    }
    close(std::exchange(descriptor_, -1));
    return absl::OkStatus();
  }

 private:
  FileBeside(std::string path, std::string target)
      : path_(std::move(path)),
        target_(std::move(target)),
        name_(absl::StrCat(target_, ".", getpid(), ".tmp")) {}

  std::string path_;    // as the user gave it
  std::string target_;  // without links
  std::string name_;
  int descriptor_ = -1;
};

}  // namespace

absl::Status CheckWritable(const std::string& path) { return FileBeside::Create(path).status(); }

absl::Status WriteWholeFile(const std::string& path, std::string_view content) {
  KVTIER_ASSIGN_OR_RETURN(FileBeside file, FileBeside::Create(path));
  KVTIER_RETURN_IF_ERROR(file.Write(content));
  return file.Replace();
}

}  // namespace kvtier::cli
