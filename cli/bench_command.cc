// kvtier bench: figures of this machine, each beside its limit.
#include <memory>

#include "cli/bench_load.h"
#include "cli/bench_lookup.h"
#include "cli/bench_report.h"
#include "cli/bench_setup.h"
#include "cli/bench_shared.h"
#include "cli/bench_ssd.h"
#include "cli/bench_transfer.h"
#include "cli/commands.h"

namespace kvtier::cli {
namespace {

using BenchFunction = std::function<absl::Status(BenchSetup&, BenchReport*)>;

absl::Status RunBench(const std::string& name, const BenchOptions& options, Output& output,
                      const BenchFunction& bench) {
  BenchReport report(name);
  KVTIER_ASSIGN_OR_RETURN(const std::unique_ptr<BenchSetup> setup,
                          BenchSetup::Start(options, output));
  // A run with one failed operation prints no figure.
  KVTIER_RETURN_IF_ERROR(bench(*setup, &report));
  KVTIER_RETURN_IF_ERROR(setup->Stop());
  output.Print(report.ToJson(), report.ToText());
  return report.Check();
}

absl::Status LookupAndIndex(BenchSetup& setup, BenchReport* report) {
  KVTIER_RETURN_IF_ERROR(BenchLookup(setup, report));
  return BenchIndex(setup.options().index_blocks, setup.output(), report);
}

// A daemon of somebody else's is not asked to push blocks out of its RAM.
absl::Status AllFetches(BenchSetup& setup, BenchReport* report) {
  KVTIER_RETURN_IF_ERROR(BenchFetch(setup, report));
  KVTIER_RETURN_IF_ERROR(BenchFetchShared(setup, report));
  return setup.options().server.empty() ? BenchFetchSsd(setup, report) : absl::OkStatus();
}

absl::Status AllStores(BenchSetup& setup, BenchReport* report) {
  KVTIER_RETURN_IF_ERROR(BenchStore(setup, report));
  KVTIER_RETURN_IF_ERROR(BenchStoreShared(setup, report));
  return setup.options().server.empty() ? BenchStoreSsd(setup, report) : absl::OkStatus();
}

CLI::App* AddBench(CLI::App& bench, const std::string& name, const std::string& summary,
                   const std::shared_ptr<BenchOptions>& options, const BenchFunction& function,
                   Invocation* invocation) {
  CLI::App* command =
      AddCommand(bench, name, summary, "kvtier bench " + name + " --json", invocation);
  command->add_option(
      "--server", options->server,
      "A running kvtierd on this host, unix:PATH or HOST:PORT; without it a private "
      "one is started");
  command->add_option("--rounds", options->rounds, "Rounds, of which the median is printed")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->callback([name, options, function, invocation] {
    invocation->run = [name, options, function](Output& output) {
      return RunBench(name, *options, output, function);
    };
  });
  return command;
}

void AddTransferOptions(CLI::App* command, BenchOptions* options) {
  command->add_option("--clients", options->clients, "Clients of the rows with several")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  command
      ->add_option(
          "--dir", options->dir,
          "Directory on the disk that the SSD rows measure; they need 6 GiB there, and are "
          "left out with --server")
      ->check(CLI::ExistingDirectory)
      ->capture_default_str();
}

// The process that a benchmark starts to compare with; not for people.
void AddCeilingServer(CLI::App& parent, Invocation* invocation) {
  CLI::App* command = parent.add_subcommand(kCeilingServerCommand)->group("");
  auto address = std::make_shared<std::string>();
  command->add_option("--address", *address)->required();
  command->callback([address, invocation] {
    invocation->run = [address](Output&) { return bench::RunCeilingServer(*address); };
  });
}

}  // namespace

void AddBenchCommand(CLI::App& parent, Invocation* invocation) {
  CLI::App* bench = parent.add_subcommand("bench",
                                          "Measures this machine, each figure beside its "
                                          "limit");
  bench->require_subcommand(1);
  bench->footer("Example:\n  kvtier bench fetch");
  auto options = std::make_shared<BenchOptions>();
  CLI::App* lookup = AddBench(*bench, "lookup", "Lookup beside a bare gRPC call of the same bytes",
                              options, LookupAndIndex, invocation);
  lookup
      ->add_option("--index-blocks", options->index_blocks,
                   "Blocks of the index whose memory is measured")
      ->check(CLI::Range(uint64_t{1}, uint64_t{100'000'000}))
      ->capture_default_str();
  AddTransferOptions(
      AddBench(*bench, "store", "Store beside a bare gRPC stream, or a copy, of the same bytes",
               options, AllStores, invocation),
      options.get());
  AddTransferOptions(
      AddBench(*bench, "fetch", "Fetch beside a bare gRPC stream, or a copy, of the same bytes",
               options, AllFetches, invocation),
      options.get());
  AddBenchLoadCommand(*bench, invocation);
  AddCeilingServer(parent, invocation);
}

}  // namespace kvtier::cli
