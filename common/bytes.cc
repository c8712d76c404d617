#include "common/bytes.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "absl/strings/ascii.h"

namespace kvtier {
namespace {

struct Unit {
  const char* name;  // lower case
  uint64_t bytes;
};
constexpr Unit kUnits[] = {
    {"", 1},
    {"b", 1},
    {"kib", 1ull << 10},
    {"mib", 1ull << 20},
    {"gib", 1ull << 30},
    {"tib", 1ull << 40},
    {"kb", 1000ull},
    {"mb", 1000000ull},
    {"gb", 1000000000ull},
    {"tb", 1000000000000ull},
};

}  // namespace

absl::StatusOr<uint64_t> ParseBytes(std::string_view text) {
  const absl::Status bad = absl::InvalidArgumentError(
      absl::StrCat("'", std::string(text),
                   "' is not a size: write bytes or a number with KiB, MiB, GiB or TiB"));
  const std::string trimmed(
      absl::StripAsciiWhitespace(absl::string_view(text.data(), text.size())));
  const size_t digits = trimmed.find_first_not_of("0123456789.");
  const std::string number = trimmed.substr(0, digits);
  std::string unit = digits == std::string::npos ? "" : trimmed.substr(digits);
  unit = absl::AsciiStrToLower(absl::StripAsciiWhitespace(unit));
  if (number.empty() || number == ".") return bad;
  uint64_t scale = 0;
  for (const Unit& candidate : kUnits) {
    if (unit == candidate.name) scale = candidate.bytes;
  }
  if (scale == 0) return bad;
  char* end = nullptr;
  if (number.find('.') == std::string::npos) {
    errno = 0;
    const unsigned long long whole = std::strtoull(number.c_str(), &end, 10);
    if (errno != 0 || whole > (uint64_t{1} << 63) / scale) return bad;
    return whole * scale;
  }
  const double value = std::strtod(number.c_str(), &end) * static_cast<double>(scale);
  if (*end != '\0' || !(value >= 0) || value > 9.2e18) return bad;
  return static_cast<uint64_t>(std::llround(value));
}

absl::StatusOr<uint64_t> ParseBytes(const std::string& field, std::string_view text) {
  const absl::StatusOr<uint64_t> bytes = ParseBytes(text);
  KVTIER_RETURN_IF_ERROR(Annotate(bytes.status(), field));
  return bytes;
}

std::string FormatBytes(uint64_t bytes) {
  static constexpr const char* kNames[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  int unit = 0;
  uint64_t scale = 1;
  while (unit < 5 && bytes / scale >= 1024) {
    scale <<= 10;
    ++unit;
  }
  if (bytes % scale == 0) return absl::StrCat(bytes / scale, kNames[unit]);
  const double value = static_cast<double>(bytes) / static_cast<double>(scale);
  char text[32];
  std::snprintf(text, sizeof(text), value < 999.5 ? "%.3g %s" : "%.0f %s", value, kNames[unit]);
  return text;
}

}  // namespace kvtier
