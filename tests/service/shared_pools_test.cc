// A pool for each uid: what clients of one user store through shared memory others get by gRPC, and
// cannot map. Each client here is another user's by its connection: the kernel's word is what
// counts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <optional>
#include <set>
#include <string_view>

#include "tests/service/shared_calls.h"

namespace kvtier {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kPart = 10'000;
constexpr uid_t kUid = 1000;
constexpr uid_t kOtherUid = 1001;

std::vector<std::string> Payloads(uint64_t seed, uint32_t blocks) {
  std::vector<std::string> out;
  for (uint32_t i = 0; i < blocks; ++i) out.push_back(PayloadBytes(seed * 1000 + i, kPart));
  return out;
}

// A user's client: its session, and calls.
struct User {
  User(TestServer* server, uid_t uid)
      : client(server->address()),
        session(RawSharedClient::JoinedAs(server->shared_memory()->socket_path(), uid)) {}

  void Store(const v1::Prompt& prompt, const std::vector<std::string>& payloads) {
    calls.StoreAll(calls.StoreOf(prompt, 0, payloads));
  }
  SharedCalls::Fetched Fetch(const v1::Prompt& prompt, uint32_t blocks) {
    v1::FetchSharedRequest request = calls.FetchOf(client.Lease(prompt, 1000), 0, blocks);
    request.set_allow_gaps(true);
    return calls.Fetch(request);
  }

  ServiceClient client;
  RawSharedClient session;
  SharedCalls calls{&client, &session};
};

class SharedPoolsTest : public ::testing::Test {
 protected:
  static TestServerOptions Options(SharedMemoryPools pools) {
    TestServerOptions options;
    options.ram_bytes = kMiB;
    options.ssd_bytes = 64 * kMiB;
    options.shared_memory = true;
    options.shared.uids = {kUid, kOtherUid};
    options.shared.pools = pools;
    return options;
  }
  explicit SharedPoolsTest(SharedMemoryPools pools = SharedMemoryPools::kPerUid)
      : server_(Options(pools)) {}

  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "needs root to be somebody else";
    const std::string socket = server_.shared_memory()->socket_path();
    ASSERT_EQ(chmod(std::filesystem::path(socket).parent_path().c_str(), 0755), 0);
    one_.emplace(&server_, kUid);
    other_.emplace(&server_, kOtherUid);
    model_ = one_->client.Register("m", {kPart});
  }

  static void ExpectShared(const SharedCalls::Fetched& fetched,
                           const std::vector<std::string>& want) {
    ASSERT_TRUE(fetched.status.ok()) << fetched.status.error_message();
    ASSERT_EQ(fetched.bytes.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(fetched.bytes[i] == want[i]) << i;
  }
  static void ExpectNotShared(const SharedCalls::Fetched& fetched, size_t blocks) {
    ASSERT_TRUE(fetched.status.ok()) << fetched.status.error_message();
    ASSERT_EQ(fetched.blocks.size(), blocks);
    for (const v1::SharedBlock& block : fetched.blocks) {
      EXPECT_EQ(block.status(), v1::BLOCK_STATUS_NOT_SHARED);
      EXPECT_EQ(block.region(), 0u);
    }
  }
  static void ExpectByFetch(User* user, const v1::Prompt& prompt,
                            const std::vector<std::string>& want) {
    const ServiceClient::Fetched fetched =
        user->client.Fetch(FetchOf(prompt, 0, static_cast<uint32_t>(want.size())));
    ASSERT_EQ(fetched.blocks.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(fetched.blocks[i] == want[i]) << i;
  }
  void EndLeases() {
    server_.clock().Advance(std::chrono::seconds(1));
    server_.Tick();
  }
  // Twice what RAM has, so that all that was there before is on SSD alone.
  void PushOut(uint32_t seed) {
    EndLeases();
    for (uint32_t i = 0; i < 2; ++i) {
      one_->client.StoreAll(TokenPrompt(model_, seed + i, 100), 0, Payloads(seed + i, 100));
    }
  }

  TestServer server_;
  std::optional<User> one_;
  std::optional<User> other_;
  std::string model_;
};

TEST_F(SharedPoolsTest, EachMapsItsOwnAndFetchesTheRest) {
  const v1::Prompt prompts[] = {TokenPrompt(model_, 1, 10), TokenPrompt(model_, 2, 10)};
  one_->Store(prompts[0], Payloads(1, 10));
  other_->Store(prompts[1], Payloads(2, 10));
  const SharedCalls::Fetched mine = one_->Fetch(prompts[0], 10);
  ExpectShared(mine, Payloads(1, 10));
  ExpectShared(other_->Fetch(prompts[1], 10), Payloads(2, 10));
  EXPECT_EQ(server_.shared_memory()->stats().not_shared_blocks, 0u);

  const uint64_t counted = server_.manager().stats().fetched_blocks;
  ExpectNotShared(other_->Fetch(prompts[0], 10), 10);
  ExpectNotShared(one_->Fetch(prompts[1], 10), 10);
  EXPECT_EQ(server_.shared_memory()->stats().not_shared_blocks, 20u);
  EXPECT_EQ(server_.manager().stats().fetched_blocks, counted);  // Fetch counts them
  ExpectByFetch(&*other_, prompts[0], Payloads(1, 10));
  ExpectByFetch(&*one_, prompts[1], Payloads(2, 10));

  const uint64_t region = mine.blocks[0].region();
  EXPECT_FALSE(one_->session.Map(region).empty());
  EXPECT_TRUE(other_->session.Map(region).empty());
}

// To guess is no help: every number that a region may have.
TEST_F(SharedPoolsTest, NobodyOpensAnothersRegions) {
  one_->Store(TokenPrompt(model_, 1, 10), Payloads(1, 10));
  other_->Store(TokenPrompt(model_, 2, 10), Payloads(2, 10));
  one_->client.StoreAll(TokenPrompt(model_, 3, 10), 0, Payloads(3, 10));  // over gRPC
  const auto opened = [](User* user) {
    std::set<uint64_t> out;
    for (uint64_t region = 0; region < 64; ++region) {
      if (!user->session.Map(region).empty()) out.insert(region);
    }
    return out;
  };
  EXPECT_EQ(opened(&*one_).size(), 2u);  // of 64 KiB, for 100,000 bytes
  EXPECT_EQ(opened(&*other_).size(), 2u);
  for (const uint64_t region : opened(&*one_)) EXPECT_FALSE(opened(&*other_).contains(region));
}

TEST_F(SharedPoolsTest, TwoClientsOfAUserShareItsPool) {
  const v1::Prompt prompt = TokenPrompt(model_, 1, 10);
  one_->Store(prompt, Payloads(1, 10));
  ExpectShared(User(&server_, kUid).Fetch(prompt, 10), Payloads(1, 10));
  ExpectNotShared(User(&server_, 0).Fetch(prompt, 10), 10);  // root's pool is one of them
}

TEST_F(SharedPoolsTest, WhatCameOverGrpcIsNobodys) {
  const v1::Prompt prompt = TokenPrompt(model_, 1, 10);
  one_->client.StoreAll(prompt, 0, Payloads(1, 10));
  ExpectNotShared(one_->Fetch(prompt, 10), 10);
  ExpectByFetch(&*one_, prompt, Payloads(1, 10));
  // It stays where it is, whoever stores it again.
  v1::StoreResponse response;
  ASSERT_TRUE(one_->calls.Send(one_->calls.StoreOf(prompt, 0, Payloads(1, 10)), &response).ok());
  EXPECT_EQ(response.outcomes(0).status(), v1::STORE_STATUS_ALREADY_PRESENT);
  ExpectNotShared(one_->Fetch(prompt, 10), 10);
}

// Whoever has a block read from SSD has it in its pool, whoever stored it.
TEST_F(SharedPoolsTest, WhatIsReadFromSsdIsItsReaders) {
  const v1::Prompt prompt = TokenPrompt(model_, 1, 10);
  one_->Store(prompt, Payloads(1, 10));
  PushOut(10);
  ExpectShared(other_->Fetch(prompt, 10), Payloads(1, 10));
  ExpectNotShared(one_->Fetch(prompt, 10), 10);
  PushOut(20);
  ExpectShared(one_->Fetch(prompt, 10), Payloads(1, 10));
  PushOut(30);
  ExpectByFetch(&*one_, prompt, Payloads(1, 10));  // gRPC does not say whose it is
  ExpectNotShared(one_->Fetch(prompt, 10), 10);
}

// One LRU and one capacity: memory goes from user to user as they store, and what the one still has
// mapped shows nothing of the other's.
TEST_F(SharedPoolsTest, MemoryThatChangesHandsShowsNothing) {
  std::set<uint64_t> mapped;
  for (uint32_t round = 0; round < 6; ++round) {
    User* const user = round % 2 == 0 ? &*one_ : &*other_;
    const v1::Prompt prompt = TokenPrompt(model_, 100 + round, 60);
    const std::vector<std::string> payloads(60, std::string(kPart, static_cast<char>('A' + round)));
    user->Store(prompt, payloads);
    const SharedCalls::Fetched fetched = user->Fetch(prompt, 60);
    ExpectShared(fetched, payloads);
    for (const v1::SharedBlock& block : fetched.blocks) {
      if (user == &*one_) mapped.insert(block.region());
    }
    EndLeases();
    for (const uint64_t region : mapped) {
      const std::span<const std::byte> bytes = one_->session.Map(region);
      for (const char foreign : {'B', 'D', 'F'}) {
        const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
        EXPECT_EQ(text.find(std::string(16, foreign)), std::string_view::npos) << "round " << round;
      }
    }
  }
  EXPECT_GT(server_.shared_memory()->stats().retired_regions, 0u);
}

class OneSharedPoolTest : public SharedPoolsTest {
 protected:
  OneSharedPoolTest() : SharedPoolsTest(SharedMemoryPools::kOne) {}
};

// What the tests above rest on.
TEST_F(OneSharedPoolTest, IsEverybodys) {
  const v1::Prompt prompt = TokenPrompt(model_, 1, 10);
  one_->Store(prompt, Payloads(1, 10));
  const SharedCalls::Fetched theirs = other_->Fetch(prompt, 10);
  ExpectShared(theirs, Payloads(1, 10));
  EXPECT_FALSE(one_->session.Map(theirs.blocks[0].region()).empty());
  const v1::Prompt over_grpc = TokenPrompt(model_, 2, 10);
  one_->client.StoreAll(over_grpc, 0, Payloads(2, 10));
  ExpectShared(other_->Fetch(over_grpc, 10), Payloads(2, 10));
}

}  // namespace
}  // namespace kvtier
