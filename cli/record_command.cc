// kvtier record: has a running daemon write its own traffic as a trace.
#include "cli/admin_commands.h"
#include "cli/admin_json.h"
#include "common/bytes.h"

namespace kvtier::cli {
namespace {

struct RecordFlags {
  std::string max_file_bytes = "256MiB";
  uint32_t max_files = 4;
};

void PrintRecording(const v1::RecordingStatus& recording, Output& output) {
  output.Print(RecordingJson(recording), RecordingText(recording));
}

absl::Status RunStart(const RecordFlags& flags, AdminClient& client, Output& output) {
  v1::StartRecordingRequest request;
  KVTIER_ASSIGN_OR_RETURN(const uint64_t bytes, ParseBytes("max-file-bytes", flags.max_file_bytes));
  // On the wire 0 stands for the default.
  if (bytes == 0 || flags.max_files == 0) {
    return absl::InvalidArgumentError(absl::StrCat("max-file-bytes is ", bytes, " and max-files ",
                                                   flags.max_files, ", the least are 64KiB and 1"));
  }
  request.set_max_file_bytes(bytes);
  request.set_max_files(flags.max_files);
  KVTIER_ASSIGN_OR_RETURN(const v1::StartRecordingResponse reply, client.StartRecording(request));
  PrintRecording(reply.recording(), output);
  return absl::OkStatus();
}

absl::Status RunStop(AdminClient& client, Output& output) {
  KVTIER_ASSIGN_OR_RETURN(const v1::StopRecordingResponse reply, client.StopRecording());
  PrintRecording(reply.recording(), output);
  return absl::OkStatus();
}

absl::Status RunRecordingStatus(AdminClient& client, Output& output) {
  KVTIER_ASSIGN_OR_RETURN(const v1::GetStatusResponse status, client.GetStatus());
  PrintRecording(status.recording(), output);
  return absl::OkStatus();
}

}  // namespace

void AddRecordCommand(CLI::App& parent, Invocation* invocation) {
  CLI::App* record = parent.add_subcommand(
      "record", "Have a running kvtierd write its own traffic as a trace, for simulate and replay");
  record->require_subcommand(1);
  record->footer(
      "The files hold times, lengths and which prompts share a prefix; no tokens, names or salts.\n"
      "Example:\n  kvtier record start\n  kvtier record stop\n"
      "  kvtier simulate --trace kvtier-data/recordings/recording-000001-000001.jsonl \\\n"
      "    --block-tokens 16 --capacity 1%,5%,10%\n");
  auto flags = std::make_shared<RecordFlags>();
  CLI::App* start = AddAdminCommand(
      *record, "start", "Begin a recording", "kvtier record start", invocation,
      [flags](AdminClient& client, Output& output) { return RunStart(*flags, client, output); });
  start
      ->add_option("--max-file-bytes", flags->max_file_bytes,
                   "Size at which the next file begins, 64KiB to 1TiB")
      ->capture_default_str();
  start
      ->add_option("--max-files", flags->max_files,
                   "Files kept, those of earlier recordings included; the oldest are removed")
      ->capture_default_str();
  AddAdminCommand(*record, "stop", "End it once what was asked so far is written",
                  "kvtier record stop", invocation, RunStop);
  AddAdminCommand(*record, "status", "What the recording, or the last one, has written so far",
                  "kvtier record status --json", invocation, RunRecordingStatus);
}

}  // namespace kvtier::cli
