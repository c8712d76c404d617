#include "cli/bench_load.h"

#include <memory>
#include <utility>

#include "cli/bench_setup.h"
#include "cli/load.h"
#include "cli/load_client.h"
#include "cli/replay.h"
#include "cli/replay_payload.h"
#include "cli/trace_flags.h"
#include "common/bytes.h"

namespace kvtier::cli {
namespace {

struct LoadFlags {
  LoadOptions load;
  TraceFlags trace;
  std::string server;  // empty: a private kvtierd
  int clients = 4;
  double duration_s = 0;
  std::string mix = "lookup=60,fetch=20,store=20";
  std::string block_bytes = "64KiB";
};

constexpr double kLongestSeconds = 1e6;

absl::StatusOr<LoadOptions> ToOptions(const LoadFlags& flags) {
  LoadOptions options = flags.load;
  KVTIER_ASSIGN_OR_RETURN(options.mix, ParseLoadMix(flags.mix));
  if (!(flags.duration_s >= 0) || flags.duration_s > kLongestSeconds) {
    return absl::InvalidArgumentError(absl::StrCat("duration is ", flags.duration_s,
                                                   " s, the limits are 0 and ", kLongestSeconds));
  }
  options.duration = Duration(static_cast<int64_t>(flags.duration_s * 1e9));
  options.seed = flags.trace.generator.seed;
  return options;
}

// Made-up requests go on until the duration ends them.
absl::StatusOr<std::unique_ptr<TraceSource>> OpenRequests(const LoadFlags& flags,
                                                          const Output& output) {
  TraceFlags trace = flags.trace;
  if (flags.load.requests > 0 || flags.duration_s > 0) trace.generator.requests = UINT64_MAX;
  return OpenSource(trace, [&output](const std::string& line) { output.Progress(line); });
}

absl::StatusOr<std::unique_ptr<Client>> Connect(const std::string& address) {
  ClientOptions options;
  options.address = address;
  // What takes longer than an engine would wait is still a figure. No breaker, no second try: each
  // operation is one call.
  options.lookup_deadline = std::chrono::seconds(30);
  options.register_deadline = std::chrono::seconds(30);
  options.transfer_deadline = std::chrono::minutes(2);
  options.retries = 0;
  options.breaker.failures_to_open = 0;
  absl::StatusOr<std::unique_ptr<Client>> client = Client::Connect(options);
  if (client.ok()) return client;
  return Annotate(client.status(), absl::StrCat("cannot reach kvtierd at ", address));
}

absl::Status RunBenchLoad(const LoadFlags& flags, Output& output) {
  KVTIER_ASSIGN_OR_RETURN(const LoadOptions options, ToOptions(flags));
  LoadClientOptions client_options;
  KVTIER_ASSIGN_OR_RETURN(client_options.block_bytes, ParseBytes("block-bytes", flags.block_bytes));
  KVTIER_RETURN_IF_ERROR(CheckPayloadBytes(client_options.block_bytes));
  client_options.block_tokens = flags.trace.reader.block_tokens;
  client_options.full_only = flags.trace.full_only();
  client_options.name = FreshNamespace();
  KVTIER_ASSIGN_OR_RETURN(const std::unique_ptr<TraceSource> trace, OpenRequests(flags, output));
  std::unique_ptr<PrivateDaemon> daemon;
  std::string address = flags.server;
  if (address.empty()) {
    KVTIER_ASSIGN_OR_RETURN(daemon, PrivateDaemon::Start(output));
    address = daemon->address();
  }
  KVTIER_ASSIGN_OR_RETURN(const std::unique_ptr<Client> client, Connect(address));
  KVTIER_ASSIGN_OR_RETURN(const RegisteredModel model,
                          client->RegisterModel(LoadModel(client_options)));
  std::vector<std::unique_ptr<LoadTarget>> targets;
  for (int i = 0; i < flags.clients; ++i) {
    targets.push_back(MakeLoadClient(client_options, client.get(), model));
  }
  KVTIER_ASSIGN_OR_RETURN(const LoadReport report,
                          RunLoad(options, *trace, targets, *MakePacer(),
                                  [&output](const std::string& line) { output.Progress(line); }));
  output.Print(LoadJson(options, report,
                        {{"benchmark", "load"},
                         {"clients", flags.clients},
                         {"mix", flags.mix},
                         {"block_bytes", client_options.block_bytes},
                         {"block_tokens", client_options.block_tokens},
                         {"convention", flags.trace.convention}}),
               LoadText(options, report));
  KVTIER_RETURN_IF_ERROR(CheckLoad(report));
  return daemon == nullptr ? absl::OkStatus() : daemon->Stop();
}

void AddLoadOptions(CLI::App* command, LoadFlags* flags) {
  command->add_option("--server", flags->server,
                      "A running kvtierd, unix:PATH or HOST:PORT; without it a private one with 1 "
                      "GiB of RAM is started");
  command->add_option("--clients", flags->clients, "Requests in flight at most")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  command
      ->add_option("--rate", flags->load.rate,
                   "Open loop: so many requests/s of all clients together, whatever the answers "
                   "take (0: closed loop)")
      ->capture_default_str();
  command
      ->add_option("--duration", flags->duration_s,
                   "Seconds. In an open loop: of requests that are due; all of them are sent")
      ->capture_default_str();
  command
      ->add_option("--mix", flags->mix,
                   "How often each operation comes; what is left out does not come")
      ->capture_default_str();
  command->add_option("--block-bytes", flags->block_bytes, "Payload of one block, 32 to 64MiB")
      ->capture_default_str();
  AddTraceFlags(command, &flags->trace);
  // Here it is the number of requests, wherever they come from.
  command->remove_option(command->get_option("--requests"));
  command
      ->add_option("--requests", flags->load.requests,
                   "Stop after so many (0: at the end of the trace or of the duration; without "
                   "either, 2000)")
      ->capture_default_str();
}

}  // namespace

void AddBenchLoadCommand(CLI::App& bench, Invocation* invocation) {
  CLI::App* command =
      AddCommand(bench, "load",
                 "Latency under load: lookups, fetches and stores of a trace, at a rate or as fast "
                 "as they go",
                 "kvtier bench load --rate 200 --duration 10 --json", invocation);
  command->footer(
      "Each request is one operation, drawn by --mix. Payload is checked on every fetch; a wrong "
      "byte\n"
      "or a failed operation fails the command. With --rate the latency of a request counts from "
      "when\n"
      "it was due, so a pause shows in all requests that it kept waiting. 'sent late' says how "
      "much of\n"
      "that was waiting for a free client. Latencies are of operations that succeeded; the run "
      "ends\n"
      "when none has for 10 s.\n" +
      command->get_footer());
  auto flags = std::make_shared<LoadFlags>();
  AddLoadOptions(command, flags.get());
  command->callback([flags, invocation] {
    invocation->run = [flags](Output& output) { return RunBenchLoad(*flags, output); };
  });
}

}  // namespace kvtier::cli
