// How far a long command is, on stderr: one line drawn over on a terminal, else a line per tenth.
#pragma once

#include <cstdint>
#include <string>

namespace kvtier::cli {

// Not thread-safe.
class ProgressBar {
 public:
  ProgressBar(std::string what, uint64_t total);
  ~ProgressBar();  // ends the line
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  void Step();

 private:
  void Draw() const;

  const std::string what_;
  const uint64_t total_;
  const bool terminal_;
  const uint64_t draws_;  // in all
  uint64_t done_ = 0;
};

}  // namespace kvtier::cli
