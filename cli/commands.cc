#include "cli/commands.h"

namespace kvtier::cli {

CLI::App* AddCommand(CLI::App& parent, const std::string& name, const std::string& summary,
                     const std::string& example, Invocation* invocation) {
  CLI::App* command = parent.add_subcommand(name, summary);
  command->add_flag("--json", invocation->json, "Print one JSON document instead of a table");
  command->footer("Example:\n  " + example + "\n");
  return command;
}

std::string CommandLine(std::span<const char* const> arguments) {
  std::string out;
  for (const std::string argument : arguments) {
    constexpr std::string_view kPlain =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:,=%+@";
    const bool plain = !argument.empty() && argument.find_first_not_of(kPlain) == std::string::npos;
    if (!out.empty()) out += ' ';
    if (!plain) out += '\'';
    for (const char c : argument) out += c == '\'' ? "'\\''" : std::string(1, c);
    if (!plain) out += '\'';
  }
  return out;
}

}  // namespace kvtier::cli
