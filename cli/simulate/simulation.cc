#include "cli/simulate/simulation.h"

#include <algorithm>
#include <chrono>
#include <memory>

#include "cli/simulate/block_numbers.h"
#include "cli/simulate/ordered_cache.h"

namespace kvtier::cli {
namespace {

// Requests are handed to the caches so many blocks at a time: one cache's state stays near the
// processor while it works through them.
constexpr size_t kBatchBlocks = 1 << 16;

class Stopwatch {
 public:
  double Seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

struct RequestLength {
  uint32_t all = 0;   // blocks
  uint32_t full = 0;  // of them, leading full ones
  uint32_t In(Convention convention) const { return convention == Convention::kAll ? all : full; }
};

// Some requests of the trace, in order.
struct Batch {
  std::vector<EntryId> blocks;
  std::vector<RequestLength> requests;
};

// A cache and what it has hit. One of a row's conventions.
struct Run {
  size_t row = 0;
  Convention convention = Convention::kAll;
  std::unique_ptr<SimulatedCache> cache;
  SimulatedTiers* tiers = nullptr;  // `cache`, when it is two tiers
  uint64_t hits = 0;
};

double Ratio(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

class Simulation {
 public:
  Simulation(const SimulateOptions& options, const std::function<void(std::string_view)>& progress)
      : options_(options), progress_(progress) {}

  absl::StatusOr<SimulationReport> Go() {
    KVTIER_RETURN_IF_ERROR(CheckOptions(options_));
    if (NeedsCounting()) {
      progress_("simulate: a first pass counts the trace's distinct blocks");
      KVTIER_RETURN_IF_ERROR(ReadTrace([](const Batch&) {}));
    }
    KVTIER_RETURN_IF_ERROR(MakeRuns());
    KVTIER_RETURN_IF_ERROR(ReadTrace([this](const Batch& batch) { Feed(batch); }));
    for (const Run& run : runs_) Finish(run);
    return std::move(report_);
  }

 private:
  bool NeedsCounting() const {
    const auto share = [](const CapacitySpec& capacity) {
      return capacity.unit == CapacitySpec::Unit::kPercent;
    };
    return std::any_of(options_.capacities.begin(), options_.capacities.end(), share) ||
           std::any_of(options_.ssd_capacities.begin(), options_.ssd_capacities.end(), share);
  }

  absl::Status MakeRuns() {
    for (const CapacitySpec& capacity : options_.capacities) {
      KVTIER_ASSIGN_OR_RETURN(const uint64_t blocks, Blocks(capacity));
      if (!options_.tiers.empty()) {
        KVTIER_RETURN_IF_ERROR(MakeTierRuns(blocks));
        continue;
      }
      for (const std::string& policy : options_.policies) {
        SimulationRow& row = AddRow(policy, blocks);
        for (Convention convention : options_.conventions) {
          runs_.push_back({RowNumber(row), convention, std::make_unique<OrderedCache>(blocks)});
        }
      }
    }
    return absl::OkStatus();
  }

  absl::Status MakeTierRuns(uint64_t ram) {
    for (const CapacitySpec& capacity : options_.ssd_capacities) {
      KVTIER_ASSIGN_OR_RETURN(const uint64_t ssd, Blocks(capacity));
      for (TierMode mode : options_.tiers) {
        SimulationRow& row = AddRow("lru", ram);
        row.tiers = mode;
        row.ssd_capacity_blocks = ssd;
        for (Convention convention : options_.conventions) {
          auto tiers =
              MakeTiers(mode, {.ram = ram, .ssd = ssd, .segment = options_.segment_blocks});
          SimulatedTiers* const counted = tiers.get();
          runs_.push_back({RowNumber(row), convention, std::move(tiers), counted});
        }
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<uint64_t> Blocks(const CapacitySpec& capacity) const {
    return CapacityBlocks(capacity, numbers_.end(), options_.block_bytes);
  }

  SimulationRow& AddRow(const std::string& policy, uint64_t blocks) {
    report_.rows.emplace_back();
    report_.rows.back().policy = policy;
    report_.rows.back().capacity_blocks = blocks;
    return report_.rows.back();
  }

  size_t RowNumber(const SimulationRow& row) const { return &row - report_.rows.data(); }

  template <typename Take>
  absl::Status ReadTrace(const Take& take) {
    const Stopwatch all;
    double inner_seconds = 0;
    report_.requests = report_.blocks_all = report_.blocks_full = 0;
    report_.number_seconds = 0;
    KVTIER_ASSIGN_OR_RETURN(const std::unique_ptr<TraceSource> source,
                            OpenTrace(options_.trace, options_.reader));
    std::vector<TraceRequest> requests;
    for (bool more = true; more;) {
      KVTIER_ASSIGN_OR_RETURN(more, ReadSome(source.get(), &requests));
      const Stopwatch inner;
      const Batch batch = Number(requests);
      report_.number_seconds += inner.Seconds();
      take(batch);
      inner_seconds += inner.Seconds();
    }
    report_.skipped_lines = source->skipped_lines();
    report_.distinct_blocks = numbers_.end();
    report_.parse_seconds = all.Seconds() - inner_seconds;
    return absl::OkStatus();
  }

  // False at the end.
  absl::StatusOr<bool> ReadSome(TraceSource* source, std::vector<TraceRequest>* requests) {
    requests->clear();
    for (size_t blocks = 0; blocks < kBatchBlocks; blocks += requests->back().hash_ids.size()) {
      KVTIER_ASSIGN_OR_RETURN(std::optional<TraceRequest> request, source->Next());
      if (!request.has_value()) return false;
      requests->push_back(*std::move(request));
    }
    return true;
  }

  Batch Number(const std::vector<TraceRequest>& requests) {
    Batch batch;
    for (const TraceRequest& request : requests) {
      const size_t full = UsedBlocks(request, options_.reader.block_tokens, /*full_only=*/true);
      batch.requests.push_back(
          {static_cast<uint32_t>(request.hash_ids.size()), static_cast<uint32_t>(full)});
      report_.blocks_all += request.hash_ids.size();
      report_.blocks_full += full;
      numbers_.Append(request, &batch.blocks);
    }
    report_.requests += requests.size();
    return batch;
  }

  void Feed(const Batch& batch) {
    for (Run& run : runs_) {
      const Stopwatch stopwatch;
      run.cache->Grow(numbers_.end());
      const EntryId* path = batch.blocks.data();
      for (const RequestLength& length : batch.requests) {
        run.hits += run.cache->Request({path, length.In(run.convention)});
        path += length.all;
      }
      report_.rows[run.row].seconds += stopwatch.Seconds();
    }
  }

  void Finish(const Run& run) {
    const bool all = run.convention == Convention::kAll;
    const uint64_t blocks = all ? report_.blocks_all : report_.blocks_full;
    SimulationRow& row = report_.rows[run.row];
    (all ? row.hit_ratio_all : row.hit_ratio_full) = Ratio(run.hits, blocks);
    if (run.tiers == nullptr) return;
    const TierCounts counts = run.tiers->counts();
    (all ? row.tiers_all : row.tiers_full) =
        TierRatios{Ratio(counts.ram_hits, blocks), Ratio(counts.ssd_hits, blocks),
                   Ratio(counts.ssd_writes, blocks)};
  }

  const SimulateOptions& options_;
  const std::function<void(std::string_view)>& progress_;
  BlockNumbers numbers_;
  std::vector<Run> runs_;
  SimulationReport report_;
};

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

Table OneTierTable(const SimulationReport& report) {
  Table table;
  table.Row({"policy", "capacity, blocks", "hit ratio, all", "hit ratio, full"});
  for (const SimulationRow& row : report.rows) {
    table.Row({row.policy, WithCommas(row.capacity_blocks), Cell(row.hit_ratio_all),
               Cell(row.hit_ratio_full)});
  }
  return table;
}

// A line for each convention.
Table TwoTierTable(const SimulationReport& report) {
  Table table;
  table.Row({"tiers", "convention", "RAM, blocks", "SSD, blocks", "hit ratio", "in RAM", "on SSD",
             "SSD writes per block"});
  for (const SimulationRow& row : report.rows) {
    const auto line = [&](const char* convention, double hits, const TierRatios& tiers) {
      table.Row({std::string(TierModeName(*row.tiers)), convention, WithCommas(row.capacity_blocks),
                 WithCommas(row.ssd_capacity_blocks), Fixed(hits, 4), Fixed(tiers.ram, 4),
                 Fixed(tiers.ssd, 4), Fixed(tiers.writes_per_block, 4)});
    };
    if (row.tiers_all) line("all", *row.hit_ratio_all, *row.tiers_all);
    if (row.tiers_full) line("full", *row.hit_ratio_full, *row.tiers_full);
  }
  return table;
}

}  // namespace

absl::StatusOr<SimulationReport> Simulate(const SimulateOptions& options,
                                          const std::function<void(std::string_view)>& progress) {
  return Simulation(options, progress).Go();
}

Json SimulationJson(const SimulateOptions& options, const SimulationReport& report) {
  Json rows = Json::array();
  for (const SimulationRow& row : report.rows) {
    Json json = {{"policy", row.policy},
                 {"capacity_blocks", row.capacity_blocks},
                 {"hit_ratio_all", OrNull(row.hit_ratio_all)},
                 {"hit_ratio_full", OrNull(row.hit_ratio_full)}};
    AddTiers(row, &json);
    json["seconds"] = row.seconds;
    rows.push_back(std::move(json));
  }
  return {{"trace", options.trace},
          {"block_tokens", options.reader.block_tokens},
          {"requests", report.requests},
          {"skipped_lines", report.skipped_lines},
          {"blocks_all", report.blocks_all},
          {"blocks_full", report.blocks_full},
          {"distinct_blocks", report.distinct_blocks},
          {"parse_seconds", report.parse_seconds},
          {"number_seconds", report.number_seconds},
          {"rows", rows}};
}

std::string SimulationText(const SimulateOptions& options, const SimulationReport& report) {
  const Table table = options.tiers.empty() ? OneTierTable(report) : TwoTierTable(report);
  return absl::StrCat(options.trace, ": ", WithCommas(report.requests), " requests, ",
                      WithCommas(report.blocks_all), " blocks, ",
                      WithCommas(report.distinct_blocks), " distinct\n\n", table.ToString());
}

}  // namespace kvtier::cli
