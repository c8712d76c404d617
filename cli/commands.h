// The commands of the kvtier program, one source file each. A command's Add function declares its
// options below `parent` and, when the user chose it, leaves what is to be done in `invocation`.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <span>
#include <string>

#include "cli/json_output.h"
#include "common/status.h"

namespace kvtier::cli {

// What the command line asks for.
struct Invocation {
  bool json = false;
  std::string command_line;  // all of it, as a shell takes it
  // Prints the answer to the output. An error is the program's failure, also after an answer was
  // printed (a replay that met a wrong byte prints its table and fails).
  std::function<absl::Status(Output&)> run;
};

// A new command below `parent` (the program, or a command that has commands of its own) with the
// --json flag that all have. `example` is a command line that works as it stands. The caller adds
// options, and sets `invocation->run` in the returned command's callback().
CLI::App* AddCommand(CLI::App& parent, const std::string& name, const std::string& summary,
                     const std::string& example, Invocation* invocation);

// The arguments as a shell takes them.
std::string CommandLine(std::span<const char* const> arguments);

void AddSizeCommand(CLI::App& parent, Invocation* invocation);
void AddInspectCommand(CLI::App& parent, Invocation* invocation);
void AddReplayCommand(CLI::App& parent, Invocation* invocation);
void AddSimulateCommand(CLI::App& parent, Invocation* invocation);
void AddBenchCommand(CLI::App& parent, Invocation* invocation);

// These talk to the operators' API of a running kvtierd.
void AddStatusCommand(CLI::App& parent, Invocation* invocation);
void AddModelsCommand(CLI::App& parent, Invocation* invocation);
void AddCurveCommand(CLI::App& parent, Invocation* invocation);
void AddAdviseCommand(CLI::App& parent, Invocation* invocation);
void AddSetCapacityCommand(CLI::App& parent, Invocation* invocation);
void AddResetCommand(CLI::App& parent, Invocation* invocation);
void AddUnregisterCommand(CLI::App& parent, Invocation* invocation);
void AddDrainCommand(CLI::App& parent, Invocation* invocation);
void AddRecordCommand(CLI::App& parent, Invocation* invocation);

}  // namespace kvtier::cli
