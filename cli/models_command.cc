// kvtier models: the models that engines have registered.
#include "cli/admin_commands.h"
#include "cli/admin_json.h"

namespace kvtier::cli {
namespace {

absl::Status RunModels(AdminClient& client, Output& output) {
  KVTIER_ASSIGN_OR_RETURN(const v1::ListModelsResponse models, client.ListModels());
  output.Print(ModelsJson(models), ModelsText(models));
  return absl::OkStatus();
}

}  // namespace

void AddModelsCommand(CLI::App& parent, Invocation* invocation) {
  AddAdminCommand(parent, "models", "Registered models, their blocks and the room there is",
                  "kvtier models", invocation, RunModels);
}

}  // namespace kvtier::cli
