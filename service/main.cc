// kvtierd: reads its configuration, starts the server and waits for a signal.
#include <malloc.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <vector>

#include "common/absl_locks.h"
#include "common/log.h"
#include "common/standard_streams.h"
#include "service/config.h"
#include "service/grpc_server.h"
#include "service/server.h"

namespace kvtier {
namespace {

constexpr int kExitFailed = 1;   // could not start
constexpr int kExitRefused = 2;  // the configuration is wrong

// What a stop takes besides the drain.
constexpr unsigned kStopSeconds = 2;

sigset_t StopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  return signals;
}

// Message buffers of a MiB come and go all the time: freed memory stays in the process, as touching
// fresh memory costs more than copying into it.
void KeepFreedMemory() {
  mallopt(M_MMAP_THRESHOLD, 64 << 20);
  mallopt(M_TRIM_THRESHOLD, 128 << 20);
}

// Idle connections cost a descriptor each, and gRPC's listener does not recover from running out.
void RaiseDescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) {
    Log(LogLevel::kWarning, "cannot raise the limit of open files", {{"limit", limit.rlim_max}});
  }
}

// A peer that stands still in the middle of a read keeps gRPC from ending its call for as long as
// it does. What must outlive the process is on disk long before, so the stop does not wait for
// such.
void Abandon(int) {
  constexpr char kLine[] = "kvtierd: calls of peers that stand still are abandoned\n";
  const ssize_t written = write(STDERR_FILENO, kLine, sizeof(kLine) - 1);
  _exit(written < 0 ? kExitFailed : 0);
}

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "kvtierd: %s\n", std::string(status.message()).c_str());
  return absl::IsInvalidArgument(status) ? kExitRefused : kExitFailed;
}

void LogConfiguration(const CommandLine& line) {
  Log(LogLevel::kInfo, "kvtierd starts", {{"version", KVTIER_VERSION}, {"pid", getpid()}});
  for (const EffectiveSetting& setting : line.settings) {
    Log(LogLevel::kInfo, "setting",
        {{"name", setting.name}, {"value", setting.value}, {"source", setting.source}});
  }
}

int Serve(const CommandLine& line, const sigset_t& stop_signals) {
  SetLogLevel(line.config.log_level);
  KeepFreedMemory();
  SkipAbslLockChecks();
  RaiseDescriptorLimit();
  RouteGrpcLog();
  LogConfiguration(line);
  absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(line.config, line.settings);
  if (!server.ok()) return Fail(server.status());
  std::printf("%s\n", (*server)->ReadyLine().c_str());
  std::fflush(stdout);

  int signal_number = 0;
  sigwait(&stop_signals, &signal_number);
  Log(LogLevel::kInfo, "stopping; a second signal ends the process at once",
      {{"signal", signal_number}});
  pthread_sigmask(SIG_UNBLOCK, &stop_signals, nullptr);
  signal(SIGALRM, Abandon);
  alarm(static_cast<unsigned>(line.config.drain_ms / 1000 + kStopSeconds));
  (*server)->Stop();
  server->reset();
  Log(LogLevel::kInfo, "stopped");
  return 0;
}

}  // namespace

int Main(int argc, char** argv) {
  // Before any thread is made, so that all of them leave these signals to sigwait.
  const sigset_t stop_signals = StopSignals();
  pthread_sigmask(SIG_BLOCK, &stop_signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  signal(SIGIO, SIG_IGN);  // comes when somebody opens a memfd in the moment of the lease on it

  const std::vector<std::string> environment = [] {
    std::vector<std::string> out;
    for (char** entry = environ; *entry != nullptr; ++entry) out.emplace_back(*entry);
    return out;
  }();
  const absl::StatusOr<CommandLine> line = ReadConfig(argc, argv, environment);
  if (!line.ok()) return Fail(line.status());
  switch (line->action) {
    case CommandLine::Action::kPrintAndExit:
      std::fputs(line->text.c_str(), stdout);
      return 0;
    case CommandLine::Action::kPrintConfig:
      std::fputs(FormatSettings(line->settings).c_str(), stdout);
      return 0;
    case CommandLine::Action::kServe:
      break;
  }
  return Serve(*line, stop_signals);
}

}  // namespace kvtier

int main(int argc, char** argv) {
  kvtier::HoldStandardStreams();
  return kvtier::Main(argc, argv);
}
