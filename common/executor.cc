#include "common/executor.h"

#include <system_error>
#include <utility>

namespace kvtier {

ThreadPool::~ThreadPool() {
  std::vector<std::thread> threads;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    threads.swap(threads_);
  }
  wake_.NotifyAll();
  for (std::thread& thread : threads) thread.join();
}

void ThreadPool::Run(std::function<void()> task) {
  {
    MutexLock lock(mutex_);
    tasks_.push_back(std::move(task));
    if (!stopping_ && threads_.size() < max_threads_ &&
        running_ + tasks_.size() > threads_.size()) {
      AddThread();
    }
  }
  wake_.NotifyOne();
}

// The task is queued by now, so whoever asked for it must not hear of a failure.
void ThreadPool::AddThread() {
  try {
    threads_.emplace_back([this] { Work(); });
  } catch (const std::system_error&) {
    if (threads_.empty()) throw;
  }
}

void ThreadPool::Work() {
  while (true) {
    std::function<void()> task;
    {
      MutexLock lock(mutex_);
      while (tasks_.empty() && !stopping_) wake_.Wait(mutex_);
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
      ++running_;
    }
    task();
    task = nullptr;  // what it holds goes before the pool calls itself idle
    MutexLock lock(mutex_);
    if (--running_ == 0 && tasks_.empty()) idle_.NotifyAll();
  }
}

void ThreadPool::WaitIdle() {
  MutexLock lock(mutex_);
  while (running_ > 0 || !tasks_.empty()) idle_.Wait(mutex_);
}

void ManualExecutor::Run(std::function<void()> task) {
  MutexLock lock(mutex_);
  tasks_.push_back(std::move(task));
}

bool ManualExecutor::RunOne() {
  std::function<void()> task;
  {
    MutexLock lock(mutex_);
    if (tasks_.empty()) return false;
    task = std::move(tasks_.front());
    tasks_.pop_front();
  }
  task();
  return true;
}

void ManualExecutor::RunAll() {
  while (RunOne()) {
  }
}

Ticker::Ticker(Duration period, std::function<void()> task)
    : period_(period), task_(std::move(task)) {
  thread_ = std::thread([this] {
    while (true) {
      {
        MutexLock lock(mutex_);
        if (!stopping_) wake_.WaitFor(mutex_, period_);
        if (stopping_) return;
      }
      task_();
    }
  });
}

Ticker::~Ticker() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  wake_.NotifyAll();
  thread_.join();
}

}  // namespace kvtier
