// kvtier status: what the daemon holds and does.
#include "cli/admin_commands.h"
#include "cli/admin_json.h"

namespace kvtier::cli {
namespace {

absl::Status RunStatus(AdminClient& client, Output& output) {
  KVTIER_ASSIGN_OR_RETURN(const v1::GetStatusResponse status, client.GetStatus());
  output.Print(StatusJson(status), StatusText(status));
  return absl::OkStatus();
}

}  // namespace

void AddStatusCommand(CLI::App& parent, Invocation* invocation) {
  AddAdminCommand(parent, "status", "Tiers, hits, memory and settings of a running kvtierd",
                  "kvtier status --json", invocation, RunStatus);
}

}  // namespace kvtier::cli
