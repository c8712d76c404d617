// kvtier: one tool for operators and planners. Wiring only.
#include "bench/ceilings.h"
#include "cli/commands.h"
#include "common/absl_locks.h"
#include "common/standard_streams.h"

int main(int argc, char** argv) {
  kvtier::HoldStandardStreams();
  CLI::App app(
      "kvtier keeps the KV cache of LLM prompts. This tool talks to a running kvtierd, looks into "
      "a\n"
      "stopped one's SSD, replays request traces, and sizes caches.",
      "kvtier");
  app.set_version_flag("--version", "kvtier " KVTIER_VERSION);
  app.require_subcommand(1);
  app.footer("'kvtier COMMAND --help' explains a command and gives an example.");

  kvtier::bench::KeepFreedMemory();
  kvtier::SkipAbslLockChecks();
  kvtier::cli::Invocation invocation;
  invocation.command_line =
      kvtier::cli::CommandLine(std::span<const char* const>(argv, static_cast<size_t>(argc)));
  kvtier::cli::AddStatusCommand(app, &invocation);
  kvtier::cli::AddModelsCommand(app, &invocation);
  kvtier::cli::AddCurveCommand(app, &invocation);
  kvtier::cli::AddAdviseCommand(app, &invocation);
  kvtier::cli::AddSetCapacityCommand(app, &invocation);
  kvtier::cli::AddResetCommand(app, &invocation);
  kvtier::cli::AddUnregisterCommand(app, &invocation);
  kvtier::cli::AddDrainCommand(app, &invocation);
  kvtier::cli::AddRecordCommand(app, &invocation);
  kvtier::cli::AddSizeCommand(app, &invocation);
  kvtier::cli::AddInspectCommand(app, &invocation);
  kvtier::cli::AddReplayCommand(app, &invocation);
  kvtier::cli::AddSimulateCommand(app, &invocation);
  kvtier::cli::AddBenchCommand(app, &invocation);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (app.exit(error) != 0) return 2;
    return kvtier::cli::Output(/*json=*/false).Finish(absl::OkStatus());
  }
  kvtier::cli::Output output(invocation.json);
  return output.Finish(invocation.run(output));
}
