// kvtier reset: drops a model's blocks, or one namespace's of it.

#include "cli/admin_commands.h"
#include "cli/admin_json.h"
#include "cli/read_file.h"

namespace kvtier::cli {
namespace {

struct ResetOptions {
  std::string model;
  std::optional<std::string> tenant;
  std::optional<std::string> adapter;
  std::optional<std::string> salt_file;
};

absl::Status RunReset(const ResetOptions& options, AdminClient& client, Output& output) {
  v1::ResetRequest request;
  KVTIER_ASSIGN_OR_RETURN(const std::string model, ParseModelId(options.model));
  request.set_model_id(model);
  const bool whole_model = !options.tenant && !options.adapter && !options.salt_file;
  if (!whole_model) {
    v1::Namespace* name = request.mutable_namespace_();
    name->set_tenant(options.tenant.value_or(""));
    name->set_adapter(options.adapter.value_or(""));
    if (options.salt_file) {
      KVTIER_ASSIGN_OR_RETURN(const std::string salt, ReadFile(*options.salt_file));
      name->set_salt(salt);
    }
  }
  KVTIER_ASSIGN_OR_RETURN(const v1::ResetResponse reply, client.Reset(request));
  output.Print({{"model_id", options.model},
                {"scope", whole_model ? "model" : "namespace"},
                {"dropped_blocks", reply.dropped_blocks()}},
               absl::StrCat("dropped ", WithCommas(reply.dropped_blocks()), " blocks\n"));
  return absl::OkStatus();
}

}  // namespace

void AddResetCommand(CLI::App& parent, Invocation* invocation) {
  auto options = std::make_shared<ResetOptions>();
  CLI::App* command = AddAdminCommand(
      parent, "reset", "Drop a model's blocks from all tiers, or those of one namespace of it",
      "kvtier reset --model 0123456789abcdef0123456789abcdef --tenant acme", invocation,
      [options](AdminClient& client, Output& output) {
        return RunReset(*options, client, output);
      });
  command->add_option("--model", options->model, "The model's id, from 'kvtier models'")
      ->required();
  command->add_option("--tenant", options->tenant,
                      "With any of these three: only the namespace that they name together");
  command->add_option("--adapter", options->adapter, "Adapter of the namespace");
  command->add_option("--salt-file", options->salt_file,
                      "File that holds the namespace's salt, byte for byte");
}

}  // namespace kvtier::cli
