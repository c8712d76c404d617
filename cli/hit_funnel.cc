#include "cli/hit_funnel.h"

#include <optional>

#include "cli/admin_json.h"
#include "common/bytes.h"

namespace kvtier::cli {
namespace {

struct Funnel {
  uint64_t fetched = 0;  // blocks, all tiers
  uint64_t served = 0;   // bytes, all tiers
  uint64_t served_from_ssd = 0;
  double saved_seconds = 0;
};

Funnel Sum(const v1::GetStatusResponse& status) {
  Funnel out;
  for (const v1::TierStatus& tier : status.tiers()) {
    out.fetched += tier.fetched_blocks();
    out.served += tier.fetched_bytes();
    if (tier.tier() == v1::TIER_SSD) out.served_from_ssd = tier.fetched_bytes();
  }
  out.saved_seconds = status.counters().prefill_seconds() - status.counters().lease_fetch_seconds();
  return out;
}

// Empty while nothing was served, or without an SSD tier.
std::optional<double> WrittenPer(const v1::GetStatusResponse& status, uint64_t served) {
  if (!status.has_ssd() || served == 0) return std::nullopt;
  return static_cast<double>(status.ssd().file_bytes_written()) / static_cast<double>(served);
}

Json OrNull(const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); }

// "36.6 %"
std::string Percent(uint64_t blocks, uint64_t of) {
  if (of == 0) return "";
  return Fixed(100 * static_cast<double>(blocks) / static_cast<double>(of), 1) + " %";
}

}  // namespace

Json FunnelJson(const v1::GetStatusResponse& status) {
  const v1::CacheCounters& counters = status.counters();
  const Funnel funnel = Sum(status);
  Json found = Json::object(), fetched = Json::object();
  for (const v1::TierStatus& tier : status.tiers()) {
    found[TierName(tier.tier())] = tier.hits();
    fetched[TierName(tier.tier())] = tier.fetched_blocks();
  }
  return {
      {"looked_up_blocks", counters.lookup_blocks()},
      {"found_blocks", counters.hit_blocks()},
      {"found_by_tier", found},
      {"fetched_blocks", funnel.fetched},
      {"fetched_by_tier", fetched},
      {"verified_blocks", counters.verified_blocks()},
      {"prefill_seconds", counters.prefill_seconds()},
      {"fetch_seconds", counters.lease_fetch_seconds()},
      {"saved_seconds", funnel.saved_seconds},
      {"served_bytes", funnel.served},
      {"ssd_written_per_byte_served", OrNull(WrittenPer(status, funnel.served))},
      {"ssd_written_per_byte_served_from_ssd", OrNull(WrittenPer(status, funnel.served_from_ssd))}};
}

std::string FunnelText(const v1::GetStatusResponse& status) {
  const v1::CacheCounters& counters = status.counters();
  const Funnel funnel = Sum(status);
  const uint64_t all = counters.lookup_blocks();
  Table table;
  const auto row = [&](const std::string& name, uint64_t blocks) {
    table.Row({name, WithCommas(blocks), Percent(blocks, all)});
  };
  table.Row({"hit funnel", "blocks", "of looked up"});
  row("looked up", all);
  row("found", counters.hit_blocks());
  for (const v1::TierStatus& tier : status.tiers()) {
    if (tier.capacity_bytes() > 0) row("  in " + TierName(tier.tier()), tier.hits());
  }
  row("fetched", funnel.fetched);
  for (const v1::TierStatus& tier : status.tiers()) {
    if (tier.capacity_bytes() > 0) row("  from " + TierName(tier.tier()), tier.fetched_blocks());
  }
  row("verified by clients", counters.verified_blocks());
  std::string text = table.ToString();
  if (counters.prefill_seconds() > 0) {
    absl::StrAppend(&text, "prefill time saved: ", Fixed(funnel.saved_seconds, 2), " s (",
                    Fixed(counters.prefill_seconds(), 2), " s to compute - ",
                    Fixed(counters.lease_fetch_seconds(), 2), " s to fetch)\n");
  } else {
    absl::StrAppend(&text,
                    "prefill time saved: not known, no engine told its rate (see "
                    "prefill-tokens-per-second)\n");
  }
  if (const auto written = WrittenPer(status, funnel.served)) {
    absl::StrAppend(&text, "SSD bytes written per byte served: ", Fixed(*written, 3));
    const auto from_ssd = WrittenPer(status, funnel.served_from_ssd);
    if (from_ssd) absl::StrAppend(&text, "; per byte served from SSD: ", Fixed(*from_ssd, 3));
    text += "\n";
  }
  return text;
}

}  // namespace kvtier::cli
