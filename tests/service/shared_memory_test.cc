// Sessions: who gets one, what they are handed, and what ends them.
#include "service/shared_memory.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "tests/support/open_files.h"
#include "tests/support/raw_shared_client.h"
#include "tests/support/temp_folder.h"

namespace kvtier {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

class SharedMemoryTest : public ::testing::Test {
 protected:
  static SharedMemoryOptions Options(const std::string& folder) {
    SharedMemoryOptions options;
    options.socket_path = folder + "/kvtier.shm.sock";
    options.max_sessions = 3;
    options.store_region_bytes = 4 * kMiB;
    return options;
  }
  RawSharedClient Join() { return RawSharedClient::Joined(shared_->socket_path()); }
  // The daemon's thread sees what clients do a moment later.
  template <typename F>
  void WaitUntil(F&& done) {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!done() && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
    EXPECT_TRUE(done());
  }
  void WaitForSessions(uint64_t sessions) {
    WaitUntil([&] { return shared_->stats().sessions == sessions; });
  }

  TempFolder folder_;
  const std::unique_ptr<SharedHostMemory> memory_ = MakeSharedHostMemory(64 * kMiB);
  std::unique_ptr<SharedMemory> shared_ =
      *SharedMemory::Start(Options(folder_.path()), memory_.get());
};

TEST_F(SharedMemoryTest, ASessionLastsAsLongAsItsConnection) {
  const OpenFiles before = CountOpenFiles();
  std::string id;
  {
    const RawSharedClient client = Join();
    id = client.session_id();
    EXPECT_EQ(id.size(), 16u);
    EXPECT_EQ(client.store().size(), 4 * kMiB);
    ASSERT_TRUE(shared_->Find(id).ok());
    std::string other = id;
    other[15] ^= 1;
    EXPECT_TRUE(absl::IsNotFound(shared_->Find(other).status()));
    EXPECT_TRUE(absl::IsNotFound(shared_->Find("").status()));
    EXPECT_NE(Join().session_id(), id);
  }
  WaitForSessions(0);
  EXPECT_TRUE(absl::IsNotFound(shared_->Find(id).status()));
  EXPECT_EQ(shared_->stats().sessions_total, 2u);
  EXPECT_EQ(CountOpenFiles().count, before.count);
}

TEST_F(SharedMemoryTest, TheStoreRegionIsTheClientsToWriteAndNothingElse) {
  const RawSharedClient client = Join();
  const std::shared_ptr<const StoreRegion> region = *shared_->Find(client.session_id());
  EXPECT_EQ(region->backed_bytes(), 0u);
  std::memset(client.store().data(), 0x5a, kMiB);
  EXPECT_EQ(region->bytes()[kMiB - 1], std::byte{0x5a});
  EXPECT_EQ(shared_->stats().store_bytes, kMiB);
  for (const off_t bytes : {off_t{0}, off_t{2 * kMiB}, off_t{8 * kMiB}}) {
    EXPECT_NE(ftruncate(client.store_fd(), bytes), 0);
    EXPECT_EQ(errno, EPERM);
  }
  EXPECT_NE(fcntl(client.store_fd(), F_ADD_SEALS, F_SEAL_WRITE), 0);
  // A hole is read as zeros, not as a fault.
  ASSERT_EQ(fallocate(client.store_fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, kMiB), 0);
  EXPECT_EQ(region->bytes()[kMiB - 1], std::byte{0});
}

TEST_F(SharedMemoryTest, AHeldStoreRegionOutlivesItsSession) {
  std::shared_ptr<const StoreRegion> region;
  {
    const RawSharedClient client = Join();
    region = *shared_->Find(client.session_id());
    client.store()[0] = std::byte{0x5a};
  }
  WaitForSessions(0);
  EXPECT_EQ(region->bytes()[0], std::byte{0x5a});
}

TEST_F(SharedMemoryTest, SessionsAreLimited) {
  const RawSharedClient first = Join();
  const RawSharedClient second = Join();
  {
    const RawSharedClient third = Join();
    RawSharedClient fourth(shared_->socket_path());
    fourth.ExpectClosed();
    WaitUntil([&] { return shared_->stats().refused_total == 1; });
    EXPECT_EQ(shared_->stats().sessions, 3u);
  }
  WaitForSessions(2);
  EXPECT_EQ(Join().store().size(), 4 * kMiB);
}

TEST_F(SharedMemoryTest, TheSocketIsPrivateUnlessOthersAreListed) {
  struct stat info {};
  ASSERT_EQ(stat(shared_->socket_path().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  shared_.reset();
  EXPECT_NE(stat((folder_.path() + "/kvtier.shm.sock").c_str(), &info), 0);
  SharedMemoryOptions options = Options(folder_.path());
  options.uids = {12345};
  shared_ = *SharedMemory::Start(options, memory_.get());
  ASSERT_EQ(stat(shared_->socket_path().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0666u);
  EXPECT_EQ(Join().store().size(), 4 * kMiB);
}

TEST_F(SharedMemoryTest, ALongPathIsRefusedWithItsLimit) {
  SharedMemoryOptions options = Options(folder_.path());
  options.socket_path = folder_.path() + "/" + std::string(120, 'x');
  const absl::Status refused = SharedMemory::Start(options, memory_.get()).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), testing::HasSubstr("107"));
}

TEST_F(SharedMemoryTest, HandsOutRegionsAndTellsWhenTheyAreRetired) {
  const Region region = *memory_->Allocate(kMiB);
  std::memset(region.base, 0x5a, kMiB);
  RawSharedClient client = Join();
  RawSharedClient other = Join();
  EXPECT_EQ(client.Map(region.id).size(), kMiB);
  EXPECT_EQ(client.Map(region.id)[kMiB - 1], std::byte{0x5a});
  EXPECT_EQ(shared_->stats().open_regions, 1u);
  EXPECT_TRUE(client.Map(region.id + 1).empty());
  EXPECT_TRUE(client.Map(0).empty());
  EXPECT_TRUE(client.Map(UINT64_MAX).empty());

  memory_->Free(region);
  client.WaitRetired(region.id);
  EXPECT_EQ(shared_->stats().open_regions, 0u);
  EXPECT_EQ(shared_->stats().retired_regions, 1u);
  EXPECT_EQ(shared_->stats().retired_bytes, kMiB);
  EXPECT_TRUE(other.Map(region.id).empty());
  // To say so is not enough.
  ASSERT_TRUE(client.SayReleased(region.id));
  EXPECT_TRUE(client.Map(region.id + 2).empty());  // it has been read
  EXPECT_EQ(shared_->stats().retired_bytes, kMiB);
  client.Unmap(region.id);
  EXPECT_EQ(shared_->stats().retired_bytes, 0u);
  EXPECT_EQ(CountOpenFiles().memfd_bytes, 0u);
}

TEST_F(SharedMemoryTest, WhatASessionGaveBackEarlyIsNotTold) {
  const Region kept = *memory_->Allocate(kMiB);
  const Region given_back = *memory_->Allocate(kMiB);
  RawSharedClient client = Join();
  client.Map(kept.id);
  client.Map(given_back.id);
  client.Unmap(given_back.id);
  ASSERT_TRUE(client.SayReleased(given_back.id));
  WaitUntil([&] { return shared_->stats().open_regions == 1; });
  memory_->Free(given_back);
  memory_->Free(kept);
  const std::optional<RawSharedClient::Packet> told = client.Receive();
  ASSERT_TRUE(told.has_value());
  EXPECT_THAT(told->message.retired().regions(), testing::ElementsAre(kept.id));
}

// A client that stands still holds what it holds, and nobody waits for it.
TEST_F(SharedMemoryTest, AFrozenClientHoldsUpNobody) {
  RawSharedClient frozen = Join();
  RawSharedClient client = Join();
  uint64_t last = 0;
  for (int i = 0; i < 2'000; ++i) {  // far more than its socket holds
    const Region region = *memory_->Allocate(4096);
    if (i < 50) frozen.Map(region.id);
    EXPECT_EQ(client.Map(region.id).size(), 4096u);
    client.Unmap(region.id);
    memory_->Free(region);
    client.WaitRetired(region.id);
    last = region.id;
  }
  EXPECT_EQ(shared_->stats().sessions, 2u);
  EXPECT_EQ(shared_->stats().retired_regions, 50u);
  EXPECT_TRUE(frozen.Map(last + 1).empty());  // it wakes up, and is served
  EXPECT_EQ(shared_->stats().cut_off_total, 0u);
}

class CutOffTest : public SharedMemoryTest {
 protected:
  void ExpectCutOff(RawSharedClient* client) {
    client->ExpectClosed();
    WaitForSessions(1);
    EXPECT_EQ(shared_->stats().cut_off_total, 1u);
    EXPECT_TRUE(absl::IsNotFound(shared_->Find(client->session_id()).status()));
    EXPECT_TRUE(honest_.Map(77).empty());  // others are served
  }

  RawSharedClient honest_ = Join();
  RawSharedClient client_ = Join();
};

TEST_F(CutOffTest, ForGarbage) {
  ASSERT_TRUE(client_.SendBytes("\xff\xff\xff"));
  ExpectCutOff(&client_);
}

TEST_F(CutOffTest, ForAPacketWithoutAKind) {
  ASSERT_TRUE(client_.SendBytes("\x78\x01"));  // field 15, unknown
  ExpectCutOff(&client_);
}

TEST_F(CutOffTest, ForAPacketThatIsTooLong) {
  v1::SharedMemoryRequest request;
  for (uint64_t i = 0; i < SharedMemory::kMaxPacketBytes; ++i) {
    request.mutable_released()->add_regions(1);
  }
  ASSERT_TRUE(client_.Send(request));
  ExpectCutOff(&client_);
}

TEST_F(CutOffTest, ForDescriptors) {
  const OpenFiles before = CountOpenFiles();
  v1::SharedMemoryRequest request;
  request.set_open_region(1);
  ASSERT_TRUE(client_.SendBytes(request.SerializeAsString(), STDERR_FILENO));
  ExpectCutOff(&client_);
  EXPECT_EQ(CountOpenFiles().count, before.count - 2);  // the session's socket and store region
}

TEST_F(CutOffTest, WhenItDoesNotReadItsAnswers) {
  while (client_.AskFor(1)) {
  }
  ExpectCutOff(&client_);
}

TEST_F(CutOffTest, ForAFlood) {
  for (uint64_t i = 0; client_.SayReleased(i); ++i) {
  }
  ExpectCutOff(&client_);
}

// The expected hit beside those: as many requests as a client may have unanswered.
TEST_F(CutOffTest, NotForWhatIsAllowed) {
  for (uint64_t i = 0; i < SharedMemory::kMaxUnanswered; ++i) ASSERT_TRUE(client_.AskFor(1000 + i));
  for (uint64_t i = 0; i < SharedMemory::kMaxUnanswered; ++i) {
    const std::optional<RawSharedClient::Packet> answer = client_.Receive();
    ASSERT_TRUE(answer.has_value());
    EXPECT_EQ(answer->message.region().region(), 1000 + i);
    EXPECT_FALSE(answer->fd);
  }
  EXPECT_EQ(shared_->stats().cut_off_total, 0u);
  EXPECT_EQ(shared_->stats().sessions, 2u);
}

}  // namespace
}  // namespace kvtier
