#include "bench/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

namespace kvtier::bench {
namespace {

absl::Status SystemError(const std::string& what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", strerror(errno)));
}

// Between fork and exec: nothing but system calls.
[[noreturn]] void RunChild(char* const* argv, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  const int null = open("/dev/null", O_RDWR);
  if (null >= 0) {
    dup2(null, STDIN_FILENO);
    dup2(null, STDOUT_FILENO);
  }
  execv(argv[0], argv);
  _exit(127);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChildProcess>> ChildProcess::Start(std::vector<std::string> argv) {
  if (access(argv.front().c_str(), X_OK) != 0) return SystemError(argv.front());
  std::vector<char*> arguments;
  for (std::string& argument : argv) arguments.push_back(argument.data());
  arguments.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return SystemError("fork");
  if (pid == 0) RunChild(arguments.data(), parent);
  return std::unique_ptr<ChildProcess>(new ChildProcess(argv.front(), pid));
}

absl::Status ChildProcess::CheckRunning() {
  int status = 0;
  if (pid_ > 0 && waitpid(pid_, &status, WNOHANG) == 0) return absl::OkStatus();
  pid_ = -1;
  return absl::UnavailableError(absl::StrCat(name_, " has ended (its messages are above)"));
}

absl::Status ChildProcess::Stop() {
  if (pid_ < 0) return absl::OkStatus();
  kill(pid_, SIGTERM);
  int status = 0;
  const pid_t waited = waitpid(pid_, &status, 0);
  pid_ = -1;
  if (waited < 0) return SystemError("waitpid");
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(name_, " ended with wait status ", status));
}

ChildProcess::~ChildProcess() {
  // Who wants to know calls Stop.
  Stop().IgnoreError();
}

absl::StatusOr<std::unique_ptr<TemporaryDirectory>> TemporaryDirectory::Make() {
  std::error_code error;
  const std::filesystem::path base = std::filesystem::temp_directory_path(error);
  if (error) return absl::UnavailableError(absl::StrCat("temporary directory: ", error.message()));
  return Make(base.string());
}

absl::StatusOr<std::unique_ptr<TemporaryDirectory>> TemporaryDirectory::Make(
    const std::string& below) {
  std::string path = below + "/kvtier-bench-XXXXXX";
  if (mkdtemp(path.data()) == nullptr) return SystemError(path);
  return std::unique_ptr<TemporaryDirectory>(new TemporaryDirectory(std::move(path)));
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code left_behind;  // a destructor has nobody to tell
  std::filesystem::remove_all(path_, left_behind);
}

absl::StatusOr<std::string> OwnPath() {
  std::error_code error;
  const std::filesystem::path path = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return absl::UnavailableError(absl::StrCat("/proc/self/exe: ", error.message()));
  return path.string();
}

}  // namespace kvtier::bench
