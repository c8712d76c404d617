// A program started beside a benchmark and ended with it.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "common/status.h"

namespace kvtier::bench {

// Not thread-safe. The child also ends when this process does, however that happens. Its stdout is
// closed, its stderr is ours.
class ChildProcess {
 public:
  // argv[0] is the program's path. UNAVAILABLE when it cannot be started.
  static absl::StatusOr<std::unique_ptr<ChildProcess>> Start(std::vector<std::string> argv);
  ~ChildProcess();  // Stop()
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  // UNAVAILABLE once the child has ended by itself.
  absl::Status CheckRunning();
  // SIGTERM, and waits. An error when it did not end with status 0.
  absl::Status Stop();

 private:
  ChildProcess(std::string name, pid_t pid) : name_(std::move(name)), pid_(pid) {}

  const std::string name_;
  pid_t pid_;  // -1 once it was waited for
};

// A directory of its own below $TMPDIR or /tmp, or another, removed with what is in it.
class TemporaryDirectory {
 public:
  static absl::StatusOr<std::unique_ptr<TemporaryDirectory>> Make();
  static absl::StatusOr<std::unique_ptr<TemporaryDirectory>> Make(const std::string& below);
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const std::string& path() const { return path_; }

 private:
  explicit TemporaryDirectory(std::string path) : path_(std::move(path)) {}

  const std::string path_;
};

// The path of the running program.
absl::StatusOr<std::string> OwnPath();

}  // namespace kvtier::bench
