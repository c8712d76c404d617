#include "cli/bench_crew.h"

namespace kvtier::cli {

absl::Status RunArms(const BenchSetup& setup, const std::function<absl::Status()>& before_round,
                     std::vector<Arm>* arms) {
  for (int round = -1; round < setup.options().rounds; ++round) {
    KVTIER_RETURN_IF_ERROR(before_round());
    for (Arm& arm : *arms) {
      KVTIER_ASSIGN_OR_RETURN(const double figure, arm.measure());
      if (round >= 0) arm.figures.push_back(figure);
    }
    setup.output().Progress(
        absl::StrCat("bench: round ", round + 1, " of ", setup.options().rounds));
  }
  return absl::OkStatus();
}

}  // namespace kvtier::cli
