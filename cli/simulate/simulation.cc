#include "cli/simulate/simulation.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <memory>

#include "absl/container/flat_hash_map.h"
#include "cli/simulate/block_numbers.h"
#include "cli/simulate/comparisons.h"
#include "cli/simulate/optimum.h"
#include "cli/simulate/ordered_cache.h"
#include "cli/simulate/references.h"
#include "cli/simulate/stack_distance.h"
#include "common/bytes.h"
#include "common/check.h"

namespace kvtier::cli {
namespace {

// Requests are handed to the caches so many blocks at a time: one cache's state stays near the
// processor while it works through them.
constexpr size_t kBatchBlocks = 1 << 16;
// What SLRU protects by default.
constexpr uint32_t kSlruPercent = 50;
// Sizes of the curve for each factor of two.
constexpr int kCurveSteps = 4;
constexpr std::string_view kMin = "min";
constexpr Duration kProgressEvery = std::chrono::seconds(2);

class Stopwatch {
 public:
  double Seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

std::unique_ptr<SimulatedCache> MakeCache(std::string_view policy, uint64_t capacity) {
  if (const std::optional<Eviction> eviction = ParseEviction(policy)) {
    return std::make_unique<OrderedCache>(capacity, ProtectedPercent(*eviction));
  }
  if (policy == "slru") return std::make_unique<OrderedCache>(capacity, kSlruPercent);
  if (policy == "lru-root") return MakeRootFirstLru(capacity);
  if (policy == "arc") return MakeArc(capacity);
  KVTIER_CHECK(policy == "s3fifo");
  return MakeS3Fifo(capacity);
}

// Descending by a fixed factor from `distinct` to one block, turned round.
std::vector<uint64_t> CurveCapacities(uint64_t distinct) {
  std::vector<uint64_t> out;
  for (int step = 0;; ++step) {
    const double size = std::round(static_cast<double>(distinct) *
                                   std::exp2(-static_cast<double>(step) / kCurveSteps));
    if (size < 1) break;
    if (out.empty() || out.back() > size) out.push_back(static_cast<uint64_t>(size));
  }
  std::reverse(out.begin(), out.end());
  return out;
}

// A cache and what it has hit: a row in one of its conventions.
struct Run {
  size_t row = 0;
  Convention convention = Convention::kAll;
  std::unique_ptr<SimulatedCache> cache;  // null for MIN
  SimulatedTiers* tiers = nullptr;        // `cache`, when it is two tiers
  uint64_t hits = 0;
};

// A pipe's bytes are gone once they were read: a second pass would find none, or wait for ever.
absl::Status CheckReadableTwice(const std::string& path) {
  std::error_code error;
  const std::filesystem::file_type type = std::filesystem::status(path, error).type();
  const bool missing = error || type == std::filesystem::file_type::not_found;
  if (missing || type == std::filesystem::file_type::regular) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "trace is '", path, "', which is no regular file and can be read once only; min, and ",
      "capacities in percent of the distinct blocks, read it twice: give it as a file, or ",
      "capacities in blocks"));
}

double Ratio(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

class Simulation {
 public:
  Simulation(const SimulateOptions& options, const std::function<void(std::string_view)>& progress,
             const Clock& clock)
      : options_(options),
        progress_(progress),
        clock_(clock),
        start_(clock.Now()),
        reported_(start_) {}

  absl::StatusOr<SimulationReport> Go() {
    KVTIER_RETURN_IF_ERROR(CheckOptions(options_));
    if (NeedsCounting()) {
      KVTIER_RETURN_IF_ERROR(CheckReadableTwice(options_.trace));
      progress_("simulate: a first pass over the trace counts its blocks");
      KVTIER_RETURN_IF_ERROR(ReadTrace([](const References&) {}));
      counted_blocks_ = report_.blocks_all;
    }
    KVTIER_RETURN_IF_ERROR(MakeRuns());
    if (WantsOptimum()) PrepareOptimum();
    KVTIER_RETURN_IF_ERROR(ReadTrace([this](const References& batch) { Feed(batch); }));
    for (Run& run : runs_) {
      if (run.cache == nullptr) RunOptimum(&run);
      SetRatio(run.convention, run.hits, &report_.rows[run.row]);
      if (run.tiers != nullptr) SetTierRatios(run, &report_.rows[run.row]);
    }
    if (options_.curve) AddCurve();
    return std::move(report_);
  }

 private:
  bool WantsOptimum() const {
    return std::find(options_.policies.begin(), options_.policies.end(), kMin) !=
           options_.policies.end();
  }
  bool NeedsCounting() const {
    const auto share = [](const CapacitySpec& capacity) {
      return capacity.unit == CapacitySpec::Unit::kPercent;
    };
    return WantsOptimum() ||
           std::any_of(options_.capacities.begin(), options_.capacities.end(), share) ||
           std::any_of(options_.ssd_capacities.begin(), options_.ssd_capacities.end(), share);
  }

  absl::Status MakeRuns() {
    for (const CapacitySpec& capacity : options_.capacities) {
      KVTIER_ASSIGN_OR_RETURN(const uint64_t blocks, Blocks(capacity));
      if (options_.tiers.empty()) {
        for (const std::string& policy : options_.policies) MakePolicyRuns(policy, blocks);
      } else {
        KVTIER_RETURN_IF_ERROR(MakeTierRuns(blocks));
      }
    }
    if (options_.curve) distances_.resize(options_.conventions.size());
    return absl::OkStatus();
  }

  void MakePolicyRuns(const std::string& policy, uint64_t capacity) {
    AddRow(policy, capacity);
    for (Convention convention : options_.conventions) {
      Run& run = AddRun(convention);
      if (policy != kMin) run.cache = MakeCache(policy, capacity);
    }
  }

  absl::Status MakeTierRuns(uint64_t ram) {
    for (const CapacitySpec& capacity : options_.ssd_capacities) {
      const absl::StatusOr<uint64_t> blocks = Blocks(capacity);
      KVTIER_RETURN_IF_ERROR(Annotate(blocks.status(), "ssd-capacity"));
      const uint64_t ssd = *blocks;
      for (TierMode mode : options_.tiers) {
        SimulationRow& row = AddRow("lru", ram);
        row.tiers = mode;
        row.ssd_capacity_blocks = ssd;
        for (Convention convention : options_.conventions) {
          auto tiers =
              MakeTiers(mode, {.ram = ram, .ssd = ssd, .segment = options_.segment_blocks});
          Run& run = AddRun(convention);
          run.tiers = tiers.get();
          run.cache = std::move(tiers);
        }
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<uint64_t> Blocks(const CapacitySpec& capacity) const {
    return CapacityBlocks(capacity, numbers_.end(), options_.block_bytes);
  }

  SimulationRow& AddRow(const std::string& policy, uint64_t capacity) {
    report_.rows.emplace_back();
    report_.rows.back().policy = policy;
    report_.rows.back().capacity_blocks = capacity;
    return report_.rows.back();
  }

  // Of the last row.
  Run& AddRun(Convention convention) {
    Run& run = runs_.emplace_back();
    run.row = report_.rows.size() - 1;
    run.convention = convention;
    return run;
  }

  void PrepareOptimum() {
    uint64_t most = 0;
    for (const SimulationRow& row : report_.rows) {
      if (row.policy == kMin) most = std::max(most, row.capacity_blocks);
    }
    const uint64_t bytes =
        OptimumMemoryBytes(report_.blocks_all, report_.requests, numbers_.end(), most);
    progress_(absl::StrCat("simulate: min keeps all ", WithCommas(report_.blocks_all),
                           " references of the trace; it will need ", FormatBytes(bytes)));
    references_.blocks.reserve(report_.blocks_all);
    references_.requests.reserve(report_.requests);
  }

  // Calls take(References) for some requests at a time.
  template <typename Take>
  absl::Status ReadTrace(const Take& take) {
    const Stopwatch all;
    double inner_seconds = 0;
    report_.requests = report_.blocks_all = report_.blocks_full = 0;
    report_.number_seconds = 0;
    report_.plain_seconds.reset();
    plain_.clear();
    TraceReaderOptions reader = options_.reader;
    reader.progress = progress_;
    KVTIER_ASSIGN_OR_RETURN(const std::unique_ptr<TraceSource> source,
                            OpenTrace(options_.trace, std::move(reader)));
    std::vector<TraceRequest> requests;
    for (bool more = true; more;) {
      KVTIER_ASSIGN_OR_RETURN(more, ReadSome(source.get(), &requests));
      const Stopwatch inner;
      take(Number(requests));
      inner_seconds += inner.Seconds();
      ReportProgress();
    }
    report_.skipped_lines = source->skipped_lines();
    report_.distinct_blocks = numbers_.end();
    report_.parse_seconds = all.Seconds() - inner_seconds;
    return CheckNotEmpty();
  }

  // Ratios of nothing would read like those of a cache that is of no use.
  absl::Status CheckNotEmpty() const {
    if (report_.blocks_all > 0) return absl::OkStatus();
    std::string message = absl::StrCat(options_.trace, ": no request has a block");
    if (options_.reader.model != 0) {
      absl::StrAppend(&message, " and is of model ", options_.reader.model);
    }
    if (report_.skipped_lines > 0) {
      absl::StrAppend(&message, "; lines passed over: ", WithCommas(report_.skipped_lines));
    }
    return absl::InvalidArgumentError(message);
  }

  void ReportProgress() {
    const TimePoint now = clock_.Now();
    if (now - reported_ < kProgressEvery) return;
    reported_ = now;
    const std::string total =
        counted_blocks_ ? absl::StrCat(" of ", WithCommas(*counted_blocks_)) : "";
    progress_(absl::StrCat("simulate: ", WithCommas(report_.blocks_all), total, " blocks after ",
                           Fixed(std::chrono::duration<double>(now - start_).count(), 1), " s"));
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

  References Number(const std::vector<TraceRequest>& requests) {
    if (options_.timing) WalkPlainly(requests);
    const Stopwatch stopwatch;
    References batch;
    for (const TraceRequest& request : requests) {
      const size_t full = UsedBlocks(request, options_.reader.block_tokens, /*full_only=*/true);
      batch.requests.push_back(
          {static_cast<uint32_t>(request.hash_ids.size()), static_cast<uint32_t>(full)});
      report_.blocks_all += request.hash_ids.size();
      report_.blocks_full += full;
      numbers_.Append(request, &batch.blocks);
    }
    report_.requests += requests.size();
    report_.number_seconds += stopwatch.Seconds();
    return batch;
  }

  // What the policies' time is held against.
  void WalkPlainly(const std::vector<TraceRequest>& requests) {
    const Stopwatch stopwatch;
    for (const TraceRequest& request : requests) {
      for (uint64_t id : request.hash_ids) {
        if (plain_.find(id) == plain_.end()) plain_.emplace(id, plain_.size());
      }
    }
    report_.plain_seconds = report_.plain_seconds.value_or(0) + stopwatch.Seconds();
  }

  void Feed(const References& batch) {
    for (Run& run : runs_) {
      if (run.cache == nullptr) continue;
      const Stopwatch stopwatch;
      run.cache->Grow(numbers_.end());
      batch.ForEach(run.convention, [&run](std::span<const EntryId> path) {
        run.hits += run.cache->Request(path);
      });
      report_.rows[run.row].seconds += stopwatch.Seconds();
    }
    const Stopwatch stopwatch;
    for (size_t i = 0; i < distances_.size(); ++i) {
      StackDistance& distance = distances_[i];
      distance.Grow(numbers_.end());
      batch.ForEach(options_.conventions[i],
                    [&](std::span<const EntryId> path) { distance.Request(path); });
    }
    report_.curve_seconds += stopwatch.Seconds();
    if (WantsOptimum()) references_.Append(batch);
  }

  void RunOptimum(Run* run) {
    SimulationRow& row = report_.rows[run->row];
    progress_(absl::StrCat("simulate: min with ", WithCommas(row.capacity_blocks), " blocks"));
    const Stopwatch stopwatch;
    run->hits = OptimumHits(references_, run->convention, row.capacity_blocks, numbers_.end());
    row.seconds += stopwatch.Seconds();
  }

  void AddCurve() {
    for (uint64_t capacity : CurveCapacities(numbers_.end())) {
      SimulationRow& row = report_.curve.emplace_back();
      row.policy = kEvictionNames[static_cast<int>(Eviction::kLru)];
      row.capacity_blocks = capacity;
      for (size_t i = 0; i < distances_.size(); ++i) {
        SetRatio(options_.conventions[i], distances_[i].Hits(capacity), &row);
      }
    }
  }

  void SetRatio(Convention convention, uint64_t hits, SimulationRow* row) const {
    const bool all = convention == Convention::kAll;
    const uint64_t blocks = all ? report_.blocks_all : report_.blocks_full;
    (all ? row->hit_ratio_all : row->hit_ratio_full) = Ratio(hits, blocks);
  }

  void SetTierRatios(const Run& run, SimulationRow* row) const {
    const bool all = run.convention == Convention::kAll;
    const uint64_t blocks = all ? report_.blocks_all : report_.blocks_full;
    const TierCounts counts = run.tiers->counts();
    (all ? row->tiers_all : row->tiers_full) =
        TierRatios{Ratio(counts.ram_hits, blocks), Ratio(counts.ssd_hits, blocks),
                   Ratio(counts.ssd_writes, blocks)};
  }

  const SimulateOptions& options_;
  const std::function<void(std::string_view)>& progress_;
  const Clock& clock_;
  const TimePoint start_;
  TimePoint reported_;
  std::optional<uint64_t> counted_blocks_;  // by the first of two passes
  BlockNumbers numbers_;
  absl::flat_hash_map<uint64_t, uint64_t> plain_;
  std::vector<Run> runs_;
  std::vector<StackDistance> distances_;  // by convention
  References references_;                 // all of them, for MIN
  SimulationReport report_;
};

}  // namespace

absl::StatusOr<SimulationReport> Simulate(const SimulateOptions& options,
                                          const std::function<void(std::string_view)>& progress,
                                          const Clock& clock) {
  return Simulation(options, progress, clock).Go();
}

}  // namespace kvtier::cli
