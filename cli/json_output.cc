#include "cli/json_output.h"

#include <algorithm>
#include <cstdio>

#include "common/check.h"

namespace kvtier::cli {
namespace {

std::string Dump(const Json& document) {
  // Bytes that are no UTF-8 (a model's name may hold any) are replaced: dump would throw otherwise.
  return document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace

void Output::Print(const Json& document, std::string_view text) {
  KVTIER_CHECK(!printed_);
  printed_ = true;
  const std::string out = json_ ? Dump(document) : std::string(text);
  std::fwrite(out.data(), 1, out.size(), stdout);
  std::fflush(stdout);
}

void Output::Progress(std::string_view line) const {
  const std::string out = std::string(line) + "\n";
  std::fwrite(out.data(), 1, out.size(), stderr);
}

int Output::Finish(const absl::Status& status) {
  const bool written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (status.ok()) {
    if (!written) Progress("kvtier: cannot write to standard output");
    return written ? 0 : 1;
  }
  const std::string message(status.message());
  Progress("kvtier: " + message);
  if (json_ && !printed_) {
    const std::string code = absl::StatusCodeToString(status.code());
    Print({{"error", {{"code", code}, {"message", message}}}}, "");
  }
  return 1;
}

Table& Table::Row(std::vector<std::string> cells) {
  rows_.push_back(std::move(cells));
  return *this;
}

std::string Table::ToString() const {
  std::vector<size_t> widths;
  for (const auto& row : rows_) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string out;
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string padding(widths[i] - row[i].size(), ' ');
      if (i > 0) out += "  ";
      if (i > 0) out += padding;
      out += row[i];
      if (i == 0 && row.size() > 1) out += padding;
    }
    out += "\n";
  }
  return out;
}

std::string WithCommas(uint64_t value) {
  std::string digits = std::to_string(value);
  for (int at = static_cast<int>(digits.size()) - 3; at > 0; at -= 3) digits.insert(at, 1, ',');
  return digits;
}

std::string Fixed(double value, int decimals) {
  char text[350];  // the longest double has 309 digits before the point
  std::snprintf(text, sizeof(text), "%.*f", decimals, value);
  return text;
}

std::string Milliseconds(double seconds) { return Fixed(seconds * 1e3, 2) + " ms"; }

}  // namespace kvtier::cli
