#include "cli/report/scale.h"

#include <cmath>
#include <cstdio>

#include "cli/json_output.h"
#include "common/check.h"

namespace kvtier::cli {
namespace {

constexpr double kFew = 1e-9;  // ends that arithmetic moved by less still lie on their tick

// The least of 1, 2 and 5 times a power of ten that is not much below `least`.
double NiceStep(double least) {
  const double power = std::pow(10, std::floor(std::log10(least)));
  for (const double step : {1.0, 2.0, 5.0}) {
    if (step * power >= 0.75 * least) return step * power;
  }
  return 10 * power;
}

std::string Significant(double value, int digits) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.*g", digits, value);
  return text;
}

}  // namespace

Scale Scale::Linear(double low, double high, Ends ends) {
  KVTIER_CHECK(std::isfinite(low) && std::isfinite(high) && low <= high);
  if (high == low) high = low + 1;
  const double step = NiceStep((high - low) / 5);
  Scale scale;
  scale.low_ = ends == Ends::kExact ? low : std::floor(low / step + kFew) * step;
  scale.high_ = ends == Ends::kExact ? high : std::ceil(high / step - kFew) * step;
  const double last = std::floor(scale.high_ / step + kFew);
  for (double i = std::ceil(scale.low_ / step - kFew); i <= last; ++i) {
    scale.ticks_.push_back({i * step + 0.0, true});  // + 0: there is no -0
  }
  return scale;
}

Scale Scale::Log(double low, double high) {
  KVTIER_CHECK(std::isfinite(high) && 0 < low && low <= high);
  const double margin = low == high ? 2 : 1.12;
  Scale scale;
  scale.log_ = true;
  scale.low_ = low / margin;
  scale.high_ = high * margin;
  constexpr int kMostNamed = 9;
  for (double power = std::pow(10, std::floor(std::log10(scale.low_))); power <= scale.high_;
       power *= 10) {
    for (const double step : {1.0, 2.0, 5.0}) {
      const double value = step * power;
      if (value >= scale.low_ && value <= scale.high_) scale.ticks_.push_back({value, true});
    }
  }
  if (scale.ticks_.size() > kMostNamed) {
    for (Tick& tick : scale.ticks_) {
      const double exponent = std::log10(tick.value);
      tick.named = std::abs(exponent - std::round(exponent)) < kFew;
    }
  }
  return scale;
}

double Scale::At(double value) const {
  if (log_) return std::log(value / low_) / std::log(high_ / low_);
  return (value - low_) / (high_ - low_);
}

std::string ShortNumber(double value) { return Significant(value, 4); }

std::string ShortCount(double value) {
  if (value >= 1e6) return Significant(value / 1e6, 4) + "M";
  if (value >= 1e4) return Significant(value / 1e3, 4) + "k";
  return value == std::floor(value) ? WithCommas(static_cast<uint64_t>(value))
                                    : Significant(value, 4);
}

std::string ShortMicroseconds(double us) {
  if (us >= 1e6) return Significant(us / 1e6, 3) + " s";
  if (us >= 1e3) return Significant(us / 1e3, 3) + " ms";
  return Significant(us, 3) + " \xC2\xB5s";
}

}  // namespace kvtier::cli
