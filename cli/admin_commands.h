// What the commands that talk to the operators' API share.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "cli/admin_client.h"
#include "cli/commands.h"

namespace kvtier::cli {

// As AddCommand, with --admin; `run` gets a client for its address.
CLI::App* AddAdminCommand(CLI::App& parent, const std::string& name, const std::string& summary,
                          const std::string& example, Invocation* invocation,
                          std::function<absl::Status(AdminClient&, Output&)> run);

}  // namespace kvtier::cli
