// The workers of a row, each on a thread of its own, and what they do by turns.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cli/bench_setup.h"
#include "common/executor.h"
#include "common/mutex.h"
#include "common/status.h"

namespace kvtier::cli {

// Each worker moves bytes() of payload in one go.
template <typename Worker>
class Crew {
 public:
  using Work = std::function<absl::Status(Worker&)>;

  explicit Crew(std::vector<std::unique_ptr<Worker>> workers)
      : workers_(std::move(workers)), pool_(static_cast<int>(workers_.size())) {}

  // All do it at the same time; seconds from the first start to the last end.
  absl::StatusOr<double> Seconds(const Work& work) {
    const auto start = std::chrono::steady_clock::now();
    for (const std::unique_ptr<Worker>& worker : workers_) {
      pool_.Run([this, &work, &worker] { Done(work(*worker)); });
    }
    const absl::Status status = WaitForAll();
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    KVTIER_RETURN_IF_ERROR(status);
    return taken.count();
  }
  // GB/s of all together.
  absl::StatusOr<double> Rate(const Work& work) {
    KVTIER_ASSIGN_OR_RETURN(const double seconds, Seconds(work));
    return static_cast<double>(first().bytes() * workers_.size()) / seconds / 1e9;
  }
  absl::Status Do(const Work& work) { return Seconds(work).status(); }

  Worker& first() { return *workers_.front(); }

 private:
  void Done(const absl::Status& status) {
    MutexLock lock(mutex_);
    ++done_;
    status_.Update(status);
    all_done_.NotifyOne();
  }
  absl::Status WaitForAll() {
    MutexLock lock(mutex_);
    while (done_ < workers_.size()) all_done_.Wait(mutex_);
    done_ = 0;
    return std::exchange(status_, absl::OkStatus());
  }

  const std::vector<std::unique_ptr<Worker>> workers_;
  Mutex mutex_;
  CondVar all_done_;
  size_t done_ KVTIER_GUARDED_BY(mutex_) = 0;
  absl::Status status_ KVTIER_GUARDED_BY(mutex_);
  ThreadPool pool_;  // last: its threads end first
};

// One thing that is measured; says how much.
struct Arm {
  std::function<absl::StatusOr<double>()> measure;
  std::vector<double> figures = {};  // of each round
};

// All arms by turns, so that a slow phase of the machine meets all of them; the first round warms
// up.
absl::Status RunArms(const BenchSetup& setup, const std::function<absl::Status()>& before_round,
                     std::vector<Arm>* arms);

}  // namespace kvtier::cli
