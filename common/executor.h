// The only maker of threads besides gRPC.
#pragma once

#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "common/clock.h"
#include "common/mutex.h"

namespace kvtier {

// Thread-safe. Tasks may block (they do the tiers' I/O) and may add tasks.
class Executor {
 public:
  virtual ~Executor() = default;
  virtual void Run(std::function<void()> task) = 0;
  // For who is about to wait for a task: an executor without threads of its own runs the oldest on
  // the caller's, and says true.
  virtual bool RunOne() { return false; }
};

// At most so many threads over one queue, each started when a task finds the others at work; fewer
// when the system gives no more. The destructor finishes what was queued.
class ThreadPool final : public Executor {
 public:
  explicit ThreadPool(int max_threads) : max_threads_(static_cast<size_t>(max_threads)) {}
  ~ThreadPool() override;
  void Run(std::function<void()> task) override;
  // Returns at a moment when nothing is queued or running.
  void WaitIdle();

 private:
  void AddThread() KVTIER_REQUIRES(mutex_);
  void Work();

  const size_t max_threads_;
  Mutex mutex_;
  CondVar wake_;
  CondVar idle_;
  size_t running_ KVTIER_GUARDED_BY(mutex_) = 0;
  std::deque<std::function<void()>> tasks_ KVTIER_GUARDED_BY(mutex_);
  bool stopping_ KVTIER_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_ KVTIER_GUARDED_BY(mutex_);
};

// Queues until the test says when: RunOne runs the oldest task on the caller's thread.
class ManualExecutor final : public Executor {
 public:
  void Run(std::function<void()> task) override;
  bool RunOne() override;  // false when nothing was queued
  void RunAll();

 private:
  Mutex mutex_;
  std::deque<std::function<void()>> tasks_ KVTIER_GUARDED_BY(mutex_);
};

// Calls `task` every `period` of real time on a thread of its own, until destroyed.
class Ticker {
 public:
  Ticker(Duration period, std::function<void()> task);
  ~Ticker();

 private:
  const Duration period_;
  const std::function<void()> task_;
  Mutex mutex_;
  CondVar wake_;
  bool stopping_ KVTIER_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace kvtier
