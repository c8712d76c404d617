#include "cli/progress_bar.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "cli/json_output.h"

namespace kvtier::cli {
namespace {

constexpr uint64_t kWidth = 40;
constexpr uint64_t kTenths = 10;
constexpr uint64_t kPercent = 100;

}  // namespace

ProgressBar::ProgressBar(std::string what, uint64_t total)
    : what_(std::move(what)),
      total_(total),
      terminal_(::isatty(STDERR_FILENO) != 0),
      draws_(terminal_ ? kPercent : kTenths) {}

ProgressBar::~ProgressBar() {
  if (terminal_ && done_ > 0) std::fputc('\n', stderr);
}

void ProgressBar::Step() {
  const uint64_t before = done_++ * draws_ / total_;
  if (done_ * draws_ / total_ > before) Draw();
}

void ProgressBar::Draw() const {
  const uint64_t full = std::min(done_, total_) * kWidth / total_;
  const std::string bar = std::string(full, '#') + std::string(kWidth - full, '.');
  std::fprintf(stderr, "%s%s [%s] %s of %s%s", terminal_ ? "\r" : "", what_.c_str(), bar.c_str(),
               WithCommas(done_).c_str(), WithCommas(total_).c_str(), terminal_ ? "" : "\n");
}

}  // namespace kvtier::cli
