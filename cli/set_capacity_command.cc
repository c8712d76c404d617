// kvtier set-capacity: resizes a tier of a running daemon.
#include "cli/admin_commands.h"
#include "cli/admin_json.h"
#include "common/bytes.h"

namespace kvtier::cli {
namespace {

struct SetCapacityOptions {
  std::string tier;
  std::string bytes;
};

absl::Status RunSetCapacity(const SetCapacityOptions& options, AdminClient& client,
                            Output& output) {
  v1::SetTierCapacityRequest request;
  KVTIER_ASSIGN_OR_RETURN(const v1::Tier tier, ParseTier(options.tier));
  KVTIER_ASSIGN_OR_RETURN(const uint64_t bytes, ParseBytes("bytes", options.bytes));
  request.set_tier(tier);
  request.set_capacity_bytes(bytes);
  KVTIER_ASSIGN_OR_RETURN(const v1::SetTierCapacityResponse reply, client.SetTierCapacity(request));
  Table table;
  table.Row({"capacity", FormatBytes(bytes)})
      .Row({"before", FormatBytes(reply.previous_bytes())})
      .Row({"evicted blocks", WithCommas(reply.evicted_blocks())})
      .Row({"memory taken now", FormatBytes(reply.backed_bytes())});
  output.Print({{"tier", options.tier},
                {"capacity_bytes", bytes},
                {"previous_bytes", reply.previous_bytes()},
                {"evicted_blocks", reply.evicted_blocks()},
                {"backed_bytes", reply.backed_bytes()}},
               table.ToString());
  return absl::OkStatus();
}

}  // namespace

void AddSetCapacityCommand(CLI::App& parent, Invocation* invocation) {
  auto options = std::make_shared<SetCapacityOptions>();
  CLI::App* command = AddAdminCommand(parent, "set-capacity",
                                      "Resize a tier while it serves; what still fits stays",
                                      "kvtier set-capacity --tier ram --bytes 2GiB", invocation,
                                      [options](AdminClient& client, Output& output) {
                                        return RunSetCapacity(*options, client, output);
                                      });
  command->add_option("--tier", options->tier, "gpu, ram or ssd")->required();
  command->add_option("--bytes", options->bytes, "New capacity, for instance 2GiB")->required();
}

}  // namespace kvtier::cli
