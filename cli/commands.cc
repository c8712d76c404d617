#include "cli/commands.h"

namespace kvtier::cli {

CLI::App* AddCommand(CLI::App& parent, const std::string& name, const std::string& summary,
                     const std::string& example, Invocation* invocation) {
  CLI::App* command = parent.add_subcommand(name, summary);
  command->add_flag("--json", invocation->json, "Print one JSON document instead of a table");
  command->footer("Example:\n  " + example + "\n");
  return command;
}

}  // namespace kvtier::cli
