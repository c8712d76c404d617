#include "cli/bench_report.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/check.h"

namespace kvtier::cli {
namespace {

constexpr double kBestRate = 1.05;  // of its limit
constexpr double kBestLatency = 0.95;

bool LimitIsWrong(const BenchRow& row) {
  if (row.kind == BenchRow::Kind::kRate) return row.ratio > kBestRate;
  if (row.kind == BenchRow::Kind::kLatency) return row.ratio < kBestLatency;
  return false;
}

bool IsLatency(const BenchRow& row) {
  return row.kind == BenchRow::Kind::kLatency || row.kind == BenchRow::Kind::kLooseLatency;
}

bool MeetsTarget(const BenchRow& row) {
  return IsLatency(row) ? row.ratio <= row.target : row.ratio >= row.target;
}

std::string Number(double value) { return Fixed(value, value >= 100 ? 1 : 3); }

std::string Spread(const BenchRow& row) {
  if (row.rounds.size() < 2) return "";
  const auto [least, most] = std::minmax_element(row.rounds.begin(), row.rounds.end());
  return absl::StrCat(Number(*least), "-", Number(*most));
}

std::string TargetText(const BenchRow& row) {
  if (row.target == 0) return "";
  return absl::StrCat(IsLatency(row) ? "<= " : ">= ", Fixed(row.target, 2),
                      MeetsTarget(row) ? "" : " MISSED");
}

}  // namespace

double Median(std::vector<double> values) {
  KVTIER_CHECK(!values.empty());
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  if (values.size() % 2 == 1) return values[middle];
  return (values[middle - 1] + values[middle]) / 2;
}

void BenchReport::Add(BenchRow::Kind kind, const std::string& name, std::vector<double> values,
                      const std::string& limit_name, const std::vector<double>& limits,
                      double target) {
  KVTIER_CHECK(values.size() == limits.size());
  // The ratio of each round, so that a slow phase of the machine weighs on both sides of it.
  std::vector<double> ratios;
  for (size_t i = 0; i < values.size(); ++i) ratios.push_back(values[i] / limits[i]);
  BenchRow row;
  row.kind = kind;
  row.name = name;
  row.unit = IsLatency(row) ? "us" : "GB/s";
  row.limit_name = limit_name;
  row.target = target;
  row.value = Median(values);
  row.limit = Median(limits);
  row.ratio = Median(ratios);
  row.rounds = std::move(values);
  rows_.push_back(std::move(row));
}

void BenchReport::AddRate(const std::string& name, std::vector<double> rates,
                          const std::string& limit_name, const std::vector<double>& limits,
                          double target) {
  Add(BenchRow::Kind::kRate, name, std::move(rates), limit_name, limits, target);
}

void BenchReport::AddLatency(const std::string& name, std::vector<double> latencies,
                             const std::string& limit_name, const std::vector<double>& limits,
                             double target) {
  Add(BenchRow::Kind::kLatency, name, std::move(latencies), limit_name, limits, target);
}

void BenchReport::AddLooseRate(const std::string& name, std::vector<double> rates,
                               const std::string& limit_name, const std::vector<double>& limits,
                               double target) {
  Add(BenchRow::Kind::kLooseRate, name, std::move(rates), limit_name, limits, target);
}

void BenchReport::AddLooseLatency(const std::string& name, std::vector<double> latencies,
                                  const std::string& limit_name, const std::vector<double>& limits,
                                  double target) {
  Add(BenchRow::Kind::kLooseLatency, name, std::move(latencies), limit_name, limits, target);
}

void BenchReport::AddFact(const std::string& name, double value, const std::string& unit) {
  BenchRow row;
  row.name = name;
  row.value = value;
  row.unit = unit;
  rows_.push_back(std::move(row));
}

void BenchReport::AddFact(const std::string& name, double value, const std::string& unit,
                          const std::string& limit_name, double limit) {
  AddFact(name, value, unit);
  rows_.back().limit_name = limit_name;
  rows_.back().limit = limit;
  rows_.back().ratio = value / limit;
}

Json BenchReport::ToJson() const {
  Json rows = Json::array();
  for (const BenchRow& row : rows_) {
    Json json = {{"name", row.name}, {"value", row.value}, {"unit", row.unit}};
    if (!row.rounds.empty()) json["rounds"] = row.rounds;
    if (!row.limit_name.empty()) {
      json["limit_name"] = row.limit_name;
      json["limit"] = row.limit;
      json["ratio"] = row.ratio;
    }
    if (row.target != 0) {
      json["target"] = row.target;
      json["meets_target"] = MeetsTarget(row);
    }
    rows.push_back(std::move(json));
  }
  return Json{{"bench", name_}, {"rows", std::move(rows)}};
}

std::string BenchReport::ToText() const {
  Table table;
  table.Row({"name", "median", "unit", "rounds", "limit", "of", "ratio", "target"});
  for (const BenchRow& row : rows_) {
    const bool limited = !row.limit_name.empty();
    table.Row({row.name, Number(row.value), row.unit, Spread(row), limited ? Number(row.limit) : "",
               row.limit_name, limited ? Fixed(row.ratio, 3) : "", TargetText(row)});
  }
  return table.ToString();
}

absl::Status BenchReport::Check() const {
  std::vector<std::string> wrong;
  for (const BenchRow& row : rows_) {
    if (!LimitIsWrong(row)) continue;
    wrong.push_back(absl::StrCat(row.name, " is ", Fixed(row.ratio, 3), " of ", row.limit_name));
  }
  if (wrong.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the ceiling is wrong: ", absl::StrJoin(wrong, ", ")));
}

}  // namespace kvtier::cli
