#include "common/executor.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include "common/mutex.h"

namespace kvtier {
namespace {

// While it is there no thread can be made: none gets a stack as large as the address space.
class NoMoreThreads {
 public:
  NoMoreThreads() {
    EXPECT_EQ(pthread_getattr_default_np(&former_), 0);
    pthread_attr_t attributes = {};
    EXPECT_EQ(pthread_attr_init(&attributes), 0);
    EXPECT_EQ(pthread_attr_setstacksize(&attributes, size_t{1} << 60), 0);
    EXPECT_EQ(pthread_setattr_default_np(&attributes), 0);
    pthread_attr_destroy(&attributes);
  }
  ~NoMoreThreads() {
    EXPECT_EQ(pthread_setattr_default_np(&former_), 0);
    pthread_attr_destroy(&former_);
  }
  NoMoreThreads(const NoMoreThreads&) = delete;
  NoMoreThreads& operator=(const NoMoreThreads&) = delete;

 private:
  pthread_attr_t former_ = {};
};

TEST(ThreadPool, GoesOnWithTheThreadsThatAreThere) {
  Mutex mutex;
  CondVar opened;
  bool open = false;
  bool done = false;
  ThreadPool pool(2);
  pool.Run([&] {
    MutexLock lock(mutex);
    while (!open) opened.Wait(mutex);
  });
  {
    const NoMoreThreads none;
    EXPECT_NO_THROW(pool.Run([&] { done = true; }));
  }
  {
    MutexLock lock(mutex);
    open = true;
    opened.NotifyAll();
  }
  pool.WaitIdle();
  EXPECT_TRUE(done);
}

}  // namespace
}  // namespace kvtier
