// How every command answers: a table for people, or with --json exactly one document on stdout.
// What is not the answer (progress, errors, hints) goes to stderr.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"

namespace kvtier::cli {

using Json = nlohmann::ordered_json;  // keys come out in the order they were put in

// Not thread-safe but for Progress.
class Output {
 public:
  explicit Output(bool json) : json_(json) {}

  bool json() const { return json_; }
  // The command's answer, once: the document with --json, else the text.
  void Print(const Json& document, std::string_view text);
  // One line on stderr.
  void Progress(std::string_view line) const;
  // Ends the program's output: the error goes to stderr, and with --json it becomes the document
  // {"error": {"code", "message"}} unless the command has printed one. Returns the exit status: 0
  // only for OK.
  int Finish(const absl::Status& status);

 private:
  const bool json_;
  bool printed_ = false;
};

// Columns separated by two spaces and as wide as their widest cell; the first column is
// left-aligned, the others right. Rows may differ in length. Each row ends with a newline.
class Table {
 public:
  Table& Row(std::vector<std::string> cells);
  std::string ToString() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

std::string WithCommas(uint64_t value);         // "1,048,576"
std::string Fixed(double value, int decimals);  // "0.366"
std::string Milliseconds(double seconds);       // "0.12 ms"

}  // namespace kvtier::cli
