#include "cli/bench_transfer.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "cli/bench_crew.h"
#include "common/block_key.h"

namespace kvtier::cli {
namespace {

using bench::kTransferBlock;
using bench::kTransferBlocks;
using bench::kTransferBytes;
using bench::Receiver;

constexpr double kFetchTarget = 0.85;
constexpr double kStoreTarget = 0.75;

constexpr const char* kDrops = "bare stream, dropped";
constexpr const char* kCopies = "bare stream, copied";

// One client with its connection to both servers, its payload and its buffers.
class Worker {
 public:
  static absl::StatusOr<std::unique_ptr<Worker>> Make(const BenchSetup& setup, uint32_t number) {
    std::unique_ptr<Worker> worker(new Worker(number));
    KVTIER_ASSIGN_OR_RETURN(worker->client_, setup.ConnectClient({.shared_memory = false}));
    KVTIER_ASSIGN_OR_RETURN(worker->ceiling_, setup.ConnectCeiling());
    KVTIER_ASSIGN_OR_RETURN(
        const RegisteredModel model,
        worker->client_->RegisterModel(BenchModel("kvtier-bench-transfer", kTransferBlock)));
    worker->prompt_.model = model.id;
    worker->prompt_.name = FreshNamespace();
    return worker;
  }

  // Another prompt: nothing of it is held.
  void NextPrompt() {
    ++serial_;
    for (size_t i = 0; i < tokens_.size(); ++i) {
      tokens_[i] = static_cast<uint32_t>((i + 1) * 2654435761u) ^ (serial_ << 8 | number_);
    }
    prompt_.tokens = tokens_;
  }

  absl::Status Store() {
    KVTIER_ASSIGN_OR_RETURN(const StoreReport report,
                            client_->Store(prompt_, {}, memory_.payloads));
    for (size_t i = 0; i < report.blocks.size(); ++i) {
      if (report.blocks[i].verdict != StoreVerdict::kStored) {
        return absl::InternalError(absl::StrCat(
            "block ", i, " was not stored: verdict ", static_cast<int>(report.blocks[i].verdict),
            ", refusal ", static_cast<int>(report.blocks[i].refusal)));
      }
    }
    return absl::OkStatus();
  }

  absl::Status Fetch() { return CheckWhole(client_->Fetch(prompt_, Whole(), memory_.buffers)); }

  absl::Status FetchViews() {
    uint64_t bytes = 0;
    KVTIER_RETURN_IF_ERROR(CheckWhole(client_->FetchViews(
        prompt_, Whole(), [&bytes](const PieceView& piece) { bytes += piece.bytes.size(); })));
    if (bytes == kTransferBytes) return absl::OkStatus();
    return absl::InternalError(absl::StrCat(bytes, " bytes were seen"));
  }

  // What was fetched is what was stored.
  absl::Status Compare() {
    if (std::memcmp(memory_.from.data(), memory_.to.data(), kTransferBytes) == 0)
      return absl::OkStatus();
    return absl::DataLossError("wrong bytes were fetched");
  }

  uint64_t bytes() const { return kTransferBytes; }
  absl::Status BareDown(Receiver receiver) {
    return ceiling_->StreamDown(kTransferBytes, receiver);
  }
  absl::Status BareUp(Receiver receiver) { return ceiling_->StreamUp(kTransferBytes, receiver); }
  double CopySeconds() { return bench::MemcpySeconds(memory_.from, memory_.to); }

 private:
  explicit Worker(uint32_t number) : number_(number), tokens_(kTransferBlocks * kBlockTokens) {
    for (uint64_t i = 0; i < kTransferBlocks; ++i) {
      std::memset(memory_.from.block(i).data(), static_cast<int>(i + 17 * number + 1),
                  kTransferBlock);
    }
    NextPrompt();
  }

  static FetchParams Whole() { return {.last_block = static_cast<uint32_t>(kTransferBlocks)}; }

  static absl::Status CheckWhole(const absl::StatusOr<FetchReport>& report) {
    KVTIER_RETURN_IF_ERROR(report.status());
    if (report->leading == kTransferBlocks) return absl::OkStatus();
    return absl::InternalError(absl::StrCat("block ", report->leading, " was missed"));
  }

  const uint32_t number_;
  uint32_t serial_ = 0;
  std::vector<uint32_t> tokens_;
  TransferMemory memory_;
  std::unique_ptr<Client> client_;
  std::unique_ptr<bench::CeilingClient> ceiling_;
  Prompt prompt_;
};

using TransferCrew = Crew<Worker>;
using Work = TransferCrew::Work;

absl::StatusOr<std::unique_ptr<TransferCrew>> MakeCrew(const BenchSetup& setup, int size) {
  std::vector<std::unique_ptr<Worker>> workers;
  for (int i = 0; i < size; ++i) {
    KVTIER_ASSIGN_OR_RETURN(std::unique_ptr<Worker> worker, Worker::Make(setup, i));
    workers.push_back(std::move(worker));
  }
  return std::make_unique<TransferCrew>(std::move(workers));
}

void AddMemcpy(TransferCrew& crew, int rounds, BenchReport* report) {
  std::vector<double> rates;
  for (int round = 0; round < rounds; ++round) {
    rates.push_back(static_cast<double>(kTransferBytes) / crew.first().CopySeconds() / 1e9);
  }
  report->AddFact("memcpy", Median(rates), "GB/s");
}

absl::Status FetchRows(BenchSetup& setup, int clients, const std::string& suffix,
                       BenchReport* report) {
  KVTIER_ASSIGN_OR_RETURN(const auto crew, MakeCrew(setup, clients));
  KVTIER_RETURN_IF_ERROR(crew->Do([](Worker& worker) { return worker.Store(); }));
  KVTIER_RETURN_IF_ERROR(crew->Do([](Worker& worker) { return worker.Fetch(); }));
  KVTIER_RETURN_IF_ERROR(crew->Do([](Worker& worker) { return worker.Compare(); }));
  const auto rate_of = [&crew](Work work) {
    return Arm{[&crew, work = std::move(work)] { return crew->Rate(work); }};
  };
  std::vector<Arm> arms = {
      rate_of([](Worker& worker) { return worker.BareDown(Receiver::kDrops); }),
      rate_of([](Worker& worker) { return worker.FetchViews(); }),
      rate_of([](Worker& worker) { return worker.BareDown(Receiver::kCopies); }),
      rate_of([](Worker& worker) { return worker.Fetch(); }),
  };
  KVTIER_RETURN_IF_ERROR(RunArms(
      setup, [] { return absl::OkStatus(); }, &arms));
  report->AddRate("fetch" + suffix, arms[3].figures, kCopies, arms[2].figures, kFetchTarget);
  report->AddRate("fetch" + suffix + "_of_drop", arms[3].figures, kDrops, arms[0].figures, 0);
  report->AddRate("fetch_view" + suffix, arms[1].figures, kDrops, arms[0].figures, kFetchTarget);
  if (clients == 1) AddMemcpy(*crew, setup.options().rounds, report);
  return absl::OkStatus();
}

absl::Status StoreRows(BenchSetup& setup, int clients, const std::string& suffix,
                       BenchReport* report) {
  KVTIER_ASSIGN_OR_RETURN(const auto crew, MakeCrew(setup, clients));
  const auto rate_of = [&crew](Work work) {
    return Arm{[&crew, work = std::move(work)] { return crew->Rate(work); }};
  };
  std::vector<Arm> arms = {
      rate_of([](Worker& worker) { return worker.BareUp(Receiver::kDrops); }),
      rate_of([](Worker& worker) { return worker.BareUp(Receiver::kCopies); }),
      rate_of([](Worker& worker) { return worker.Store(); }),
  };
  const auto fresh = [&crew] {
    return crew->Do([](Worker& worker) {
      worker.NextPrompt();
      return absl::OkStatus();
    });
  };
  KVTIER_RETURN_IF_ERROR(RunArms(setup, fresh, &arms));
  report->AddRate("store" + suffix, arms[2].figures, kCopies, arms[1].figures, kStoreTarget);
  report->AddRate("store" + suffix + "_of_drop", arms[2].figures, kDrops, arms[0].figures, 0);
  if (clients == 1) AddMemcpy(*crew, setup.options().rounds, report);
  return absl::OkStatus();
}

}  // namespace

absl::Status BenchFetch(BenchSetup& setup, BenchReport* report) {
  KVTIER_RETURN_IF_ERROR(FetchRows(setup, 1, "", report));
  const int clients = setup.options().clients;
  if (clients == 1) return absl::OkStatus();
  return FetchRows(setup, clients, absl::StrCat("_", clients, "_clients"), report);
}

absl::Status BenchStore(BenchSetup& setup, BenchReport* report) {
  KVTIER_RETURN_IF_ERROR(StoreRows(setup, 1, "", report));
  const int clients = setup.options().clients;
  if (clients == 1) return absl::OkStatus();
  return StoreRows(setup, clients, absl::StrCat("_", clients, "_clients"), report);
}

}  // namespace kvtier::cli
