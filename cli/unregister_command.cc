// kvtier unregister: drops a model's blocks and forgets the model.
#include "cli/admin_commands.h"
#include "cli/admin_json.h"

namespace kvtier::cli {
namespace {

absl::Status RunUnregister(const std::string& model, AdminClient& client, Output& output) {
  v1::UnregisterModelRequest request;
  KVTIER_ASSIGN_OR_RETURN(const std::string id, ParseModelId(model));
  request.set_model_id(id);
  KVTIER_ASSIGN_OR_RETURN(const v1::UnregisterModelResponse reply, client.UnregisterModel(request));
  output.Print({{"model_id", model}, {"dropped_blocks", reply.dropped_blocks()}},
               absl::StrCat("dropped ", WithCommas(reply.dropped_blocks()), " blocks\n"));
  return absl::OkStatus();
}

}  // namespace

void AddUnregisterCommand(CLI::App& parent, Invocation* invocation) {
  auto model = std::make_shared<std::string>();
  CLI::App* command =
      AddAdminCommand(parent, "unregister", "Drop a model's blocks and forget the model",
                      "kvtier unregister --model 0123456789abcdef0123456789abcdef", invocation,
                      [model](AdminClient& client, Output& output) {
                        return RunUnregister(*model, client, output);
                      });
  command->add_option("--model", *model, "The model's id, from 'kvtier models'")->required();
}

}  // namespace kvtier::cli
