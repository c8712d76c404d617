#include "cli/advice.h"

#include <algorithm>
#include <cmath>

#include "common/bytes.h"
#include "common/status.h"

namespace kvtier::cli {
namespace {

using Point = AdviceInput::Point;

constexpr double kPerRequests = 1000;
// Between measured and estimated: more means that the cache is not what the curve assumes.
constexpr double kOffBy = 0.05;

std::string Points(double difference) {
  const std::string points = Fixed(std::abs(difference) * 100, 1);
  if (points == "0.0") return points;
  return (difference < 0 ? "-" : "+") + points;
}

std::string Percent(double ratio) { return Fixed(ratio * 100, 1) + " %"; }

std::string PerToken(double seconds) {
  return seconds < 1e-6 ? Fixed(seconds * 1e9, 1) + " ns" : Fixed(seconds * 1e6, 1) + " us";
}

std::string Rate(double tokens_per_second) {
  return WithCommas(static_cast<uint64_t>(std::llround(tokens_per_second))) + " tokens/s";
}

// --- Figures

double LoadSeconds(const AdviceInput::Tier& tier, double bytes) {
  return tier.first_byte_seconds + bytes / tier.bytes_per_second;
}

// Mean blocks that a request finds in a tier of this hit ratio.
double FoundPerRequest(const AdviceInput& input, double hit_ratio) {
  if (input.requests == 0) return 0;
  return hit_ratio * static_cast<double>(input.blocks) / static_cast<double>(input.requests);
}

// Of 1,000 requests that each find `blocks` in the tier; empty when it cannot be known.
std::optional<double> SavedFrom(const AdviceInput& input, const AdviceInput::Tier& tier,
                                double blocks) {
  if (blocks <= 0) return 0;
  if (input.prefill_tokens_per_second <= 0 || tier.bytes_per_second <= 0 ||
      input.block_tokens <= 0) {
    return std::nullopt;
  }
  const double compute = blocks * input.block_tokens / input.prefill_tokens_per_second;
  const double load = LoadSeconds(tier, blocks * input.block_bytes);
  return std::max(0., kPerRequests * (compute - load));
}

// The SSD's curve is over both tiers' bytes together, so it also says what another RAM size in
// front of it finds in all.
AdviceRow MakeRow(const AdviceInput& input, std::string what, uint64_t ram_bytes,
                  uint64_t ssd_bytes) {
  AdviceRow row{std::move(what), ram_bytes, ssd_bytes, 0, 0, std::nullopt};
  row.ram_hit_ratio = HitRatioAt(input.ram.curve, ram_bytes);
  row.hit_ratio = row.ram_hit_ratio;
  if (input.ssd.on) {
    const uint64_t both = ram_bytes + ssd_bytes;
    const uint64_t as_ssd = both - std::min(both, input.ram.capacity_bytes);
    row.hit_ratio = std::max(row.ram_hit_ratio, HitRatioAt(input.ssd.curve, as_ssd));
  }
  const auto ram = SavedFrom(input, input.ram, FoundPerRequest(input, row.ram_hit_ratio));
  const auto ssd =
      SavedFrom(input, input.ssd, FoundPerRequest(input, row.hit_ratio - row.ram_hit_ratio));
  if (ram && ssd) row.saved_seconds = *ram + *ssd;
  return row;
}

std::vector<AdviceRow> MakeRows(const AdviceInput& input) {
  const uint64_t ram = input.ram.capacity_bytes, ssd = input.ssd.capacity_bytes;
  std::vector<AdviceRow> rows = {
      MakeRow(input, "now", ram, ssd), MakeRow(input, "RAM /2", ram / 2, ssd),
      MakeRow(input, "RAM x2", ram * 2, ssd), MakeRow(input, "RAM x4", ram * 4, ssd)};
  if (!input.ssd.on) return rows;
  rows.push_back(MakeRow(input, "SSD /2", ram, ssd / 2));
  rows.push_back(MakeRow(input, "SSD x2", ram, ssd * 2));
  rows.push_back(MakeRow(input, "SSD x4", ram, ssd * 4));
  return rows;
}

// For what a mean request finds there, or one block.
std::optional<TierCost> MakeCost(const AdviceInput& input, const AdviceInput::Tier& tier,
                                 std::string name, double hit_ratio) {
  if (tier.bytes_per_second <= 0 || input.block_tokens <= 0) return std::nullopt;
  const double blocks = std::max(1., FoundPerRequest(input, hit_ratio));
  TierCost cost;
  cost.tier = std::move(name);
  cost.seconds_per_token =
      LoadSeconds(tier, blocks * input.block_bytes) / (blocks * input.block_tokens);
  cost.break_even_tokens_per_second = 1 / cost.seconds_per_token;
  if (input.prefill_tokens_per_second > 0) {
    cost.slower_than_recomputing =
        input.prefill_tokens_per_second > cost.break_even_tokens_per_second;
  }
  return cost;
}

FlatRange MakeFlat(const AdviceInput::Tier& tier, std::string name) {
  FlatRange flat;
  flat.tier = std::move(name);
  flat.spare_down_to_bytes = tier.capacity_bytes;
  if (tier.curve.empty()) return flat;
  const double now = HitRatioAt(tier.curve, tier.capacity_bytes);
  const double most = tier.curve.back().hit_ratio;
  for (size_t i = tier.curve.size(); i-- > 0;) {
    const Point& point = tier.curve[i];
    const bool last = i + 1 == tier.curve.size();
    if (!last && most - point.hit_ratio < kFlat) flat.enough_bytes = point.capacity_bytes;
    if (point.capacity_bytes < tier.capacity_bytes && now - point.hit_ratio < kFlat) {
      flat.spare_down_to_bytes = point.capacity_bytes;
    }
  }
  return flat;
}

// --- Words

std::string SetCapacity(const std::string& tier, uint64_t bytes) {
  return absl::StrCat("kvtier set-capacity --tier ", tier == "RAM" ? "ram" : "ssd", " --bytes ",
                      bytes);
}

const AdviceRow* FindRow(const Advice& advice, const std::string& what) {
  for (const AdviceRow& row : advice.rows) {
    if (row.what == what) return &row;
  }
  return nullptr;
}

std::string Saves(const AdviceRow& now, const AdviceRow& row) {
  if (!now.saved_seconds || !row.saved_seconds) return "";
  return absl::StrCat(" and saves ", Fixed(*row.saved_seconds - *now.saved_seconds, 1),
                      " s more per 1,000 requests");
}

// What more or less of one tier would do to what is found in all.
void SayTier(const FlatRange& flat, uint64_t capacity, Advice* advice) {
  const AdviceRow& now = advice->rows.front();
  const AdviceRow& twice = *FindRow(*advice, flat.tier + " x2");
  const AdviceRow& four = *FindRow(*advice, flat.tier + " x4");
  const double gain = twice.hit_ratio - now.hit_ratio;
  const uint64_t doubled = flat.tier == "RAM" ? twice.ram_bytes : twice.ssd_bytes;
  if (gain >= kFlat) {
    advice->sentences.push_back(absl::StrCat(flat.tier, " x2 (", FormatBytes(doubled), ") finds ",
                                             Points(gain).substr(1), " points more",
                                             Saves(now, twice), "; x4 ",
                                             Points(four.hit_ratio - now.hit_ratio).substr(1),
                                             " points more. ", SetCapacity(flat.tier, doubled)));
  } else if (four.hit_ratio - now.hit_ratio >= kFlat) {
    advice->sentences.push_back(absl::StrCat(flat.tier, " x2 buys less than half a point, x4 ",
                                             Points(four.hit_ratio - now.hit_ratio).substr(1),
                                             " points."));
  } else {
    advice->sentences.push_back(
        absl::StrCat("More ", flat.tier, " buys less than half a point, even at x4: leave it."));
  }
  if (flat.spare_down_to_bytes < capacity) {
    advice->sentences.push_back(absl::StrCat(
        flat.tier, " could shrink to ", FormatBytes(flat.spare_down_to_bytes),
        " and lose less than half a point. ", SetCapacity(flat.tier, flat.spare_down_to_bytes)));
  } else if (gain >= kFlat && flat.enough_bytes && *flat.enough_bytes > capacity) {
    advice->sentences.push_back(absl::StrCat(flat.tier, " is flat from ",
                                             FormatBytes(*flat.enough_bytes),
                                             " on: more than that buys less than half a point."));
  }
}

void SayCost(const TierCost& cost, Advice* advice) {
  const double rate = advice->input.prefill_tokens_per_second;
  std::string text = absl::StrCat("Fetching from ", cost.tier, " takes ",
                                  PerToken(cost.seconds_per_token), " a token");
  if (!cost.slower_than_recomputing) {
    advice->sentences.push_back(absl::StrCat(text, ": worth it for engines that compute less than ",
                                             Rate(cost.break_even_tokens_per_second), "."));
    return;
  }
  absl::StrAppend(&text, ", recomputing ", PerToken(1 / rate), " at ", Rate(rate), ": ");
  if (*cost.slower_than_recomputing) {
    absl::StrAppend(&text, "recompute. Above ", Rate(cost.break_even_tokens_per_second),
                    " fetching from ", cost.tier,
                    " is the slower; engines that use BlocksWorthFetching leave it out.");
  } else {
    absl::StrAppend(&text, "fetch. Recomputing wins above ",
                    Rate(cost.break_even_tokens_per_second), ".");
  }
  advice->sentences.push_back(std::move(text));
}

void Warn(Advice* advice) {
  const AdviceInput& input = advice->input;
  const auto warn = [advice](std::string text) { advice->warnings.push_back(std::move(text)); };
  if (input.sampled_references < kEnoughReferences) {
    warn(absl::StrCat("only ", WithCommas(input.sampled_references), " sampled references, ",
                      WithCommas(kEnoughReferences),
                      " are needed: the hit ratios are a guess; come back after more traffic"));
  } else if (std::abs(advice->measured_hit_ratio - advice->estimated_hit_ratio) > kOffBy) {
    warn(
        "measured and estimated hit ratio differ by more than 5 points: the cache is still "
        "filling, "
        "was resized or reset, or leases hold it; come back after more traffic");
  }
  if (input.ram.bytes_per_second <= 0 || (input.ssd.on && input.ssd.bytes_per_second <= 0)) {
    warn("a tier was not fetched from yet, so its speed, and the time saved, are not known");
  }
  if (input.prefill_tokens_per_second <= 0) {
    warn(
        "the time saved is not known without the engines' prefill rate: --prefill-rate, or "
        "kvtierd's prefill-tokens-per-second");
  }
}

Json OptionalJson(const std::optional<double>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json TierJson(const AdviceInput::Tier& tier, const FlatRange* flat) {
  Json curve = Json::array();
  for (const Point& point : tier.curve) {
    curve.push_back({{"capacity_bytes", point.capacity_bytes}, {"hit_ratio", point.hit_ratio}});
  }
  Json enough = nullptr, spare = nullptr;
  if (flat != nullptr) {
    if (flat->enough_bytes) enough = *flat->enough_bytes;
    spare = flat->spare_down_to_bytes;
  }
  return {{"on", tier.on},
          {"capacity_bytes", tier.capacity_bytes},
          {"measured_bytes_per_second", tier.bytes_per_second},
          {"measured_first_byte_seconds", tier.first_byte_seconds},
          {"enough_bytes", enough},
          {"spare_down_to_bytes", spare},
          {"curve", curve}};
}

Json CostJson(const TierCost& cost) {
  return {{"tier", cost.tier},
          {"seconds_per_token", cost.seconds_per_token},
          {"break_even_tokens_per_second", cost.break_even_tokens_per_second},
          {"slower_than_recomputing",
           cost.slower_than_recomputing ? Json(*cost.slower_than_recomputing) : Json(nullptr)}};
}

Json RowJson(const AdviceRow& row, const AdviceRow& now, double requests_per_hour) {
  std::optional<double> per_hour;
  if (row.saved_seconds) per_hour = *row.saved_seconds * requests_per_hour / kPerRequests;
  return {{"what", row.what},
          {"ram_bytes", row.ram_bytes},
          {"ssd_bytes", row.ssd_bytes},
          {"ram_hit_ratio", row.ram_hit_ratio},
          {"hit_ratio", row.hit_ratio},
          {"points", 100 * (row.hit_ratio - now.hit_ratio)},
          {"saved_seconds_per_1000_requests", OptionalJson(row.saved_seconds)},
          {"saved_seconds_per_hour", OptionalJson(per_hour)}};
}

}  // namespace

double HitRatioAt(const std::vector<Point>& curve, uint64_t capacity_bytes) {
  if (curve.empty()) return 0;
  const auto above = std::find_if(curve.begin(), curve.end(), [&](const Point& point) {
    return point.capacity_bytes >= capacity_bytes;
  });
  if (above == curve.end()) return curve.back().hit_ratio;
  if (above == curve.begin() || above->capacity_bytes == capacity_bytes) return above->hit_ratio;
  const Point& below = *(above - 1);
  if (below.capacity_bytes == 0) return below.hit_ratio;
  const auto log = [](uint64_t bytes) { return std::log(static_cast<double>(bytes)); };
  const double part = (log(capacity_bytes) - log(below.capacity_bytes)) /
                      (log(above->capacity_bytes) - log(below.capacity_bytes));
  return below.hit_ratio + part * (above->hit_ratio - below.hit_ratio);
}

Advice Advise(const AdviceInput& input) {
  Advice advice;
  advice.input = input;
  if (input.blocks > 0) {
    advice.measured_hit_ratio =
        static_cast<double>(input.hit_blocks) / static_cast<double>(input.blocks);
  }
  advice.rows = MakeRows(input);
  const AdviceRow& now = advice.rows.front();
  advice.estimated_hit_ratio = now.hit_ratio;
  advice.flat.push_back(MakeFlat(input.ram, "RAM"));
  if (input.ssd.on) advice.flat.push_back(MakeFlat(input.ssd, "SSD"));
  const auto ram = MakeCost(input, input.ram, "RAM", now.ram_hit_ratio);
  const auto ssd = MakeCost(input, input.ssd, "SSD", now.hit_ratio - now.ram_hit_ratio);
  if (ram) advice.costs.push_back(*ram);
  if (input.ssd.on && ssd) advice.costs.push_back(*ssd);
  Warn(&advice);
  for (const FlatRange& flat : advice.flat) {
    SayTier(flat, flat.tier == "RAM" ? input.ram.capacity_bytes : input.ssd.capacity_bytes,
            &advice);
  }
  for (const TierCost& cost : advice.costs) SayCost(cost, &advice);
  return advice;
}

Json AdviceJson(const Advice& advice) {
  const AdviceInput& input = advice.input;
  Json rows = Json::array(), costs = Json::array();
  for (const AdviceRow& row : advice.rows) {
    rows.push_back(RowJson(row, advice.rows.front(), input.requests_per_hour));
  }
  for (const TierCost& cost : advice.costs) costs.push_back(CostJson(cost));
  return {{"measured_hit_ratio", advice.measured_hit_ratio},
          {"estimated_hit_ratio", advice.estimated_hit_ratio},
          {"requests", input.requests},
          {"requests_per_hour", input.requests_per_hour},
          {"blocks", input.blocks},
          {"hit_blocks", input.hit_blocks},
          {"sampled_references", input.sampled_references},
          {"block_tokens", input.block_tokens},
          {"block_bytes", input.block_bytes},
          {"prefill_tokens_per_second", input.prefill_tokens_per_second},
          {"sizes", rows},
          {"ram", TierJson(input.ram, &advice.flat.front())},
          {"ssd", TierJson(input.ssd, input.ssd.on ? &advice.flat.back() : nullptr)},
          {"costs", costs},
          {"advice", advice.sentences},
          {"warnings", advice.warnings}};
}

std::string AdviceText(const Advice& advice) {
  const AdviceInput& input = advice.input;
  if (input.blocks == 0) return "no lookups yet: nothing to advise on\n";
  std::string text = absl::StrCat("Of the blocks looked up ", Percent(advice.measured_hit_ratio),
                                  " were found; estimated ", Percent(advice.estimated_hit_ratio),
                                  " (", WithCommas(input.requests), " requests, ",
                                  WithCommas(input.sampled_references), " sampled references).\n");
  for (const std::string& warning : advice.warnings) {
    absl::StrAppend(&text, "Note: ", warning, ".\n");
  }
  const AdviceRow& now = advice.rows.front();
  Table table;
  std::vector<std::string> head = {"sizes", "RAM", "SSD", "found", "points"};
  if (now.saved_seconds) head.push_back("s saved per 1,000 requests");
  table.Row(head);
  for (const AdviceRow& row : advice.rows) {
    std::vector<std::string> cells = {
        row.what, FormatBytes(row.ram_bytes), input.ssd.on ? FormatBytes(row.ssd_bytes) : "off",
        Percent(row.hit_ratio), Points(row.hit_ratio - now.hit_ratio)};
    if (row.saved_seconds) cells.push_back(Fixed(*row.saved_seconds, 1));
    table.Row(cells);
  }
  absl::StrAppend(&text, "\n", table.ToString(), "\n");
  for (const std::string& sentence : advice.sentences) absl::StrAppend(&text, "- ", sentence, "\n");
  return text;
}

}  // namespace kvtier::cli
