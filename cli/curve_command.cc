// kvtier curve: what other tier sizes would find, as a running kvtierd estimates it.
#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
#include "cli/admin_commands.h"
#include "cli/admin_json.h"
#include "common/bytes.h"

namespace kvtier::cli {
namespace {

constexpr uint64_t kFewReferences = 1000;
constexpr int kBarLength = 50;  // of a ratio of 1

struct CurveFlags {
  std::string model;
  bool since_start = false;
};

double MeasuredRatio(const v1::GetHitCurveResponse& curve) {
  if (curve.lookup_blocks() == 0) return 0;
  return static_cast<double>(curve.hit_blocks()) / static_cast<double>(curve.lookup_blocks());
}

Json CurveJson(const v1::GetHitCurveResponse& curve) {
  Json tiers = Json::array();
  for (const v1::TierCurve& tier : curve.tiers()) {
    Json points = Json::array();
    for (const v1::CurvePoint& point : tier.points()) {
      points.push_back({{"scale", point.scale()},
                        {"capacity_bytes", point.capacity_bytes()},
                        {"hit_ratio", point.hit_ratio()}});
    }
    tiers.push_back({{"tier", TierName(tier.tier())},
                     {"capacity_bytes", tier.capacity_bytes()},
                     {"points", points}});
  }
  return {{"lookups", curve.lookups()},
          {"lookup_blocks", curve.lookup_blocks()},
          {"hit_blocks", curve.hit_blocks()},
          {"hit_ratio", MeasuredRatio(curve)},
          {"sampled_references", curve.sampled_references()},
          {"sampling_rate", curve.sampling_rate()},
          {"window_lookups", curve.window_lookups()},
          {"tiers", tiers}};
}

std::string TierText(const v1::TierCurve& tier) {
  Table table;
  table.Row({"size", "capacity", "hit ratio"});
  for (const v1::CurvePoint& point : tier.points()) {
    const auto bar = static_cast<size_t>(std::clamp(point.hit_ratio(), 0., 1.) * kBarLength + 0.5);
    table.Row({absl::StrCat(Fixed(point.scale(), 2), "x"), FormatBytes(point.capacity_bytes()),
               Fixed(point.hit_ratio(), 3),
               absl::StrCat("|", std::string(bar, '#'), std::string(kBarLength - bar, ' '), "|")});
  }
  const bool all = tier.tier() == v1::TIER_SSD;
  return absl::StrCat("\n", TierName(tier.tier()), ", now ", FormatBytes(tier.capacity_bytes()),
                      all ? ": hits in all tiers" : ": hits in this tier", "\n", table.ToString());
}

std::string CurveText(const v1::GetHitCurveResponse& curve) {
  if (curve.lookup_blocks() == 0) return "no lookups yet\n";
  std::string text =
      absl::StrCat("Of ", WithCommas(curve.lookup_blocks()), " blocks in ",
                   WithCommas(curve.lookups()), " lookups ", Fixed(MeasuredRatio(curve), 3),
                   " were found. Estimated from ", WithCommas(curve.sampled_references()),
                   " references, one block in ", Fixed(1 / curve.sampling_rate(), 0), ":\n");
  if (curve.sampled_references() < kFewReferences) {
    absl::StrAppend(&text, "so few that this is a guess; come back after more traffic.\n");
  }
  for (const v1::TierCurve& tier : curve.tiers()) absl::StrAppend(&text, TierText(tier));
  return text;
}

absl::Status RunCurve(const CurveFlags& flags, AdminClient& client, Output& output) {
  v1::GetHitCurveRequest request;
  if (!flags.model.empty()) {
    KVTIER_ASSIGN_OR_RETURN(*request.mutable_model_id(), ParseModelId(flags.model));
  }
  request.set_since_start(flags.since_start);
  KVTIER_ASSIGN_OR_RETURN(const v1::GetHitCurveResponse curve, client.GetHitCurve(request));
  output.Print(CurveJson(curve), CurveText(curve));
  return absl::OkStatus();
}

}  // namespace

void AddCurveCommand(CLI::App& parent, Invocation* invocation) {
  auto flags = std::make_shared<CurveFlags>();
  CLI::App* command = AddAdminCommand(
      parent, "curve",
      "Hit ratio at other tier sizes, 0.25x to 16x, estimated from the traffic of a running "
      "kvtierd.\n"
      "RAM and GPU: the share of blocks looked up that a tier of that size has. SSD: the share "
      "that\n"
      "all tiers have, with RAM as it is. Over the last 32,768 lookups; see docs/OPERATIONS.md.",
      "kvtier curve\n  kvtier curve --since-start --json", invocation,
      [flags](AdminClient& client, Output& output) { return RunCurve(*flags, client, output); });
  command->add_option("--model", flags->model,
                      "Of this model alone: its id, from 'kvtier models'; default: all together");
  command->add_flag("--since-start", flags->since_start,
                    "Of all lookups since the daemon's start, not only the last 32,768");
}

}  // namespace kvtier::cli
