// The options of the commands that read a trace.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "cli/trace.h"

namespace kvtier::cli {

struct TraceFlags {
  std::string path;  // empty: made-up chats
  TraceReaderOptions reader;
  GeneratorOptions generator;
  std::string convention = "all";

  bool full_only() const { return convention == "full"; }
};

// Declares --trace, how to read it, and what to make up without it. `flags` outlives the parse.
void AddTraceFlags(CLI::App* command, TraceFlags* flags);

// What the flags name. Errors: OpenTrace's.
absl::StatusOr<std::unique_ptr<TraceSource>> OpenSource(const TraceFlags& flags);

}  // namespace kvtier::cli
