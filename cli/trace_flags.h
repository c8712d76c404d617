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

// Declares --trace and how to read it; returns --trace. `path` and `reader` outlive the parse.
CLI::Option* AddTraceFileFlags(CLI::App* command, std::string* path, TraceReaderOptions* reader);

// The same, which convention, and what to make up without a trace. `flags` outlives the parse.
void AddTraceFlags(CLI::App* command, TraceFlags* flags);

// What the flags name. `progress`: TraceReaderOptions'. Errors: OpenTrace's.
absl::StatusOr<std::unique_ptr<TraceSource>> OpenSource(
    const TraceFlags& flags, std::function<void(const std::string&)> progress);

}  // namespace kvtier::cli
