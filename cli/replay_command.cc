// kvtier replay: replays a trace against a running daemon.
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "cli/admin_client.h"
#include "cli/commands.h"
#include "cli/replay.h"
#include "common/bytes.h"

namespace kvtier::cli {
namespace {

struct ReplayFlags {
  ReplayOptions replay;
  std::string trace;
  bool skip_bad_lines = false;
  std::string block_bytes;
  std::string convention = "all";
  uint64_t lease_ms = 30000;
  uint64_t generator_requests = GeneratorOptions().requests;
  uint64_t seed = GeneratorOptions().seed;
  std::string admin;  // empty: beside the data socket
};

std::string DefaultServerAddress() {
  const char* address = std::getenv("KVTIER_SERVER");
  return address != nullptr && *address != '\0' ? address : "unix:./kvtier-data/kvtier.sock";
}

absl::StatusOr<std::unique_ptr<TraceSource>> OpenSource(const ReplayFlags& flags) {
  const uint32_t block_tokens = flags.replay.block_tokens;
  if (block_tokens == 0) return absl::InvalidArgumentError("block-tokens is 0, the least is 1");
  if (!flags.trace.empty()) {
    return OpenTrace(flags.trace,
                     {.block_tokens = block_tokens, .skip_bad_lines = flags.skip_bad_lines});
  }
  GeneratorOptions generator;
  generator.block_tokens = block_tokens;
  generator.requests = flags.generator_requests;
  generator.seed = flags.seed;
  return MakeGenerator(generator);
}

// The daemon's usual place for it: beside the data socket. Empty when there is no telling.
std::string AdminAddress(const ReplayFlags& flags) {
  constexpr std::string_view kDataSocket = "/kvtier.sock";
  const std::string& server = flags.replay.server;
  if (!flags.admin.empty()) return flags.admin;
  if (!server.starts_with("unix:") || !server.ends_with(kDataSocket)) return "";
  return server.substr(0, server.size() - kDataSocket.size()) + "/admin.sock";
}

// Blocks written to the SSD tier so far; empty when the daemon has none or does not tell.
std::optional<uint64_t> SsdBlocksWritten(const std::string& admin) {
  const absl::StatusOr<v1::GetStatusResponse> status = AdminClient(admin).GetStatus();
  if (!status.ok() || !status->has_ssd()) return std::nullopt;
  uint64_t blocks = status->ssd().carried_blocks();
  for (const v1::TierStatus& tier : status->tiers()) {
    if (tier.tier() == v1::TIER_SSD) blocks += tier.demotions();
  }
  return blocks;
}

absl::Status RunReplay(const ReplayFlags& flags, Output& output) {
  ReplayOptions options = flags.replay;
  KVTIER_ASSIGN_OR_RETURN(options.block_bytes, ParseBytes(flags.block_bytes));
  options.full_only = flags.convention == "full";
  options.lease = std::chrono::milliseconds(flags.lease_ms);
  KVTIER_ASSIGN_OR_RETURN(const std::unique_ptr<TraceSource> source, OpenSource(flags));
  const std::string admin = AdminAddress(flags);
  const std::optional<uint64_t> before = SsdBlocksWritten(admin);
  KVTIER_ASSIGN_OR_RETURN(
      const ReplayReport report,
      Replay(options, *source, [&](const std::string& line) { output.Progress(line); }));
  std::optional<double> ssd_writes;
  if (report.ssd_tier) {
    const std::optional<uint64_t> after = SsdBlocksWritten(admin);
    if (before && after && *after >= *before) {
      ssd_writes = static_cast<double>(*after - *before);
    } else {
      output.Progress(
          "replay: SSD writes are unknown, no answer, or a restarted daemon, at --admin '" + admin +
          "'");
    }
  }
  output.Print(ReplayJson(options, report, ssd_writes), ReplayText(options, report, ssd_writes));
  return CheckReplay(report);
}

void AddTraceOptions(CLI::App* command, ReplayFlags* flags) {
  auto* trace = command->add_option("--trace", flags->trace,
                                    "Requests in Mooncake's format, .jsonl or .jsonl.zst; without "
                                    "it, made-up chats in several turns");
  command
      ->add_flag("--skip-bad-lines", flags->skip_bad_lines,
                 "Count lines that are no requests and go on")
      ->needs(trace);
  command->add_option("--requests", flags->generator_requests, "Made-up requests")
      ->capture_default_str()
      ->excludes(trace);
  command->add_option("--seed", flags->seed, "Of the made-up requests")
      ->capture_default_str()
      ->excludes(trace);
  command->add_option("--limit", flags->replay.limit, "Stop after so many requests (0: at the end)")
      ->capture_default_str();
  command
      ->add_option("--convention", flags->convention,
                   "all: every id of the trace is a block; full: an id that covers a partial "
                   "block is dropped")
      ->check(CLI::IsMember({"all", "full"}))
      ->capture_default_str();
  command->add_option("--block-tokens", flags->replay.block_tokens, "Tokens per id of the trace")
      ->capture_default_str();
}

}  // namespace

void AddReplayCommand(CLI::App& parent, Invocation* invocation) {
  CLI::App* command = AddCommand(
      parent, "replay", "Replay a request trace against a running kvtierd and check every byte",
      "kvtier replay --server unix:./kvtier-data/kvtier.sock --trace chat.jsonl.zst "
      "--block-bytes 64KiB --json",
      invocation);
  command->footer(
      "Each request looks its prompt up, fetches what is there, checks every byte of it and stores "
      "the\n"
      "rest. The command fails when a byte was wrong or a block that was found could not be "
      "fetched.\n" +
      command->get_footer());
  auto flags = std::make_shared<ReplayFlags>();
  ReplayOptions& replay = flags->replay;
  replay.server = DefaultServerAddress();
  command
      ->add_option("--server", replay.server,
                   "Address of kvtierd, unix:PATH or HOST:PORT; also by KVTIER_SERVER")
      ->capture_default_str();
  AddTraceOptions(command, flags.get());
  command
      ->add_option("--block-bytes", flags->block_bytes,
                   "Payload of one block, 32 bytes to 64MiB; real blocks are larger than most "
                   "machines' memory, so scale them down")
      ->required();
  command->add_option("--clients", replay.clients, "Requests in flight, handed out in order")
      ->capture_default_str();
  command->add_option("--speed", replay.speed, "Times the recorded pace; 0: as fast as possible")
      ->capture_default_str();
  command->add_option("--lease-ms", flags->lease_ms, "Lease that a request's Lookup takes")
      ->check(CLI::Range(1, 600000))
      ->capture_default_str();
  command
      ->add_option("--tenant", replay.tenant,
                   "Namespace; a second run in the same one hits what the first stored")
      ->capture_default_str();
  command
      ->add_option("--admin", flags->admin,
                   "Operators' API, asked for the SSD tier's writes; without it admin.sock beside "
                   "the data socket")
      ->envname("KVTIER_ADMIN");
  command->callback([flags, invocation] {
    invocation->run = [flags](Output& output) { return RunReplay(*flags, output); };
  });
}

}  // namespace kvtier::cli
