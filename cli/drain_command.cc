// kvtier drain: makes the daemon refuse new calls, ahead of stopping it.
#include "cli/admin_commands.h"

namespace kvtier::cli {
namespace {

absl::Status RunDrain(AdminClient& client, Output& output) {
  KVTIER_RETURN_IF_ERROR(client.Drain());
  output.Print({{"draining", true}}, "draining: new calls are refused, those in flight go on\n");
  return absl::OkStatus();
}

}  // namespace

void AddDrainCommand(CLI::App& parent, Invocation* invocation) {
  AddAdminCommand(parent, "drain", "Refuse new calls and let those in flight finish",
                  "kvtier drain", invocation, RunDrain);
}

}  // namespace kvtier::cli
