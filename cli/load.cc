#include "cli/load.h"

#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "cli/pace.h"
#include "common/executor.h"
#include "common/mutex.h"

namespace kvtier::cli {
namespace {

constexpr Duration kProgressEvery = std::chrono::seconds(2);
constexpr Duration kGiveUpAfter = std::chrono::seconds(10);
constexpr std::array<LoadOp, kLoadOps> kAllOps = {LoadOp::kLookup, LoadOp::kFetch, LoadOp::kStore};

double Seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }
double Microseconds(Duration duration) { return static_cast<double>(duration.count()) * 1e-3; }

class RealPacer final : public Pacer {
 public:
  TimePoint Now() override { return clock_.Now(); }
  void WaitUntil(TimePoint due) override {
    MutexLock lock(mutex_);
    for (TimePoint now = clock_.Now(); now < due; now = clock_.Now()) {
      nobody_.WaitFor(mutex_, due - now);
    }
  }

 private:
  const SteadyClock clock_{};
  Mutex mutex_;
  CondVar nobody_;
};

// A fixed function of seed and number (splitmix64), so that a run can be repeated.
double Draw(uint64_t seed, uint64_t number) {
  uint64_t z = seed * 0x632be59bd9b4e019 + number * 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

LoadOp DrawOp(const LoadMix& mix, double draw) {
  double left = draw * (mix[0] + mix[1] + mix[2]);
  for (const LoadOp op : {LoadOp::kLookup, LoadOp::kFetch}) {
    left -= mix[static_cast<size_t>(op)];
    if (left < 0) return op;
  }
  return mix[2] > 0 ? LoadOp::kStore : mix[1] > 0 ? LoadOp::kFetch : LoadOp::kLookup;
}

// What one client saw; the report is their sum.
struct Tally {
  std::array<LoadRow, kLoadOps> rows;
  HdrHistogram sent_late;
};

// Hands requests out and says when each is due. Thread-safe.
class Schedule {
 public:
  Schedule(const LoadOptions& options, TraceSource& trace, Pacer& pacer,
           const std::function<void(const std::string&)>& progress)
      : options_(options),
        pacer_(pacer),
        progress_(progress),
        start_(pacer.Now()),
        trace_(trace),
        reported_(start_) {}

  struct Ticket {
    LoadOp op;
    std::optional<TimePoint> due;  // open loop
    TraceRequest request;
  };

  // Empty at the end, and for everyone once the trace has failed.
  absl::StatusOr<std::optional<Ticket>> Next() KVTIER_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    std::optional<Ticket> ticket;
    const TimePoint now = pacer_.Now();
    const TimePoint due = open() ? Due(given_) : now;
    if (ended_ || AtEnd(due)) return ticket;
    absl::StatusOr<std::optional<TraceRequest>> request = trace_.Next();
    ended_ = !request.ok() || !*request;
    KVTIER_RETURN_IF_ERROR(request.status());
    if (ended_) return ticket;
    ticket = Ticket{DrawOp(options_.mix, Draw(options_.seed, given_)), std::nullopt,
                    **std::move(request)};
    if (open()) ticket->due = due;
    ++given_;
    ReportProgress(now, due);
    return ticket;
  }

  // Ends the run once nothing has succeeded for a while: a daemon that is gone fails every
  // operation at once, and as many as go would be made of it.
  void Answered(bool ok, TimePoint now) KVTIER_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (ok) failing_since_.reset();
    if (!ok && !failing_since_) failing_since_ = now;
    if (ok || now - *failing_since_ < kGiveUpAfter) return;
    gave_up_ = ended_ = true;
  }

  TimePoint start() const { return start_; }
  bool gave_up() KVTIER_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return gave_up_;
  }

 private:
  bool open() const { return options_.rate > 0; }
  TimePoint Due(uint64_t number) const {
    return start_ + SecondsAhead(static_cast<double>(number) / options_.rate);
  }
  bool AtEnd(TimePoint due) const KVTIER_REQUIRES(mutex_) {
    if (options_.requests > 0 && given_ == options_.requests) return true;
    return options_.duration > Duration::zero() && due - start_ >= options_.duration;
  }

  void ReportProgress(TimePoint now, TimePoint due) KVTIER_REQUIRES(mutex_) {
    if (now - reported_ < kProgressEvery) return;
    reported_ = now;
    std::string line = absl::StrCat("bench load: ", WithCommas(given_), " requests in ",
                                    Fixed(Seconds(now - start_), 1), " s");
    if (now > due) absl::StrAppend(&line, ", ", Fixed(Seconds(now - due), 3), " s behind");
    progress_(line);
  }

  const LoadOptions& options_;
  Pacer& pacer_;
  const std::function<void(const std::string&)>& progress_;
  const TimePoint start_;
  Mutex mutex_;
  TraceSource& trace_ KVTIER_GUARDED_BY(mutex_);
  TimePoint reported_ KVTIER_GUARDED_BY(mutex_);
  uint64_t given_ KVTIER_GUARDED_BY(mutex_) = 0;
  bool ended_ KVTIER_GUARDED_BY(mutex_) = false;
  std::optional<TimePoint> failing_since_ KVTIER_GUARDED_BY(mutex_);  // every operation
  bool gave_up_ KVTIER_GUARDED_BY(mutex_) = false;
};

// Keeps the first error of all clients. Thread-safe.
class FirstError {
 public:
  void Note(const absl::Status& status, LoadOp op) KVTIER_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (text_.empty()) text_ = absl::StrCat(std::string(LoadOpName(op)), ": ", status.ToString());
  }
  std::string text() KVTIER_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return text_;
  }

 private:
  Mutex mutex_;
  std::string text_ KVTIER_GUARDED_BY(mutex_);
};

void Count(const LoadOutcome& outcome, LoadOutcome* sum) {
  sum->asked_blocks += outcome.asked_blocks;
  sum->blocks += outcome.blocks;
  sum->bytes += outcome.bytes;
  sum->wrong_blocks += outcome.wrong_blocks;
}

void Merge(const LoadRow& from, LoadRow* into) {
  into->count += from.count;
  into->errors += from.errors;
  Count(from.sum, &into->sum);
  into->latency.Merge(from.latency);
}

// One client, to the end of the schedule.
absl::Status RunClient(Schedule& schedule, LoadTarget& target, Pacer& pacer,
                       FirstError& first_error, Tally* tally) {
  while (true) {
    KVTIER_ASSIGN_OR_RETURN(const std::optional<Schedule::Ticket> ticket, schedule.Next());
    if (!ticket) return absl::OkStatus();
    target.Prepare(ticket->op, ticket->request);
    if (ticket->due) pacer.WaitUntil(*ticket->due);
    const TimePoint sent = pacer.Now();
    const absl::StatusOr<LoadOutcome> outcome = target.Run();
    const TimePoint answered = pacer.Now();
    LoadRow& row = tally->rows[static_cast<size_t>(ticket->op)];
    ++row.count;
    if (ticket->due) tally->sent_late.Record(sent - *ticket->due);
    schedule.Answered(outcome.ok(), answered);
    if (outcome.ok()) {
      Count(*outcome, &row.sum);
      row.latency.Record(answered - ticket->due.value_or(sent));
    } else {
      ++row.errors;
      first_error.Note(outcome.status(), ticket->op);
    }
  }
}

absl::Status CheckOptions(const LoadOptions& options) {
  if (!(options.rate >= 0) || !std::isfinite(options.rate)) {
    return absl::InvalidArgumentError(
        absl::StrCat("rate is ", options.rate, ", a number from 0 is needed"));
  }
  if (options.duration < Duration::zero()) {
    return absl::InvalidArgumentError(
        absl::StrCat("duration is ", Seconds(options.duration), " s, the least is 0"));
  }
  return absl::OkStatus();
}

LoadRow Total(const LoadReport& report) {
  LoadRow total;
  for (const LoadRow& row : report.rows) Merge(row, &total);
  return total;
}

double PerSecond(double value, const LoadReport& report) {
  return report.seconds > 0 ? value / report.seconds : 0;
}

double Rate(const LoadRow& row, const LoadReport& report) {
  return PerSecond(static_cast<double>(row.count - row.errors), report);
}

double Gigabytes(const LoadRow& row, const LoadReport& report) {
  return PerSecond(static_cast<double>(row.sum.bytes) / 1e9, report);
}

Json LatencyJson(const HdrHistogram& latency) {
  return {{"p50", Microseconds(latency.Quantile(0.5))},
          {"p90", Microseconds(latency.Quantile(0.9))},
          {"p99", Microseconds(latency.Quantile(0.99))},
          {"p999", Microseconds(latency.Quantile(0.999))},
          {"max", Microseconds(latency.max())}};
}

Json RowJson(std::string_view name, const LoadRow& row, const LoadReport& report) {
  return {{"operation", name},
          {"count", row.count},
          {"errors", row.errors},
          {"wrong_blocks", row.sum.wrong_blocks},
          {"per_second", Rate(row, report)},
          {"gigabytes_per_second", Gigabytes(row, report)},
          {"asked_blocks", row.sum.asked_blocks},
          {"blocks", row.sum.blocks},
          {"bytes", row.sum.bytes},
          {"latency_us", LatencyJson(row.latency)}};
}

void AddLatency(const HdrHistogram& latency, std::vector<std::string>* cells) {
  for (const double share : {0.5, 0.9, 0.99, 0.999}) {
    cells->push_back(Fixed(Microseconds(latency.Quantile(share)), 0));
  }
  cells->push_back(Fixed(Microseconds(latency.max()), 0));
}

std::vector<std::string> RowCells(std::string_view name, const LoadRow& row,
                                  const LoadReport& report) {
  std::vector<std::string> cells = {std::string(name),
                                    WithCommas(row.count),
                                    Fixed(Rate(row, report), 1),
                                    Fixed(Gigabytes(row, report), 3),
                                    WithCommas(row.sum.asked_blocks),
                                    WithCommas(row.sum.blocks),
                                    WithCommas(row.errors),
                                    WithCommas(row.sum.wrong_blocks)};
  AddLatency(row.latency, &cells);
  return cells;
}

absl::StatusOr<LoadOp> ParseOp(std::string_view name) {
  for (const LoadOp op : kAllOps) {
    if (name == LoadOpName(op)) return op;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("mix names '", std::string(name), "', one of lookup, fetch, store is needed"));
}

}  // namespace

std::string_view LoadOpName(LoadOp op) {
  static constexpr std::array<std::string_view, kLoadOps> kNames = {"lookup", "fetch", "store"};
  return kNames[static_cast<size_t>(op)];
}

absl::StatusOr<LoadMix> ParseLoadMix(std::string_view text) {
  LoadMix mix = {};
  std::array<bool, kLoadOps> given = {};
  for (const auto part : absl::StrSplit(absl::string_view(text.data(), text.size()), ',')) {
    const std::vector<std::string> pair = absl::StrSplit(part, absl::MaxSplits('=', 1));
    KVTIER_ASSIGN_OR_RETURN(const LoadOp op, ParseOp(pair[0]));
    if (std::exchange(given[static_cast<size_t>(op)], true)) {
      return absl::InvalidArgumentError(absl::StrCat("mix names '", pair[0], "' twice"));
    }
    double& weight = mix[static_cast<size_t>(op)];
    if (pair.size() < 2 || !absl::SimpleAtod(pair[1], &weight) || !(weight >= 0) ||
        !std::isfinite(weight)) {
      return absl::InvalidArgumentError(
          absl::StrCat("mix has '", part, "', ", pair[0], "=NUMBER from 0 is needed"));
    }
  }
  if (mix[0] + mix[1] + mix[2] > 0) return mix;
  return absl::InvalidArgumentError("mix is all 0, one operation must be above");
}

std::unique_ptr<Pacer> MakePacer() { return std::make_unique<RealPacer>(); }

absl::StatusOr<LoadReport> RunLoad(const LoadOptions& options, TraceSource& trace,
                                   std::span<const std::unique_ptr<LoadTarget>> targets,
                                   Pacer& pacer,
                                   const std::function<void(const std::string&)>& progress) {
  KVTIER_RETURN_IF_ERROR(CheckOptions(options));
  Schedule schedule(options, trace, pacer, progress);
  FirstError first_error;
  std::vector<Tally> tallies(targets.size());
  std::vector<absl::Status> results(targets.size());
  {
    ThreadPool threads(static_cast<int>(targets.size()));
    for (size_t i = 0; i < targets.size(); ++i) {
      threads.Run([&, i] {
        results[i] = RunClient(schedule, *targets[i], pacer, first_error, &tallies[i]);
      });
    }
  }
  for (const absl::Status& result : results) KVTIER_RETURN_IF_ERROR(result);
  LoadReport report;
  report.seconds = Seconds(pacer.Now() - schedule.start());
  for (const Tally& tally : tallies) {
    for (size_t i = 0; i < kLoadOps; ++i) Merge(tally.rows[i], &report.rows[i]);
    report.sent_late.Merge(tally.sent_late);
  }
  report.skipped_lines = trace.skipped_lines();
  report.first_error = first_error.text();
  report.gave_up = schedule.gave_up();
  return report;
}

absl::Status CheckLoad(const LoadReport& report) {
  const LoadRow total = Total(report);
  if (total.count == 0) return absl::InvalidArgumentError("no request was made");
  if (total.sum.wrong_blocks > 0) {
    return absl::DataLossError(absl::StrCat(
        total.sum.wrong_blocks, " of ", report.rows[static_cast<size_t>(LoadOp::kFetch)].sum.blocks,
        " blocks fetched had wrong bytes"));
  }
  if (total.errors == 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(
      total.errors, " of ", total.count, " operations failed",
      report.gave_up ? absl::StrCat(", all of the last ", Fixed(Seconds(kGiveUpAfter), 0), " s")
                     : "",
      ", the first: ", report.first_error));
}

Json LoadJson(const LoadOptions& options, const LoadReport& report, Json head) {
  Json rows = Json::array();
  for (const LoadOp op : kAllOps) {
    rows.push_back(RowJson(LoadOpName(op), report.rows[static_cast<size_t>(op)], report));
  }
  rows.push_back(RowJson("total", Total(report), report));
  const bool open = options.rate > 0;
  head["loop"] = open ? "open" : "closed";
  head["wanted_per_second"] = open ? Json(options.rate) : Json(nullptr);
  head["seconds"] = report.seconds;
  head["skipped_lines"] = report.skipped_lines;
  head["operations"] = std::move(rows);
  head["sent_late_us"] = open ? LatencyJson(report.sent_late) : Json(nullptr);
  head["first_error"] = report.first_error;
  head["gave_up"] = report.gave_up;
  return head;
}

std::string LoadText(const LoadOptions& options, const LoadReport& report) {
  Table table;
  table.Row({"", "count", "per s", "GB/s", "asked blocks", "blocks", "errors", "wrong", "p50, us",
             "p90", "p99", "p99.9", "max"});
  for (const LoadOp op : kAllOps) {
    table.Row(RowCells(LoadOpName(op), report.rows[static_cast<size_t>(op)], report));
  }
  table.Row(RowCells("total", Total(report), report));
  if (options.rate > 0) {
    std::vector<std::string> late = {"sent late, us", "", "", "", "", "", "", ""};
    AddLatency(report.sent_late, &late);
    table.Row(std::move(late));
  }
  const std::string loop =
      options.rate > 0
          ? absl::StrCat("open loop, ", Fixed(options.rate, 1),
                         " requests/s wanted; latency counts from when a request was due")
          : "closed loop; latency counts from when a request was sent";
  return absl::StrCat(loop, "; ", Fixed(report.seconds, 1), " s\n\n", table.ToString());
}

}  // namespace kvtier::cli
