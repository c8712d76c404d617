// What tests/e2e/shared_memory_test.py drives: an engine beside its kvtierd that stores and fetches
// payload which says whose it is.
//
//   kvtier_shared_client ADDRESS                    does what its stdin says, a line of JSON for
//   each:
//     work SEED TURNS                               turns of store, lookup and fetch
//     store PROMPT TIMES, fetch PROMPT TIMES        that alone
//   kvtier_shared_client ADDRESS LIVES SEED         many client processes one after the other, two
//   at
//                                                   a time; 30 % of them die by kill -9 in the
//                                                   middle of a fetch or a store
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <memory>
#include <new>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/executor.h"
#include "kvtier/client.h"
#include "tests/support/self_describing.h"

namespace kvtier {
namespace {

using std::chrono::microseconds;
using std::chrono::seconds;

constexpr uint32_t kBlockTokens = 16;
constexpr uint32_t kBlocks = 12;
constexpr uint64_t kPart = 96 << 10;
constexpr uint32_t kPrompts = 80;  // that all clients store and fetch: 88 MiB

// What all processes of a test count together.
struct Totals {
  std::atomic<uint64_t> turns{0};
  std::atomic<uint64_t> ok_blocks{0};
  std::atomic<uint64_t> foreign_blocks{0};
  std::atomic<uint64_t> shared_fetched{0};
  std::atomic<uint64_t> shared_stored{0};
  std::atomic<uint64_t> failures{0};

  std::string ToJson(const std::string& more = "") const {
    return absl::StrCat("{\"turns\":", turns.load(), ",\"ok_blocks\":", ok_blocks.load(),
                        ",\"foreign_blocks\":", foreign_blocks.load(),
                        ",\"shared_fetched\":", shared_fetched.load(),
                        ",\"shared_stored\":", shared_stored.load(),
                        ",\"failures\":", failures.load(), more, "}");
  }
};

// A client and its memory.
class Engine {
 public:
  Engine(const std::string& address, Totals* totals) : totals_(totals) {
    ClientOptions options;
    options.address = address;
    options.connect_deadline = seconds(30);
    options.lookup_deadline = seconds(30);
    options.register_deadline = seconds(30);
    options.breaker.failures_to_open = 0;
    options.breaker.longest_backoff = std::chrono::milliseconds(100);
    absl::StatusOr<std::unique_ptr<Client>> client = Client::Connect(options);
    if (!Good(client.status())) return;
    client_ = std::move(*client);
    for (uint32_t i = 0; i < kBlocks; ++i) {
      from_.emplace_back(kPart);
      to_.emplace_back(kPart);
    }
  }

  // After a restart the daemon may be another one.
  bool Register() {
    if (client_ == nullptr) return false;
    ModelSpec spec;
    spec.name = "shared-client";
    spec.block_tokens = kBlockTokens;
    spec.pack_order = PackOrder::kOpaque;
    spec.explicit_part_bytes = {kPart};
    const absl::StatusOr<RegisteredModel> model = client_->RegisterModel(spec);
    if (!Good(model.status())) return false;
    prompt_.model = model->id;
    return true;
  }

  void Store(uint32_t seed) {
    SetPrompt(seed);
    for (uint32_t i = 0; i < kBlocks; ++i) FillSelfDescribing(seed, i, from_[i]);
    const std::vector<std::span<const std::byte>> payloads(from_.begin(), from_.end());
    const absl::StatusOr<StoreReport> report = client_->Store(prompt_, {}, payloads);
    // Where others pin all of RAM there is no room: no fault.
    if (absl::IsResourceExhausted(report.status()) || !Good(report.status())) return;
    totals_->shared_stored += report->shared;
  }

  void Fetch(uint32_t seed) {
    SetPrompt(seed);
    const absl::StatusOr<PrefixMatch> match = client_->Lookup(prompt_, {.lease = seconds(3)});
    if (!Good(match.status()) || match->blocks == 0) return;
    for (std::vector<std::byte>& buffer : to_) std::ranges::fill(buffer, kPoison);
    const std::vector<std::span<std::byte>> buffers(to_.begin(), to_.begin() + match->blocks);
    const absl::StatusOr<FetchReport> report =
        client_->Fetch(match->lease, {.last_block = match->blocks}, buffers);
    if (!Good(report.status())) return;
    totals_->shared_fetched += report->shared;
    for (uint32_t i = 0; i < match->blocks; ++i) {
      if (report->blocks[i].status != FetchStatus::kOk) continue;
      ++totals_->ok_blocks;
      if (!IsSelfDescribing(seed, i, to_[i])) ++totals_->foreign_blocks;
    }
  }

 private:
  bool Good(const absl::Status& status) {
    if (status.ok()) return true;
    ++totals_->failures;
    std::cerr << status.ToString() << "\n";
    return false;
  }
  void SetPrompt(uint32_t seed) {
    tokens_.resize(kBlocks * kBlockTokens);
    for (uint32_t i = 0; i < tokens_.size(); ++i) tokens_[i] = seed * 100'000 + i;
    prompt_.tokens = tokens_;
  }

  Totals* const totals_;
  std::unique_ptr<Client> client_;
  Prompt prompt_;
  std::vector<uint32_t> tokens_;
  std::vector<std::vector<std::byte>> from_;
  std::vector<std::vector<std::byte>> to_;
};

void Work(Engine* engine, Totals* totals, uint64_t seed, int turns) {
  std::mt19937_64 random(seed);
  if (!engine->Register()) return;
  for (int turn = 0; turn < turns; ++turn) {
    const auto prompt = static_cast<uint32_t>(random() % kPrompts);
    engine->Store(prompt);
    engine->Fetch(prompt);
    engine->Fetch(static_cast<uint32_t>(random() % kPrompts));  // others' work
    ++totals->turns;
  }
}

// ---------------------------------------------------------------------- lives

constexpr int kDoomedPercent = 30;
constexpr int64_t kLongestDelayUs = 3'000;  // into its fetches or stores, until it dies

[[noreturn]] void DieIn(microseconds delay) {
  const auto end = std::chrono::steady_clock::now() + delay;
  while (std::chrono::steady_clock::now() < end) {
  }
  kill(getpid(), SIGKILL);
  _exit(1);
}

[[noreturn]] void Live(const std::string& address, Totals* totals, uint64_t seed) {
  std::mt19937_64 random(seed);
  const bool doomed = random() % 100 < kDoomedPercent;
  const bool storing = random() % 2 == 0;
  const microseconds delay(random() % kLongestDelayUs);
  {
    Engine engine(address, totals);
    Work(&engine, totals, random(), 2);
    if (doomed) {
      ThreadPool reaper(1);
      reaper.Run([delay] { DieIn(delay); });
      while (true) {
        const auto prompt = static_cast<uint32_t>(random() % kPrompts);
        if (storing) {
          engine.Store(kPrompts + static_cast<uint32_t>(random() % 1'000));
        } else {
          engine.Fetch(prompt);
        }
      }
    }
  }
  _exit(0);
}

// gRPC does not survive a fork, so this process never touches it.
int RunLives(const std::string& address, uint64_t lives, uint64_t seed) {
  constexpr uint64_t kAtATime = 2;
  void* const memory =
      mmap(nullptr, sizeof(Totals), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  KVTIER_CHECK(memory != MAP_FAILED);
  Totals* const totals = new (memory) Totals;
  uint64_t started = 0;
  uint64_t ended = 0;
  uint64_t killed = 0;
  uint64_t failed = 0;
  while (ended < lives) {
    while (started < lives && started - ended < kAtATime) {
      if (fork() == 0) Live(address, totals, seed + started);
      ++started;
    }
    int status = 0;
    KVTIER_CHECK(wait(&status) > 0);
    ++ended;
    const bool died = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    killed += died ? 1 : 0;
    failed += !died && status != 0 ? 1 : 0;
  }
  std::cout << totals->ToJson(absl::StrCat(",\"lives\":", lives, ",\"killed\":", killed,
                                           ",\"failed\":", failed))
            << std::endl;
  return 0;
}

// ---------------------------------------------------------------------- stdin

bool Do(Engine* engine, Totals* totals, const std::string& word, uint64_t seed, int turns) {
  if (word == "work") {
    Work(engine, totals, seed, turns);
    return true;
  }
  if (word != "store" && word != "fetch") return false;
  const auto prompt = static_cast<uint32_t>(seed);
  for (int turn = 0; turn < turns && engine->Register(); ++turn) {
    word == "store" ? engine->Store(prompt) : engine->Fetch(prompt);
  }
  return true;
}

int RunCommands(const std::string& address) {
  Totals totals;
  Engine engine(address, &totals);
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream words(line);
    std::string word;
    uint64_t seed = 0;
    int turns = 0;
    const bool understood = static_cast<bool>(words >> word >> seed >> turns);
    if (!understood || !Do(&engine, &totals, word, seed, turns)) {
      std::cerr << "unknown command: " << line << "\n";
      return 2;
    }
    std::cout << totals.ToJson() << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace kvtier

int main(int argc, char** argv) {
  if (argc == 2) return kvtier::RunCommands(argv[1]);
  if (argc == 4) {
    return kvtier::RunLives(argv[1], std::strtoull(argv[2], nullptr, 10),
                            std::strtoull(argv[3], nullptr, 10));
  }
  std::fprintf(stderr, "usage: %s ADDRESS [LIVES SEED]\n", argv[0]);
  return 2;
}
