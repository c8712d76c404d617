#include "cli/bench_shared.h"

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cli/bench_crew.h"
#include "common/bytes.h"
#include "common/copy_past.h"

namespace kvtier::cli {
namespace {

using bench::kTransferBlock;
using bench::kTransferBlocks;
using bench::WarmMemory;

constexpr double kFetchTarget = 0.85;
constexpr double kVerifiedTarget = 0.6;
// Of one client. A store copies twice, in the client and in the daemon: clients that have every
// core at work reach half of what copies once.
constexpr double kStoreTarget = 0.8;
constexpr double kViewTarget = 1.25;  // times the smaller payload's
constexpr const char* kMemcpy = "memcpy";
constexpr int kManyClients = 8;
constexpr uint32_t kBlocksOfMany = 16;  // of each: all of them fit into RAM
constexpr uint64_t kSmallBlocks[] = {uint64_t{16} << 10, uint64_t{64} << 10};
constexpr int kSmallCalls = 200;
constexpr Duration kLease = std::chrono::minutes(10);

struct WorkerOptions {
  uint64_t block_bytes = kTransferBlock;
  uint32_t blocks = kTransferBlocks;
  bool shared = true;
  bool verify = true;
};

// One client with its payload, its buffers, and a lease on what it stored.
class Worker {
 public:
  static absl::StatusOr<std::unique_ptr<Worker>> Make(const BenchSetup& setup,
                                                      const WorkerOptions& options,
                                                      uint32_t number) {
    std::unique_ptr<Worker> worker(new Worker(options, number));
    ClientOptions client;
    client.shared_memory = options.shared;
    client.verify_shared = options.verify;
    KVTIER_ASSIGN_OR_RETURN(worker->client_, setup.ConnectClient(client));
    const std::string name = absl::StrCat("kvtier-bench-shared-", options.block_bytes);
    KVTIER_ASSIGN_OR_RETURN(const RegisteredModel model,
                            worker->client_->RegisterModel(BenchModel(name, options.block_bytes)));
    worker->prompt_.model = model.id;
    worker->prompt_.name = FreshNamespace();
    return worker;
  }

  uint64_t bytes() const { return options_.block_bytes * options_.blocks; }
  const Client& client() const { return *client_; }

  // Another prompt: nothing of it is held.
  absl::Status NextPrompt() {
    ++serial_;
    for (size_t i = 0; i < tokens_.size(); ++i) {
      tokens_[i] = static_cast<uint32_t>((i + 1) * 2654435761u) ^ (serial_ << 8 | number_);
    }
    prompt_.tokens = tokens_;
    return absl::OkStatus();
  }

  absl::Status Store() {
    KVTIER_ASSIGN_OR_RETURN(const StoreReport report,
                            client_->Store(prompt_, {.first_missing = 0}, payloads_));
    for (size_t i = 0; i < report.blocks.size(); ++i) {
      if (report.blocks[i].verdict != StoreVerdict::kStored) {
        return absl::InternalError(absl::StrCat("block ", i, " was not stored"));
      }
    }
    return CheckWay(report.shared);
  }

  absl::Status TakeLease() {
    KVTIER_ASSIGN_OR_RETURN(PrefixMatch match, client_->Lookup(prompt_, {.lease = kLease}));
    lease_ = std::move(match.lease);
    if (lease_.blocks() == options_.blocks) return absl::OkStatus();
    return absl::InternalError(absl::StrCat("block ", lease_.blocks(), " was missed"));
  }

  absl::Status Fetch(uint32_t blocks) {
    const std::span<const std::span<std::byte>> buffers(buffers_);
    KVTIER_ASSIGN_OR_RETURN(const FetchReport report,
                            client_->Fetch(lease_, {.last_block = blocks}, buffers.first(blocks)));
    if (report.leading == blocks) return CheckWay(report.shared);
    return absl::InternalError(absl::StrCat("block ", report.leading, " was missed"));
  }
  absl::Status FetchAll() { return Fetch(options_.blocks); }

  // Nothing of the payload is touched.
  absl::Status View() {
    KVTIER_ASSIGN_OR_RETURN(const SharedViews views,
                            client_->FetchSharedViews(lease_, {.last_block = options_.blocks}));
    if (views.leading == options_.blocks && !views.expired()) return absl::OkStatus();
    return absl::InternalError(absl::StrCat("block ", views.leading, " was missed"));
  }

  absl::Status Memcpy() {
    for (size_t i = 0; i < payloads_.size(); ++i) {
      std::memcpy(buffers_[i].data(), payloads_[i].data(), payloads_[i].size());
    }
    return absl::OkStatus();
  }
  absl::Status Copy() {
    for (size_t i = 0; i < payloads_.size(); ++i) CopyPast(buffers_[i].data(), payloads_[i]);
    FinishCopies();
    return absl::OkStatus();
  }

  // What was fetched is what was stored.
  absl::Status Compare() {
    std::memset(to_.data(), 0xEE, bytes());
    KVTIER_RETURN_IF_ERROR(FetchAll());
    if (std::memcmp(from_.data(), to_.data(), bytes()) == 0) return absl::OkStatus();
    return absl::DataLossError("wrong bytes were fetched");
  }

  // What every fetch needs.
  absl::Status Prepare() {
    KVTIER_RETURN_IF_ERROR(Store());
    KVTIER_RETURN_IF_ERROR(TakeLease());
    return Compare();
  }

 private:
  Worker(const WorkerOptions& options, uint32_t number)
      : options_(options),
        number_(number),
        tokens_(options.blocks * kBlockTokens),
        from_(bytes()),
        to_(bytes()) {
    for (uint64_t i = 0; i < options.blocks; ++i) {
      std::byte* const block = from_.data() + i * options.block_bytes;
      std::memset(block, static_cast<int>(i + 17 * number + 1), options.block_bytes);
      payloads_.emplace_back(block, options.block_bytes);
      buffers_.emplace_back(to_.data() + i * options.block_bytes, options.block_bytes);
    }
    NextPrompt().IgnoreError();
  }

  absl::Status CheckWay(uint32_t shared) const {
    if ((shared > 0) == options_.shared) return absl::OkStatus();
    return absl::InternalError(absl::StrCat(shared, " blocks went through shared memory"));
  }

  const WorkerOptions options_;
  const uint32_t number_;
  uint32_t serial_ = 0;
  std::vector<uint32_t> tokens_;
  WarmMemory from_;
  WarmMemory to_;
  std::vector<std::span<const std::byte>> payloads_;  // by block
  std::vector<std::span<std::byte>> buffers_;
  std::unique_ptr<Client> client_;
  Prompt prompt_;
  Lease lease_;
};

using SharedCrew = Crew<Worker>;

absl::StatusOr<std::unique_ptr<SharedCrew>> MakeCrew(const BenchSetup& setup, int size,
                                                     const WorkerOptions& options) {
  std::vector<std::unique_ptr<Worker>> workers;
  for (int i = 0; i < size; ++i) {
    KVTIER_ASSIGN_OR_RETURN(std::unique_ptr<Worker> worker, Worker::Make(setup, options, i));
    workers.push_back(std::move(worker));
  }
  return std::make_unique<SharedCrew>(std::move(workers));
}

Arm RateOf(SharedCrew* crew, SharedCrew::Work work) {
  return Arm{[crew, work = std::move(work)] { return crew->Rate(work); }};
}

// Microseconds of one of `calls` calls, one after the other.
Arm CallOf(SharedCrew* crew, int calls, SharedCrew::Work work) {
  const auto all = [calls, work = std::move(work)](Worker& worker) {
    for (int i = 0; i < calls; ++i) KVTIER_RETURN_IF_ERROR(work(worker));
    return absl::OkStatus();
  };
  return Arm{[crew, calls, all]() -> absl::StatusOr<double> {
    KVTIER_ASSIGN_OR_RETURN(const double seconds, crew->Seconds(all));
    return seconds * 1e6 / calls;
  }};
}

absl::Status Nothing() { return absl::OkStatus(); }

// Whether there is anything to measure.
absl::StatusOr<bool> Offered(const BenchSetup& setup) {
  KVTIER_ASSIGN_OR_RETURN(const std::unique_ptr<Worker> worker,
                          Worker::Make(setup, {.block_bytes = 4096, .blocks = 1}, 0));
  if (worker->client().has_shared_memory()) return true;
  setup.output().Progress(
      "bench: the daemon offers this client no shared memory, those rows are "
      "left out");
  return false;
}

// The same clients twice: some take and give checksums, the others do not.
struct Crews {
  std::unique_ptr<SharedCrew> hashing;
  std::unique_ptr<SharedCrew> copying;

  absl::Status Do(const SharedCrew::Work& work) const {
    KVTIER_RETURN_IF_ERROR(hashing->Do(work));
    return copying->Do(work);
  }
};

absl::StatusOr<Crews> MakeCrews(const BenchSetup& setup, int clients, uint32_t blocks) {
  Crews crews;
  KVTIER_ASSIGN_OR_RETURN(crews.hashing, MakeCrew(setup, clients, {.blocks = blocks}));
  KVTIER_ASSIGN_OR_RETURN(crews.copying,
                          MakeCrew(setup, clients, {.blocks = blocks, .verify = false}));
  return crews;
}

struct Targets {
  double copied = 0;
  double verified = 0;
};

// What `work` reaches, beside copies of the same payload.
absl::Status RateRows(const BenchSetup& setup, const Crews& crews, const std::string& name,
                      const std::string& suffix, const SharedCrew::Work& work,
                      const std::function<absl::Status()>& before_round, const Targets& targets,
                      BenchReport* report) {
  std::vector<Arm> arms = {
      RateOf(crews.copying.get(), &Worker::Memcpy), RateOf(crews.copying.get(), work),
      RateOf(crews.copying.get(), &Worker::Copy), RateOf(crews.hashing.get(), work)};
  KVTIER_RETURN_IF_ERROR(RunArms(setup, before_round, &arms));
  report->AddLooseRate(name + suffix, arms[1].figures, kMemcpy, arms[0].figures, targets.copied);
  report->AddRate(name + "_of_streaming_copy" + suffix, arms[1].figures, "streaming copy",
                  arms[2].figures, 0);
  report->AddLooseRate(name + "_verified" + suffix, arms[3].figures, kMemcpy, arms[0].figures,
                       targets.verified);
  return absl::OkStatus();
}

absl::Status FetchRows(const BenchSetup& setup, int clients, uint32_t blocks,
                       const std::string& suffix, BenchReport* report) {
  KVTIER_ASSIGN_OR_RETURN(const Crews crews, MakeCrews(setup, clients, blocks));
  KVTIER_RETURN_IF_ERROR(crews.Do(&Worker::Prepare));
  return RateRows(setup, crews, "fetch_shared", suffix, &Worker::FetchAll, Nothing,
                  {.copied = kFetchTarget, .verified = kVerifiedTarget}, report);
}

absl::Status StoreRows(const BenchSetup& setup, int clients, uint32_t blocks,
                       const std::string& suffix, BenchReport* report) {
  KVTIER_ASSIGN_OR_RETURN(const Crews crews, MakeCrews(setup, clients, blocks));
  KVTIER_RETURN_IF_ERROR(RateRows(
      setup, crews, "store_shared", suffix, &Worker::Store,
      [&crews] { return crews.Do(&Worker::NextPrompt); },
      {.copied = clients == 1 ? kStoreTarget : 0}, report));
  KVTIER_RETURN_IF_ERROR(crews.hashing->Do(&Worker::TakeLease));
  return crews.hashing->Do(&Worker::Compare);
}

// No byte is touched: 64 blocks of 2 MiB and of 16 KiB take the same time.
absl::Status ViewRow(BenchSetup& setup, BenchReport* report) {
  KVTIER_ASSIGN_OR_RETURN(const auto large, MakeCrew(setup, 1, {}));
  KVTIER_ASSIGN_OR_RETURN(const auto small, MakeCrew(setup, 1, {.block_bytes = kSmallBlocks[0]}));
  KVTIER_RETURN_IF_ERROR(large->Do(&Worker::Prepare));
  KVTIER_RETURN_IF_ERROR(small->Do(&Worker::Prepare));
  std::vector<Arm> arms = {CallOf(small.get(), kSmallCalls, &Worker::View),
                           CallOf(large.get(), kSmallCalls, &Worker::View)};
  KVTIER_RETURN_IF_ERROR(RunArms(setup, Nothing, &arms));
  report->AddLooseLatency("fetch_shared_view_2MiB", arms[1].figures, "view of 64 x 16KiB",
                          arms[0].figures, kViewTarget);
  return absl::OkStatus();
}

// Calls of 64 blocks and of one, beside the same over gRPC.
absl::Status SmallRows(BenchSetup& setup, uint64_t block_bytes, BenchReport* report) {
  KVTIER_ASSIGN_OR_RETURN(const auto shared, MakeCrew(setup, 1, {.block_bytes = block_bytes}));
  KVTIER_ASSIGN_OR_RETURN(const auto grpc,
                          MakeCrew(setup, 1, {.block_bytes = block_bytes, .shared = false}));
  KVTIER_RETURN_IF_ERROR(shared->Do(&Worker::Prepare));
  KVTIER_RETURN_IF_ERROR(grpc->Do(&Worker::Prepare));
  const auto one = [](Worker& worker) { return worker.Fetch(1); };
  std::vector<Arm> arms = {CallOf(grpc.get(), kSmallCalls / 4, &Worker::FetchAll),
                           CallOf(shared.get(), kSmallCalls, &Worker::FetchAll),
                           CallOf(grpc.get(), kSmallCalls, one),
                           CallOf(shared.get(), kSmallCalls, one)};
  KVTIER_RETURN_IF_ERROR(RunArms(setup, Nothing, &arms));
  const std::string name = absl::StrCat("fetch_small_", FormatBytes(block_bytes));
  report->AddLooseLatency(name + "_x64", arms[1].figures, "over gRPC", arms[0].figures, 0);
  report->AddLooseLatency(name + "_x1", arms[3].figures, "over gRPC", arms[2].figures, 0);
  const double blocks = kTransferBlocks * 1e6;
  report->AddFact(name + "_rate", blocks / Median(arms[1].figures), "blocks/s", "over gRPC",
                  blocks / Median(arms[0].figures));
  return absl::OkStatus();
}

}  // namespace

absl::Status BenchFetchShared(BenchSetup& setup, BenchReport* report) {
  KVTIER_ASSIGN_OR_RETURN(const bool offered, Offered(setup));
  if (!offered) return absl::OkStatus();
  KVTIER_RETURN_IF_ERROR(FetchRows(setup, 1, kTransferBlocks, "", report));
  KVTIER_RETURN_IF_ERROR(FetchRows(setup, kManyClients, kBlocksOfMany,
                                   absl::StrCat("_", kManyClients, "_clients"), report));
  KVTIER_RETURN_IF_ERROR(ViewRow(setup, report));
  for (const uint64_t bytes : kSmallBlocks) {
    KVTIER_RETURN_IF_ERROR(SmallRows(setup, bytes, report));
  }
  return absl::OkStatus();
}

absl::Status BenchStoreShared(BenchSetup& setup, BenchReport* report) {
  KVTIER_ASSIGN_OR_RETURN(const bool offered, Offered(setup));
  if (!offered) return absl::OkStatus();
  KVTIER_RETURN_IF_ERROR(StoreRows(setup, 1, kTransferBlocks, "", report));
  return StoreRows(setup, kManyClients, kBlocksOfMany, absl::StrCat("_", kManyClients, "_clients"),
                   report);
}

}  // namespace kvtier::cli
