// kvtier replay: replays a trace against a running daemon.
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "cli/admin_client.h"
#include "cli/commands.h"
#include "cli/replay.h"
#include "cli/report_flags.h"
#include "cli/trace_flags.h"
#include "common/bytes.h"

namespace kvtier::cli {
namespace {

struct ReplayFlags {
  ReplayOptions replay;
  ReportFlags report;
  TraceFlags trace;
  std::string block_bytes;
  uint64_t lease_ms = 30000;
  std::string admin;  // empty: beside the data socket
};

std::string DefaultServerAddress() {
  const char* address = std::getenv("KVTIER_SERVER");
  return address != nullptr && *address != '\0' ? address : "unix:./kvtier-data/kvtier.sock";
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
std::optional<uint64_t> SsdBlocksWritten(AdminClient& admin) {
  const absl::StatusOr<v1::GetStatusResponse> status = admin.GetStatus();
  if (!status.ok() || !status->has_ssd()) return std::nullopt;
  uint64_t blocks = status->ssd().carried_blocks();
  for (const v1::TierStatus& tier : status->tiers()) {
    if (tier.tier() == v1::TIER_SSD) blocks += tier.demotions();
  }
  return blocks;
}

// Empty when it is not known, as of a daemon that restarted and counts anew.
std::optional<uint64_t> WrittenSince(uint64_t before, std::optional<uint64_t> now) {
  if (!now || *now < before) return std::nullopt;
  return *now - before;
}

absl::Status RunReplay(const ReplayFlags& flags, const std::string& command_line, Output& output) {
  ReplayOptions options = flags.replay;
  options.trace = flags.trace.path.empty() ? "made-up chats" : flags.trace.path;
  KVTIER_ASSIGN_OR_RETURN(options.block_bytes, ParseBytes("block-bytes", flags.block_bytes));
  options.full_only = flags.trace.full_only();
  options.block_tokens = flags.trace.reader.block_tokens;
  options.lease = std::chrono::milliseconds(flags.lease_ms);
  const auto progress = [&output](const std::string& line) { output.Progress(line); };
  KVTIER_ASSIGN_OR_RETURN(const std::unique_ptr<TraceSource> source,
                          OpenSource(flags.trace, progress));
  KVTIER_RETURN_IF_ERROR(CheckReportFlags(flags.report));
  AdminClient admin(AdminAddress(flags));
  const std::optional<uint64_t> before = SsdBlocksWritten(admin);
  if (before) options.ssd_written = [&] { return WrittenSince(*before, SsdBlocksWritten(admin)); };
  KVTIER_ASSIGN_OR_RETURN(ReplayReport report, Replay(options, *source, progress));
  std::optional<uint64_t> ssd_writes;
  if (report.ssd_tier) {
    if (before) ssd_writes = WrittenSince(*before, SsdBlocksWritten(admin));
    if (!report.slices.empty()) report.slices.back().ssd_written = ssd_writes;
    if (!ssd_writes) {
      output.Progress(
          "replay: SSD writes are unknown, no answer, or a restarted daemon, at --admin '" +
          AdminAddress(flags) + "'");
    }
  }
  Json document = ReplayJson(options, report, ssd_writes);
  document["command"] = command_line;
  output.Print(document, ReplayText(options, report, ssd_writes));
  KVTIER_RETURN_IF_ERROR(WriteReports(flags.report, document, output));  // of a failed one, too
  return CheckReplay(report);
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
  AddTraceFlags(command, &flags->trace);
  command->add_option("--limit", replay.limit, "Stop after so many requests (0: at the end)")
      ->capture_default_str();
  command
      ->add_option("--block-bytes", flags->block_bytes,
                   "Payload of one block, 32 bytes to 64MiB; real blocks are larger than most "
                   "machines' memory, so scale them down")
      ->required();
  command->add_option("--clients", replay.clients, "Requests in flight, handed out in order")
      ->capture_default_str();
  command
      ->add_option(
          "--speed", replay.speed,
          "Times the recorded pace, counted from the first request; 0: as fast as possible")
      ->capture_default_str();
  command->add_option("--lease-ms", flags->lease_ms, "Lease that a request's Lookup takes")
      ->check(CLI::Range(1, 600000))
      ->capture_default_str();
  command
      ->add_option("--prefill-rate", replay.prefill_rate,
                   "Prompt tokens per second that the engine computes; told to kvtierd, which then "
                   "shows the time saved (0: not told)")
      ->capture_default_str();
  command
      ->add_option("--tenant", replay.tenant,
                   "Namespace; a second run in the same one hits what the first stored")
      ->capture_default_str();
  command
      ->add_option("--admin", flags->admin,
                   "Operators' API, asked for the SSD tier's writes (others' traffic counts too); "
                   "without it admin.sock beside "
                   "the data socket")
      ->envname("KVTIER_ADMIN");
  AddReportFlags(command, &flags->report);
  command->callback([flags, invocation] {
    invocation->run = [flags, line = invocation->command_line](Output& output) {
      return RunReplay(*flags, line, output);
    };
  });
}

}  // namespace kvtier::cli
