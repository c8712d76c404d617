// The rows of a benchmark: each figure beside the limit that was measured in the same run.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/json_output.h"
#include "common/status.h"

namespace kvtier::cli {

// REQUIRES: not empty. Takes a copy, to sort it.
double Median(std::vector<double> values);

struct BenchRow {
  // A rate is at best its limit, a latency at least: a figure that beats its limit by more than 5 %
  // says that the limit is wrong. Facts have no such check, nor has what stands beside a limit that
  // is none in the strict sense: a disk varies too much, a copy past the CPU's cache beats memcpy.
  enum class Kind { kRate, kLatency, kLooseRate, kLooseLatency, kFact };
  Kind kind = Kind::kFact;
  std::string name;
  double value = 0;  // the median over the rounds
  std::string unit;
  std::vector<double> rounds;  // of the value
  std::string limit_name;      // empty: the row has no limit
  double limit = 0;
  double ratio = 0;   // value / limit
  double target = 0;  // what the ratio should reach (a rate) or not exceed (a latency); 0 = none
};

class BenchReport {
 public:
  explicit BenchReport(std::string name) : name_(std::move(name)) {}

  // Values and limits of interleaved rounds, as many of both.
  void AddRate(const std::string& name, std::vector<double> gigabytes_per_second,
               const std::string& limit_name, const std::vector<double>& limits, double target);
  void AddLatency(const std::string& name, std::vector<double> microseconds,
                  const std::string& limit_name, const std::vector<double>& limits, double target);
  // The same beside a limit that may be exceeded.
  void AddLooseRate(const std::string& name, std::vector<double> gigabytes_per_second,
                    const std::string& limit_name, const std::vector<double>& limits,
                    double target);
  void AddLooseLatency(const std::string& name, std::vector<double> microseconds,
                       const std::string& limit_name, const std::vector<double>& limits,
                       double target);
  void AddFact(const std::string& name, double value, const std::string& unit);
  // A fact beside what it is compared with.
  void AddFact(const std::string& name, double value, const std::string& unit,
               const std::string& limit_name, double limit);

  std::span<const BenchRow> rows() const { return rows_; }
  Json ToJson() const;
  std::string ToText() const;
  // FAILED_PRECONDITION naming each row whose limit cannot be one. Targets that were missed are
  // printed, not errors: machines are noisy.
  absl::Status Check() const;

 private:
  void Add(BenchRow::Kind kind, const std::string& name, std::vector<double> values,
           const std::string& limit_name, const std::vector<double>& limits, double target);

  const std::string name_;
  std::vector<BenchRow> rows_;
};

}  // namespace kvtier::cli
