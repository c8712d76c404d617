// A simulation's rows as JSON and as tables.
#include <algorithm>

#include "cli/simulate/simulation.h"

namespace kvtier::cli {
namespace {

Json OrNull(const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); }

std::string Cell(const std::optional<double>& value) { return value ? Fixed(*value, 4) : "-"; }

void AddRatios(const std::optional<TierRatios>& tiers, const std::string& suffix, Json* json) {
  const auto value = [&](double TierRatios::*member) {
    return tiers ? Json((*tiers).*member) : Json(nullptr);
  };
  (*json)["hit_ratio_ram" + suffix] = value(&TierRatios::ram);
  (*json)["hit_ratio_ssd" + suffix] = value(&TierRatios::ssd);
  (*json)["ssd_writes_per_block" + suffix] = value(&TierRatios::writes_per_block);
}

void AddTiers(const SimulationRow& row, Json* json) {
  if (!row.tiers) return;
  (*json)["tiers"] = TierModeName(*row.tiers);
  (*json)["ssd_capacity_blocks"] = row.ssd_capacity_blocks;
  AddRatios(row.tiers_all, "_all", json);
  AddRatios(row.tiers_full, "_full", json);
}

Json RowsJson(const std::vector<SimulationRow>& rows) {
  Json out = Json::array();
  for (const SimulationRow& row : rows) {
    Json json = {{"policy", row.policy},
                 {"capacity_blocks", row.capacity_blocks},
                 {"hit_ratio_all", OrNull(row.hit_ratio_all)},
                 {"hit_ratio_full", OrNull(row.hit_ratio_full)}};
    AddTiers(row, &json);
    out.push_back(std::move(json));
  }
  return out;
}

std::string OneTierText(const std::vector<SimulationRow>& rows) {
  Table table;
  table.Row({"policy", "capacity, blocks", "hit ratio, all", "hit ratio, full"});
  for (const SimulationRow& row : rows) {
    table.Row({row.policy, WithCommas(row.capacity_blocks), Cell(row.hit_ratio_all),
               Cell(row.hit_ratio_full)});
  }
  return table.ToString();
}

// A line for each convention.
std::string TwoTierText(const std::vector<SimulationRow>& rows) {
  Table table;
  table.Row({"tiers", "convention", "RAM, blocks", "SSD, blocks", "hit ratio", "in RAM", "on SSD",
             "SSD writes per block"});
  for (const SimulationRow& row : rows) {
    const auto line = [&](const char* convention, double hits, const TierRatios& tiers) {
      table.Row({std::string(TierModeName(*row.tiers)), convention, WithCommas(row.capacity_blocks),
                 WithCommas(row.ssd_capacity_blocks), Fixed(hits, 4), Fixed(tiers.ram, 4),
                 Fixed(tiers.ssd, 4), Fixed(tiers.writes_per_block, 4)});
    };
    if (row.tiers_all) line("all", *row.hit_ratio_all, *row.tiers_all);
    if (row.tiers_full) line("full", *row.hit_ratio_full, *row.tiers_full);
  }
  return table.ToString();
}

// A row's time for each reference of its conventions, and how many times a plain find's that is.
// The index's part is shared by all rows, so each is charged its share.
Json TimingJson(const SimulateOptions& options, const SimulationReport& report) {
  const double conventions = static_cast<double>(options.conventions.size());
  const double references = static_cast<double>(std::max<uint64_t>(1, report.blocks_all));
  const double plain_ns = *report.plain_seconds / references * 1e9;
  const double runs = conventions * static_cast<double>(std::max<size_t>(1, report.rows.size()));
  const double number_ns = report.number_seconds / references / runs * 1e9;
  Json rows = Json::array();
  for (const SimulationRow& row : report.rows) {
    const double ns = number_ns + row.seconds / references / conventions * 1e9;
    rows.push_back({{"policy", row.policy},
                    {"capacity_blocks", row.capacity_blocks},
                    {"seconds", row.seconds},
                    {"ns_per_reference", ns},
                    {"times_plain", ns / plain_ns}});
  }
  return {{"parse_seconds", report.parse_seconds}, {"index_seconds", report.number_seconds},
          {"curve_seconds", report.curve_seconds}, {"plain_walk_seconds", *report.plain_seconds},
          {"plain_ns_per_reference", plain_ns},    {"rows", rows}};
}

std::string TimingText(const Json& timing) {
  Table table;
  table.Row({"time", "capacity, blocks", "seconds", "ns per reference", "times the plain walk"});
  const double plain_ns = timing["plain_ns_per_reference"];
  table.Row({"plain walk of a hash map", "", Fixed(timing["plain_walk_seconds"], 3),
             Fixed(plain_ns, 1), Fixed(1, 2)});
  for (const Json& row : timing["rows"]) {
    table.Row({row["policy"], WithCommas(row["capacity_blocks"]), Fixed(row["seconds"], 3),
               Fixed(row["ns_per_reference"], 1), Fixed(row["times_plain"], 2)});
  }
  table.Row({"parsing the trace", "", Fixed(timing["parse_seconds"], 3)});
  table.Row({"finding each block in the index", "", Fixed(timing["index_seconds"], 3)});
  table.Row({"curve", "", Fixed(timing["curve_seconds"], 3)});
  return table.ToString() + "A policy's ns have its share of the index's.\n";
}

}  // namespace

Json SimulationJson(const SimulateOptions& options, const SimulationReport& report) {
  Json out = {{"trace", options.trace},
              {"block_tokens", options.reader.block_tokens},
              {"requests", report.requests},
              {"skipped_lines", report.skipped_lines},
              {"blocks_all", report.blocks_all},
              {"blocks_full", report.blocks_full},
              {"distinct_blocks", report.distinct_blocks},
              {"rows", RowsJson(report.rows)}};
  if (options.curve) out["curve"] = RowsJson(report.curve);
  if (report.plain_seconds) out["timing"] = TimingJson(options, report);
  return out;
}

std::string SimulationText(const SimulateOptions& options, const SimulationReport& report) {
  std::string out = absl::StrCat(options.trace, ": ", WithCommas(report.requests), " requests, ",
                                 WithCommas(report.blocks_all), " blocks, ",
                                 WithCommas(report.distinct_blocks), " distinct\n");
  if (report.skipped_lines > 0) {
    absl::StrAppend(&out, WithCommas(report.skipped_lines), " lines are no requests\n");
  }
  if (!report.rows.empty()) {
    const bool two = !options.tiers.empty();
    absl::StrAppend(&out, "\n", two ? TwoTierText(report.rows) : OneTierText(report.rows));
  }
  if (options.curve) absl::StrAppend(&out, "\nby size\n", OneTierText(report.curve));
  if (report.plain_seconds) {
    absl::StrAppend(&out, "\n", TimingText(TimingJson(options, report)));
  }
  return out;
}

}  // namespace kvtier::cli
