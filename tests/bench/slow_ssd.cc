// What a slow SSD does to those who do not need it: Lookup, and Fetch of what RAM has, through
// gRPC, while others store and fetch more than RAM holds. Once with an SSD tier that answers at
// once, once with one that takes a second for every call.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <functional>
#include <vector>

#include "bench/disk.h"
#include "common/check.h"
#include "common/executor.h"
#include "kvtier/client.h"
#include "tests/support/test_server.h"

namespace kvtier::bench {
namespace {

using std::chrono::seconds;

constexpr uint64_t kPart = uint64_t{64} << 10;
constexpr uint32_t kBlockTokens = 16;
constexpr uint32_t kHotBlocks = 64;
constexpr int kCalls = 3000;
constexpr double kMost = 2.0;  // times what it was

// One client with a prompt and buffers for it.
class Caller {
 public:
  explicit Caller(const std::string& address) : payload_(kPart, std::byte{7}) {
    ClientOptions options;
    options.address = address;
    options.lookup_deadline = seconds(10);
    options.transfer_deadline = seconds(30);
    client_ = std::move(*Client::Connect(options));
    ModelSpec spec;
    spec.name = "slow";
    spec.block_tokens = kBlockTokens;
    spec.pack_order = PackOrder::kOpaque;
    spec.explicit_part_bytes = {kPart};
    prompt_.model = client_->RegisterModel(spec)->id;
  }

  void Choose(uint32_t serial, uint32_t blocks) {
    tokens_.resize(blocks * kBlockTokens);
    for (uint32_t i = 0; i < tokens_.size(); ++i) tokens_[i] = serial * 2654435761u + i;
    prompt_.tokens = tokens_;
    buffers_.assign(blocks, std::vector<std::byte>(kPart));
  }
  absl::Status Store() {
    const std::vector<std::span<const std::byte>> parts(buffers_.size(), payload_);
    return client_->Store(prompt_, {}, parts).status();
  }
  absl::StatusOr<uint32_t> Lookup() {
    KVTIER_ASSIGN_OR_RETURN(const PrefixMatch match, client_->Lookup(prompt_, {}));
    return match.blocks;
  }
  absl::StatusOr<uint32_t> Fetch() {
    std::vector<std::span<std::byte>> to(buffers_.begin(), buffers_.end());
    KVTIER_ASSIGN_OR_RETURN(
        const FetchReport report,
        client_->Fetch(prompt_, {.last_block = static_cast<uint32_t>(to.size())}, to));
    return report.leading;
  }

 private:
  std::unique_ptr<Client> client_;
  std::vector<uint32_t> tokens_;
  Prompt prompt_;
  const std::vector<std::byte> payload_;
  std::vector<std::vector<std::byte>> buffers_;
};

struct Latency {
  double p50 = 0, p99 = 0;  // microseconds
};

Latency Measure(const std::function<void()>& call) {
  std::vector<double> taken;
  for (int i = 0; i < kCalls; ++i) {
    const Stopwatch watch;
    call();
    taken.push_back(watch.Seconds() * 1e6);
  }
  std::sort(taken.begin(), taken.end());
  return {taken[kCalls / 2], taken[kCalls * 99 / 100]};
}

struct Figures {
  Latency lookup, fetch;
};

Figures MeasureUnderLoad(TestServer& server, Caller& hot) {
  std::atomic<bool> stop = false;
  std::atomic<uint32_t> serial = 1000;
  ThreadPool load(2);
  for (int i = 0; i < 2; ++i) {
    load.Run([&] {
      Caller caller(server.address());
      while (!stop) {
        caller.Choose(++serial, 32);
        caller.Store().IgnoreError();  // a stuck SSD may cost it its time: that is what it is for
        caller.Choose(serial - 40, 32);
        caller.Fetch().IgnoreError();
      }
    });
  }
  const auto all = [](const absl::StatusOr<uint32_t>& blocks) {
    KVTIER_CHECK(blocks.ok() && *blocks == kHotBlocks);
  };
  Figures figures;
  figures.lookup = Measure([&] { all(hot.Lookup()); });
  figures.fetch = Measure([&] { all(hot.Fetch()); });
  stop = true;
  server.ssd()->write_gate().Slow(Duration::zero());
  server.ssd()->read_gate().Slow(Duration::zero());
  load.WaitIdle();
  return figures;
}

bool Print(const char* name, const Latency& quick, const Latency& slow) {
  const double p50 = slow.p50 / quick.p50, p99 = slow.p99 / quick.p99;
  std::printf(
      "%-8s p50 %8.0f us, slow SSD %8.0f us: %.2f   p99 %8.0f us, slow SSD %8.0f us: %.2f\n", name,
      quick.p50, slow.p50, p50, quick.p99, slow.p99, p99);
  return p99 <= kMost;
}

int Main() {
  TestServerOptions options;
  options.ram_bytes = uint64_t{64} << 20;
  options.ssd_bytes = uint64_t{512} << 20;
  TestServer server(options);
  Caller hot(server.address());
  hot.Choose(1, kHotBlocks);
  KVTIER_CHECK(hot.Store().ok());
  const Figures quick = MeasureUnderLoad(server, hot);
  server.ssd()->write_gate().Slow(seconds(1));
  server.ssd()->read_gate().Slow(seconds(1));
  const Figures slow = MeasureUnderLoad(server, hot);
  const bool lookup = Print("lookup", quick.lookup, slow.lookup);
  const bool fetch = Print("fetch", quick.fetch, slow.fetch);
  return lookup && fetch ? 0 : 1;
}

}  // namespace
}  // namespace kvtier::bench

int main() { return kvtier::bench::Main(); }
