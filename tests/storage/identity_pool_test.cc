#include "storage/identity_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "tests/support/seed.h"

namespace kvtier {
namespace {

constexpr size_t kChunk = size_t{64} << 10;

TEST(IdentityPoolTest, OneSizeLiesInARowAndInNoMoreLinesThanItMust) {
  IdentityPool pool;
  const std::string tokens(64, 't');
  const char* first = pool.Copy(tokens);
  const char* second = pool.Copy(tokens);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % 64, 0u);
  EXPECT_EQ(second, first + 64);
  pool.Free(first, 64);
  pool.Free(second, 64);
}

TEST(IdentityPoolTest, MemoryGoesBackWhenAChunkIsEmpty) {
  IdentityPool pool;
  std::vector<const char*> copies;
  for (int i = 0; i < 3000; ++i) copies.push_back(pool.Copy(std::string(64, 'x')));
  EXPECT_EQ(pool.memory_bytes(), 3 * kChunk);
  const char* longer = pool.Copy(std::string(5000, 'y'));
  EXPECT_EQ(pool.memory_bytes(), 3 * kChunk + 5000);
  pool.Free(longer, 5000);
  for (size_t i = 0; i + 1 < copies.size(); ++i) pool.Free(copies[i], 64);
  EXPECT_EQ(pool.memory_bytes(), kChunk);
  pool.Free(copies.back(), 64);
  EXPECT_EQ(pool.memory_bytes(), 0u);
}

TEST(IdentityPoolTest, CopiesStayAsTheyWereWhateverComesAndGoes) {
  std::mt19937_64 random(TestSeed());
  IdentityPool pool;
  std::vector<std::pair<const char*, std::string>> live;
  uint64_t most = 0;
  for (int step = 0; step < 40'000; ++step) {
    const bool take = random() % 100 < (step < 20'000 ? 60 : 40);
    if (take || live.empty()) {
      const size_t bytes = 1 + random() % (random() % 10 == 0 ? 3000 : 200);
      std::string identity(bytes, '\0');
      for (char& c : identity) c = static_cast<char>(random());
      const char* copy = pool.Copy(identity);
      live.emplace_back(copy, std::move(identity));
    } else {
      std::swap(live[random() % live.size()], live.back());
      EXPECT_EQ(std::string(live.back().first, live.back().second.size()), live.back().second);
      pool.Free(live.back().first, live.back().second.size());
      live.pop_back();
    }
    most = std::max(most, pool.memory_bytes());
  }
  EXPECT_GT(most, kChunk);
  for (const auto& [copy, identity] : live) {
    EXPECT_EQ(std::string(copy, identity.size()), identity);
    pool.Free(copy, identity.size());
  }
  EXPECT_EQ(pool.memory_bytes(), 0u);
}

}  // namespace
}  // namespace kvtier
