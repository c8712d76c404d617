#include "cli/admin_commands.h"

#include <utility>

namespace kvtier::cli {

CLI::App* AddAdminCommand(CLI::App& parent, const std::string& name, const std::string& summary,
                          const std::string& example, Invocation* invocation,
                          std::function<absl::Status(AdminClient&, Output&)> run) {
  CLI::App* command = AddCommand(parent, name, summary, example, invocation);
  auto address = std::make_shared<std::string>(DefaultAdminAddress());
  command
      ->add_option("--admin", *address,
                   "Address of kvtierd's operators' API, unix:PATH or HOST:PORT; also by "
                   "KVTIER_ADMIN")
      ->capture_default_str();
  command->callback([address, invocation, run = std::move(run)] {
    invocation->run = [address, run](Output& output) {
      AdminClient client(*address);
      return run(client, output);
    };
  });
  return command;
}

}  // namespace kvtier::cli
