#include "cli/trace_flags.h"

namespace kvtier::cli {

void AddTraceFlags(CLI::App* command, TraceFlags* flags) {
  auto* trace = command->add_option(
      "--trace", flags->path,
      "Requests: JSON lines in Mooncake's format or with tokens, or a tar of agent sessions; plain "
      "or .zst, told from the content (docs/TRACES.md). Without it, made-up chats in several "
      "turns");
  command
      ->add_flag("--skip-bad-lines", flags->reader.skip_bad_lines,
                 "Count lines (of a tar: sessions) that cannot be read and go on")
      ->needs(trace);
  command
      ->add_option("--session-spread-hours", flags->reader.spread_hours,
                   "Of a tar of sessions: each starts at a random time within so many hours")
      ->capture_default_str()
      ->needs(trace);
  command
      ->add_option("--session-cut-hours", flags->reader.cut_hours,
                   "Of a tar of sessions: leave out what comes later (0: nothing)")
      ->capture_default_str()
      ->needs(trace);
  command
      ->add_option("--session-seed", flags->reader.session_seed,
                   "Of a tar of sessions: draws the starts")
      ->capture_default_str()
      ->needs(trace);
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
  command
      ->add_option("--block-tokens", flags->reader.block_tokens,
                   "Tokens per block; of a tar of sessions a multiple of theirs")
      ->capture_default_str();
}

absl::StatusOr<std::unique_ptr<TraceSource>> OpenSource(const TraceFlags& flags) {
  if (!flags.path.empty()) return OpenTrace(flags.path, flags.reader);
  if (flags.reader.block_tokens == 0) {
    return absl::InvalidArgumentError("block-tokens is 0, the least is 1");
  }
  GeneratorOptions generator = flags.generator;
  generator.block_tokens = flags.reader.block_tokens;
  return MakeGenerator(generator);
}

}  // namespace kvtier::cli
