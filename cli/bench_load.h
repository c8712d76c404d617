// kvtier bench load: requests of a trace as a mix of operations, at a rate or as fast as they go.
#pragma once

#include "cli/commands.h"

namespace kvtier::cli {

void AddBenchLoadCommand(CLI::App& bench, Invocation* invocation);

}  // namespace kvtier::cli
