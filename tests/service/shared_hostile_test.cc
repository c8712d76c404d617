// A client that may map memory and does its worst: garbage on its socket, calls with wrong offsets,
// sessions, counts and replays, attempts to resize what it was handed, a store region that changes
// while it is read. Nobody else's bytes are read or written, and the daemon serves on.
//
// Seeded (KVTIER_SEED). KVTIER_HOSTILE_STEPS=N for a longer run; 1,500 by default.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <random>

#include "common/block_key.h"
#include "common/executor.h"
#include "tests/service/shared_calls.h"
#include "tests/support/seed.h"

namespace kvtier {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kPart = 50'000;
constexpr uint64_t kRegion = kMiB;
constexpr uint32_t kLines = (kRegion - StoreRing::kRingOffset) / StoreRing::kLine;
constexpr uint32_t kBlocks = 8;

uint64_t Steps() {
  const char* given = std::getenv("KVTIER_HOSTILE_STEPS");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : 1'500;
}

TestServerOptions Options() {
  TestServerOptions options;
  options.ram_bytes = 16 * kMiB;
  options.shared_memory = true;
  options.shared.store_region_bytes = kRegion;
  return options;
}

// Writes to the region without a pause, on a thread of its own, until it is gone; and says, truly
// or not, how much is filled in.
class Mutator {
 public:
  Mutator(std::span<std::byte> region, uint64_t seed) {
    thread_.Run([this, region, seed] {
      std::mt19937_64 random(seed);
      while (!stop_.load()) {
        const uint64_t at = random() % region.size();
        region[at] = static_cast<std::byte>(random());
        std::memset(region.data() + at, static_cast<int>(at),
                    std::min<size_t>(64, region.size() - at));
        SharedCounter filled(region.data());
        const uint32_t taken = SharedCounter(region.data() + StoreRing::kLine).Get();
        filled.Set(taken + static_cast<uint32_t>(random() % (kLines + kLines / 1000)));
      }
    });
  }
  ~Mutator() {
    stop_.store(true);
    thread_.WaitIdle();
  }

 private:
  std::atomic<bool> stop_{false};
  ThreadPool thread_{1};
};

class HostileClient {
 public:
  HostileClient(TestServer* server, ServiceClient* client, const std::string& model,
                std::mt19937_64* random)
      : server_(server), client_(client), model_(model), random_(random) {}

  void Step() {
    switch (Below(8)) {
      case 0:
        Join();
        break;
      case 1:
        SendPacket();
        break;
      case 2:
        Meddle();
        break;
      case 3:
      case 4:
        FetchSomething();
        break;
      default:
        StoreSomething();
    }
  }
  uint64_t stored() const { return stored_; }
  uint64_t refused() const { return refused_; }

 private:
  uint64_t Below(uint64_t limit) { return (*random_)() % limit; }
  std::string Bytes(uint64_t count) {
    std::string out(count, '\0');
    for (char& c : out) c = static_cast<char>((*random_)());
    return out;
  }
  // Often at an edge.
  uint64_t Number() {
    const uint64_t edges[] = {0,          1,           kRegion - kPart,   kRegion - kPart + 1,
                              kRegion,    kRegion + 1, UINT64_MAX,        UINT64_MAX - kPart + 1,
                              UINT32_MAX, kPart,       uint64_t{1} << 63, Below(kRegion)};
    return edges[Below(std::size(edges))];
  }

  void Join() {
    mutator_.reset();
    session_.emplace(RawSharedClient::Joined(server_->shared_memory()->socket_path()));
    mutator_.emplace(session_->store(), (*random_)());
  }
  std::string SessionId() {
    if (!session_ || Below(8) == 0) return Bytes(Below(3) == 0 ? Below(40) : 16);
    std::string id = session_->session_id();
    if (Below(8) == 0) id[Below(16)] ^= static_cast<char>(1 << Below(8));
    return id;
  }

  void SendPacket() {
    if (!session_) return;
    v1::SharedMemoryRequest request;
    switch (Below(4)) {
      case 0:
        session_->SendBytes(Bytes(1 + Below(200)));
        return;
      case 1:
        session_->SendBytes(Bytes(1 + Below(20)), session_->store_fd());
        return;
      case 2:
        request.set_open_region(Below(2) == 0 ? Below(100) : Number());
        break;
      default:
        for (uint64_t i = Below(50); i > 0; --i) request.mutable_released()->add_regions(Number());
    }
    session_->Send(request);
  }

  // With what it was handed.
  void Meddle() {
    if (!session_) return;
    const int fd = session_->store_fd();
    EXPECT_NE(ftruncate(fd, static_cast<off_t>(Below(2) == 0 ? 0 : kRegion * 2)), 0);
    EXPECT_NE(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), 0);
    fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(Below(kRegion)),
              4096);
  }

  void FetchSomething() {
    v1::FetchSharedRequest request;
    request.set_session_id(SessionId());
    const v1::Prompt prompt = TokenPrompt(model_, static_cast<uint32_t>(Below(20)), kBlocks);
    request.set_lease_id(Below(2) == 0 ? client_->Lease(prompt, 1) : Number());
    request.set_first_block(static_cast<uint32_t>(Below(3) == 0 ? Number() : 0));
    request.set_last_block(static_cast<uint32_t>(Below(3) == 0 ? Number() : kBlocks));
    request.set_allow_gaps(Below(2) == 0);
    grpc::ClientContext context;
    const auto stream = client_->stub().FetchShared(&context, request);
    v1::FetchSharedResponse response;
    while (stream->Read(&response)) {
    }
    refused_ += !stream->Finish().ok();
    server_->clock().Advance(std::chrono::milliseconds(2));
    server_->Tick();
  }

  void StoreSomething() {
    v1::StoreSharedRequest request = last_;
    if (Below(4) > 0) {
      const v1::Prompt prompt =
          TokenPrompt(model_, static_cast<uint32_t>(100 + Below(1000)), kBlocks);
      request.Clear();
      *request.mutable_header() = HeaderOf(prompt, 0, kBlocks).header();
      request.set_unverified(Below(2) == 0);
    }
    if (Below(8) == 0) request.mutable_header()->set_first_block(static_cast<uint32_t>(Number()));
    if (Below(8) == 0) request.mutable_header()->set_block_count(static_cast<uint32_t>(Number()));
    request.set_session_id(SessionId());
    v1::StoreResponse response;
    grpc::ClientContext context;
    if (Below(16) == 0) context.TryCancel();
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(Below(200)));
    const grpc::Status status = client_->stub().StoreShared(&context, request, &response);
    refused_ += !status.ok();
    for (const v1::BlockOutcome& outcome : response.outcomes()) {
      stored_ += outcome.status() == v1::STORE_STATUS_STORED;
    }
    last_ = request;
  }

  TestServer* const server_;
  ServiceClient* const client_;
  const std::string model_;
  std::mt19937_64* const random_;
  std::optional<RawSharedClient> session_;
  std::optional<Mutator> mutator_;
  v1::StoreSharedRequest last_;
  uint64_t stored_ = 0;
  uint64_t refused_ = 0;
};

TEST(SharedHostileTest, HurtsNobodyElse) {
  std::mt19937_64 random(TestSeed());
  TestServer server(Options());
  ServiceClient client(server.address());
  const std::string model = client.Register("m", {kPart});
  RawSharedClient session = RawSharedClient::Joined(server.shared_memory()->socket_path());
  SharedCalls honest(&client, &session);
  const v1::Prompt prompt = TokenPrompt(model, 1, kBlocks);
  std::vector<std::string> payloads;
  for (uint32_t i = 0; i < kBlocks; ++i) payloads.push_back(PayloadBytes(i, kPart));
  honest.StoreAll(honest.StoreOf(prompt, 0, payloads));
  const uint64_t lease = client.Lease(prompt, 600'000);
  std::memset(session.store().data(), 0x3c, kRegion);

  ServiceClient hostile_calls(server.address());
  HostileClient hostile(&server, &hostile_calls, model, &random);
  const uint64_t steps = Steps();
  for (uint64_t i = 0; i < steps; ++i) {
    hostile.Step();
    if (i % 100 != 0) continue;
    const SharedCalls::Fetched mine = honest.Fetch(honest.FetchOf(lease, 0, kBlocks));
    ASSERT_EQ(mine.bytes.size(), kBlocks) << "step " << i;
    for (uint32_t k = 0; k < kBlocks; ++k) {
      ASSERT_TRUE(mine.bytes[k] == payloads[k]) << "step " << i << " block " << k;
    }
  }
  EXPECT_GT(hostile.stored(), 0u);  // it got far enough
  EXPECT_GT(hostile.refused(), 0u);
  for (const std::byte byte : session.store()) ASSERT_EQ(byte, std::byte{0x3c});  // counters too
  ASSERT_TRUE(server.registry().WaitIdle(std::chrono::seconds(20)));
  server.manager().CheckInvariants();

  // What it stored is its own affair, but it is what its checksum says.
  uint64_t read = 0;
  for (uint32_t seed = 100; seed < 1100; ++seed) {
    const v1::Prompt theirs = TokenPrompt(model, seed, kBlocks);
    const uint32_t found = client.Found(theirs);
    if (found == 0) continue;
    const ServiceClient::Fetched fetched = client.Fetch(FetchOf(theirs, 0, found));  // checks them
    EXPECT_EQ(fetched.blocks.size(), found);
    read += found;
  }
  EXPECT_GT(read, 0u);
}

}  // namespace
}  // namespace kvtier
