// kvtier simulate: what a trace would hit in caches of given sizes.
#include <memory>

#include "cli/commands.h"
#include "cli/report_flags.h"
#include "cli/simulate/options.h"
#include "cli/simulate/simulation.h"
#include "cli/trace_flags.h"
#include "common/bytes.h"

namespace kvtier::cli {
namespace {

struct SimulateFlags {
  SimulateOptions simulate;
  ReportFlags report;
  std::vector<std::string> capacities;
  std::vector<std::string> tiers;
  std::vector<std::string> ssd_capacities;
  std::string block_bytes;
  std::string convention = "both";
};

absl::StatusOr<SimulateOptions> ToOptions(const SimulateFlags& flags) {
  SimulateOptions options = flags.simulate;
  for (const std::string& text : flags.capacities) {
    KVTIER_ASSIGN_OR_RETURN(const CapacitySpec capacity, ParseCapacity(text));
    options.capacities.push_back(capacity);
  }
  for (const std::string& text : flags.ssd_capacities) {
    const absl::StatusOr<CapacitySpec> capacity = ParseCapacity(text);
    KVTIER_RETURN_IF_ERROR(Annotate(capacity.status(), "ssd-capacity"));
    options.ssd_capacities.push_back(*capacity);
  }
  for (const std::string& text : flags.tiers) {
    KVTIER_ASSIGN_OR_RETURN(const TierMode mode, ParseTierMode(text));
    options.tiers.push_back(mode);
  }
  if (!flags.block_bytes.empty()) {
    KVTIER_ASSIGN_OR_RETURN(options.block_bytes, ParseBytes("block-bytes", flags.block_bytes));
  }
  if (flags.convention == "all") options.conventions = {Convention::kAll};
  if (flags.convention == "full") options.conventions = {Convention::kFull};
  return options;
}

absl::Status RunSimulate(const SimulateFlags& flags, const std::string& command_line,
                         Output& output) {
  KVTIER_ASSIGN_OR_RETURN(const SimulateOptions options, ToOptions(flags));
  KVTIER_RETURN_IF_ERROR(CheckReportFlags(flags.report));
  KVTIER_ASSIGN_OR_RETURN(
      const SimulationReport report,
      Simulate(options, [&output](std::string_view line) { output.Progress(line); }));
  Json document = SimulationJson(options, report);
  document["command"] = command_line;
  output.Print(document, SimulationText(options, report));
  return WriteReports(flags.report, document, output);
}

void AddTierFlags(CLI::App* command, SimulateFlags* flags) {
  auto* tiers = command->add_option(
      "--tiers", flags->tiers,
      "RAM (--capacity) over SSD, separated by commas: log, as kvtierd does it and by its own "
      "code; "
      "or block by block, exclusive (a block is in one tier), inclusive (what is stored is written "
      "to SSD at once), lazy (written when RAM drops it, kept when RAM has it again)");
  tiers->delimiter(',');
  auto* ssd = command->add_option("--ssd-capacity", flags->ssd_capacities,
                                  "SSD sizes, as --capacity; each is combined with each of those");
  ssd->delimiter(',')->needs(tiers);
  tiers->needs(ssd);
  command
      ->add_option(
          "--segment-blocks", flags->simulate.segment_blocks,
          "Of --tiers log: blocks per file on SSD (0: as kvtierd has them of 64 KiB, a 64th of "
          "the SSD, 1024 at most); up to 65536")
      ->capture_default_str()
      ->needs(tiers);
}

std::string PolicyHelp() {
  std::string out =
      "The trace's requests go through caches of the given sizes, in file order, from empty. A hit "
      "is a\nblock of the longest prefix that is there; the rest is stored. Policies:\n";
  for (const PolicyName& policy : PolicyNames()) {
    absl::StrAppend(&out, "  ", std::string(policy.name), std::string(10 - policy.name.size(), ' '),
                    std::string(policy.meaning), "\n");
  }
  return out;
}

}  // namespace

void AddSimulateCommand(CLI::App& parent, Invocation* invocation) {
  CLI::App* command = AddCommand(
      parent, "simulate", "Hit ratios of a request trace by cache size and policy",
      "kvtier simulate --trace chat.jsonl.zst --policy lru,min --capacity 1%,5%,10%", invocation);
  command->footer(PolicyHelp() + command->get_footer());
  auto flags = std::make_shared<SimulateFlags>();
  SimulateOptions& options = flags->simulate;
  AddTraceFileFlags(command, &options.trace, &options.reader)->required();
  command->add_option("--policy", options.policies, "Policies, separated by commas; listed below")
      ->delimiter(',')
      ->capture_default_str();
  command
      ->add_option("--capacity", flags->capacities,
                   "Cache sizes, separated by commas: blocks (1828), a share of the trace's "
                   "distinct blocks (5%), or bytes (64MiB, with --block-bytes)")
      ->delimiter(',');
  command->add_flag("--curve", options.curve,
                    "The exact hit ratio of lru at sizes from one block to all, from one pass");
  command->add_flag("--timing", options.timing,
                    "Time of each policy and size, beside a plain hash map's over the same blocks");
  AddTierFlags(command, flags.get());
  command->add_option("--block-bytes", flags->block_bytes, "Payload of one block");
  command
      ->add_option("--convention", flags->convention,
                   "all: every id of the trace is a block; full: an id that covers a partial "
                   "block is dropped; both: a simulation of each")
      ->check(CLI::IsMember({"all", "full", "both"}))
      ->capture_default_str();
  AddReportFlags(command, &flags->report);
  command->callback([flags, invocation] {
    invocation->run = [flags, line = invocation->command_line](Output& output) {
      return RunSimulate(*flags, line, output);
    };
  });
}

}  // namespace kvtier::cli
