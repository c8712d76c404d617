#include "cli/trace_flags.h"

namespace kvtier::cli {

CLI::Option* AddTraceFileFlags(CLI::App* command, std::string* path, TraceReaderOptions* reader) {
  auto* trace = command->add_option(
      "--trace", *path,
      "Requests: JSON lines in Mooncake's format or with tokens, or a tar of agent sessions; plain "
      "or .zst, told from the content (docs/TRACES.md)");
  command
      ->add_flag("--skip-bad-lines", reader->skip_bad_lines,
                 "Count lines (of a tar: sessions) that cannot be read and go on")
      ->needs(trace);
  command
      ->add_option("--model", reader->model,
                   "Of a recording: only the requests of the model of this number (0: all)")
      ->capture_default_str()
      ->needs(trace);
  command
      ->add_option("--session-spread-hours", reader->spread_hours,
                   "Of a tar of sessions: each starts at a random time within so many hours")
      ->capture_default_str()
      ->needs(trace);
  command
      ->add_option("--session-cut-hours", reader->cut_hours,
                   "Of a tar of sessions: leave out what comes later (0: nothing)")
      ->capture_default_str()
      ->needs(trace);
  command
      ->add_option("--session-seed", reader->session_seed, "Of a tar of sessions: draws the starts")
      ->capture_default_str()
      ->needs(trace);
  command
      ->add_option("--block-tokens", reader->block_tokens,
                   "Tokens per block; of a tar of sessions a multiple of theirs")
      ->capture_default_str();
  return trace;
}

void AddTraceFlags(CLI::App* command, TraceFlags* flags) {
  CLI::Option* const trace = AddTraceFileFlags(command, &flags->path, &flags->reader);
  trace->description(trace->get_description() + "; without it, made-up chats in several turns");
  command->add_option("--requests", flags->generator.requests, "Made-up requests")
      ->capture_default_str()
      ->excludes(trace);
  command->add_option("--seed", flags->generator.seed, "Of the made-up requests")
      ->capture_default_str()
      ->excludes(trace);
  command
      ->add_option("--convention", flags->convention,
                   "all: every id of the trace is a block; full: an id that covers a partial "
                   "block is dropped")
      ->check(CLI::IsMember({"all", "full"}))
      ->capture_default_str();
}

absl::StatusOr<std::unique_ptr<TraceSource>> OpenSource(
    const TraceFlags& flags, std::function<void(const std::string&)> progress) {
  TraceReaderOptions reader = flags.reader;
  reader.progress = std::move(progress);
  if (!flags.path.empty()) return OpenTrace(flags.path, std::move(reader));
  if (flags.reader.block_tokens == 0) {
    return absl::InvalidArgumentError("block-tokens is 0, the least is 1");
  }
  GeneratorOptions generator = flags.generator;
  generator.block_tokens = flags.reader.block_tokens;
  return MakeGenerator(generator);
}

}  // namespace kvtier::cli
