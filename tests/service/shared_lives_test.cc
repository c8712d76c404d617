// Clients of shared memory that live, and that are killed in the middle of whatever they do: what
// they had comes back by itself, and nobody gets a foreign byte.
//
// Seeded (KVTIER_SEED). KVTIER_SHARED_LIVES=N for a longer run; 60 by default.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <random>
#include <thread>

#include "tests/service/shared_calls.h"
#include "tests/support/open_files.h"
#include "tests/support/seed.h"

extern char** environ;

namespace kvtier {
namespace {

constexpr uint64_t kMiB = 1 << 20;

uint64_t Lives() {
  const char* given = std::getenv("KVTIER_SHARED_LIVES");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : 60;
}

TestServerOptions Options() {
  TestServerOptions options;
  options.ram_bytes = 16 * kMiB;
  options.shared_memory = true;
  options.shared.store_region_bytes = kMiB;
  return options;
}

// One life: tests/service/shared_life.cc. It writes a byte to its output after each step.
class Life {
 public:
  Life(const TestServer& server, const std::string& socket, uint64_t seed) {
    int ends[2];
    KVTIER_CHECK(pipe2(ends, O_CLOEXEC) == 0);
    steps_ = UniqueFd(ends[0]);
    const UniqueFd out(ends[1]);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, out.get(), STDOUT_FILENO);
    std::string program = KVTIER_SHARED_LIFE;
    std::string address = server.address();
    std::string path = socket;
    std::string number = std::to_string(seed);
    char* argv[] = {program.data(), address.data(), path.data(), number.data(), nullptr};
    KVTIER_CHECK(posix_spawn(&pid_, program.c_str(), &actions, nullptr, argv, environ) == 0);
    posix_spawn_file_actions_destroy(&actions);
  }
  // False when it ended before it took so many.
  bool WaitForSteps(uint64_t steps) {
    char byte;
    while (steps > 0 && read(steps_.get(), &byte, 1) == 1) --steps;
    return steps == 0;
  }
  void Signal(int signal) { kill(pid_, signal); }
  int Wait() {
    int status = 0;
    KVTIER_CHECK(waitpid(pid_, &status, 0) == pid_);
    return status;
  }

 private:
  pid_t pid_ = -1;
  UniqueFd steps_;
};

class SharedLivesTest : public ::testing::Test {
 protected:
  Life Start(uint64_t seed) { return Life(server_, server_.shared_memory()->socket_path(), seed); }
  template <typename F>
  void WaitUntil(F&& done) {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!done() && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
    EXPECT_TRUE(done());
  }
  // Nothing is left of any client, once its leases have ended.
  void ExpectNothingLeft() {
    WaitUntil([&] { return server_.shared_memory()->stats().sessions == 0; });
    EXPECT_TRUE(server_.registry().WaitIdle(std::chrono::seconds(30)));
    server_.clock().Advance(std::chrono::minutes(10));
    server_.Tick();
    const ManagerStats stats = server_.manager().stats();
    EXPECT_EQ(stats.leases, 0u);
    WaitUntil([&] { return server_.manager().stats().pinned_blocks == 0; });
    EXPECT_EQ(server_.shared_memory()->stats().retired_bytes, 0u);
    EXPECT_EQ(server_.shared_memory()->stats().store_bytes, 0u);
    EXPECT_EQ(CountOpenFiles().memfd_bytes,
              server_.manager().stats().tiers[static_cast<int>(TierKind::kRam)].usage.backed_bytes);
    server_.manager().CheckInvariants();
  }

  TestServer server_{Options()};
};

TEST_F(SharedLivesTest, ThreeInTenAreKilled) {
  std::mt19937_64 random(TestSeed());
  {
    Life first = Start(random());  // gRPC takes its descriptors
    EXPECT_EQ(first.Wait(), 0);
  }
  ExpectNothingLeft();
  const OpenFiles before = CountOpenFiles();
  const uint64_t lives = Lives();
  uint64_t killed = 0;
  for (uint64_t i = 0; i < lives; ++i) {
    Life life = Start(random());
    if (random() % 10 >= 3) {
      EXPECT_EQ(life.Wait(), 0) << "life " << i;
      continue;
    }
    if (life.WaitForSteps(random() % 20)) ++killed;
    life.Signal(SIGKILL);
    life.Wait();
  }
  EXPECT_GT(killed, lives / 10);
  ExpectNothingLeft();
  // Of its memory there are as many as the pool has extents by now. Connections go a moment later.
  WaitUntil([&] {
    const OpenFiles now = CountOpenFiles();
    return now.count - now.memfds <= before.count - before.memfds;
  });
}

// A client that stands still does not hold up the others, nor a shrink; what it has mapped is shown
// until it is gone.
TEST_F(SharedLivesTest, AFrozenOneHoldsWhatItHasAndNoMore) {
  Life frozen = Start(1);
  ASSERT_TRUE(frozen.WaitForSteps(4));  // it has regions mapped
  frozen.Signal(SIGSTOP);
  EXPECT_EQ(Start(2).Wait(), 0);
  server_.clock().Advance(std::chrono::minutes(10));
  server_.Tick();
  ASSERT_TRUE(server_.registry().WaitIdle(std::chrono::seconds(30)));
  constexpr uint64_t kNoExtent = 64 << 10;  // smaller than any of them
  ASSERT_TRUE(server_.manager().SetCapacity(TierKind::kRam, kNoExtent).ok());
  EXPECT_LE(server_.manager().stats().tiers[1].usage.backed_bytes, kNoExtent);
  EXPECT_EQ(server_.shared_memory()->stats().sessions, 1u);
  EXPECT_GT(server_.shared_memory()->stats().retired_bytes, 0u);
  frozen.Signal(SIGKILL);
  frozen.Wait();
  WaitUntil([&] { return server_.shared_memory()->stats().retired_bytes == 0; });
  ExpectNothingLeft();
}

}  // namespace
}  // namespace kvtier
