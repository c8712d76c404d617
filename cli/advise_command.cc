// kvtier advise: what other tier sizes would do for the traffic of a running kvtierd.
#include <algorithm>
#include <cstdlib>
#include <memory>

#include "absl/strings/numbers.h"
#include "cli/admin_commands.h"
#include "cli/advice.h"

namespace kvtier::cli {
namespace {

constexpr double kMostPrefillRate = 1e9;
constexpr double kSecondsPerHour = 3600;

void ReadTier(const v1::TierStatus& status, AdviceInput::Tier* tier) {
  tier->on = status.capacity_bytes() > 0;
  tier->capacity_bytes = status.capacity_bytes();
  tier->bytes_per_second = status.measured_bytes_per_second();
  tier->first_byte_seconds = status.measured_first_byte_seconds();
}

// What kvtierd was told for engines that do not tell themselves.
double ConfiguredRate(const v1::GetStatusResponse& status) {
  double rate = 0;
  for (const v1::Setting& setting : status.settings()) {
    if (setting.name() != "prefill-tokens-per-second") continue;
    if (!absl::SimpleAtod(setting.value(), &rate)) return 0;
  }
  return rate;
}

void ReadStatus(const v1::GetStatusResponse& status, AdviceInput* input) {
  for (const v1::TierStatus& tier : status.tiers()) {
    if (tier.tier() == v1::TIER_RAM) ReadTier(tier, &input->ram);
    if (tier.tier() == v1::TIER_SSD) ReadTier(tier, &input->ssd);
  }
  if (status.uptime_seconds() > 0) {
    input->requests_per_hour = static_cast<double>(status.counters().lookups()) /
                               status.uptime_seconds() * kSecondsPerHour;
  }
  if (input->prefill_tokens_per_second == 0) {
    input->prefill_tokens_per_second = ConfiguredRate(status);
  }
}

// The mean over the blocks that all tiers hold; each model once while they hold none.
void ReadModels(const v1::ListModelsResponse& models, AdviceInput* input) {
  const auto held = [](const v1::ModelStatus& model) {
    uint64_t blocks = 0;
    for (const v1::TierUsage& usage : model.tiers()) blocks += usage.blocks();
    return blocks;
  };
  uint64_t all = 0;
  for (const v1::ModelStatus& model : models.models()) all += held(model);
  double weights = 0;
  for (const v1::ModelStatus& model : models.models()) {
    const double weight = all > 0 ? static_cast<double>(held(model)) : 1;
    weights += weight;
    input->block_tokens += weight * model.spec().block_tokens();
    input->block_bytes += weight * static_cast<double>(model.block_bytes());
  }
  if (weights == 0) return;
  input->block_tokens /= weights;
  input->block_bytes /= weights;
}

void ReadCurve(const v1::GetHitCurveResponse& curve, AdviceInput* input) {
  input->requests = curve.lookups();
  input->blocks = curve.lookup_blocks();
  input->hit_blocks = curve.hit_blocks();
  input->sampled_references = curve.sampled_references();
  for (const v1::TierCurve& tier : curve.tiers()) {
    if (tier.tier() != v1::TIER_RAM && tier.tier() != v1::TIER_SSD) continue;
    auto& points = (tier.tier() == v1::TIER_RAM ? input->ram : input->ssd).curve;
    for (const v1::CurvePoint& point : tier.points()) {
      points.push_back({point.capacity_bytes(), point.hit_ratio()});
    }
  }
}

absl::Status RunAdvise(double prefill_rate, AdminClient& client, Output& output) {
  if (!(prefill_rate >= 0 && prefill_rate <= kMostPrefillRate)) {
    return absl::InvalidArgumentError(
        absl::StrCat("prefill-rate is ", prefill_rate, ", the limits are 0 and 1e9"));
  }
  AdviceInput input;
  input.prefill_tokens_per_second = prefill_rate;
  KVTIER_ASSIGN_OR_RETURN(const v1::GetHitCurveResponse curve,
                          client.GetHitCurve(v1::GetHitCurveRequest()));
  KVTIER_ASSIGN_OR_RETURN(const v1::GetStatusResponse status, client.GetStatus());
  KVTIER_ASSIGN_OR_RETURN(const v1::ListModelsResponse models, client.ListModels());
  ReadStatus(status, &input);
  ReadModels(models, &input);
  ReadCurve(curve, &input);
  const Advice advice = Advise(input);
  output.Print(AdviceJson(advice), AdviceText(advice));
  return absl::OkStatus();
}

}  // namespace

void AddAdviseCommand(CLI::App& parent, Invocation* invocation) {
  auto rate = std::make_shared<double>(0);
  CLI::App* command = AddAdminCommand(
      parent, "advise", "What other tier sizes would find, and save, for the traffic there is",
      "kvtier advise --prefill-rate 8000", invocation,
      [rate](AdminClient& client, Output& output) { return RunAdvise(*rate, client, output); });
  command
      ->add_option("--prefill-rate", *rate,
                   "Prompt tokens per second that an engine computes; 0: what kvtierd's "
                   "prefill-tokens-per-second says")
      ->capture_default_str();
  command->footer(
      "Rests on the daemon's estimate of hit ratios (kvtier curve) and on what fetches took "
      "lately. "
      "Time\nsaved is the time to compute what is found, minus the time to fetch it.\n" +
      command->get_footer());
}

}  // namespace kvtier::cli
