#include "cli/bench_ssd.h"

#include <cstring>
#include <utility>
#include <vector>

#include "bench/disk.h"
#include "common/block_key.h"
#include "common/executor.h"
#include "storage/ssd_tier.h"

namespace kvtier::cli {
namespace {

using bench::kTransferBlock;
using bench::kTransferBlocks;
using bench::kTransferBytes;
using bench::RawDisk;
using bench::Stopwatch;
using bench::WarmMemory;

constexpr int kDepth = 8;  // ssd-read-threads by default
constexpr double kTarget = 0.8;
// One transfer and a half: what was fetched three transfers ago has left it.
constexpr const char* kSmallRam = "192MiB";
constexpr const char* kLargeRam = "1GiB";
constexpr const char* kSsd = "4GiB";
constexpr uint64_t kTierBytes = uint64_t{4} << 30;
constexpr uint32_t kPrompts = 4;
constexpr Duration kLease = std::chrono::seconds(60);

constexpr const char* kRead = "direct pread, 8 at a time";
constexpr const char* kReadOne = "direct pread";
constexpr const char* kWrite = "direct sequential write";
constexpr const char* kWriteNew = "direct sequential write, new file";

double Rate(uint64_t bytes, double seconds) { return static_cast<double>(bytes) / seconds / 1e9; }

// A private kvtierd with an SSD tier, and one client with prompts of a whole transfer each.
class SsdDaemon {
 public:
  static absl::StatusOr<std::unique_ptr<SsdDaemon>> Start(const BenchSetup& setup,
                                                          const std::string& dir,
                                                          const std::string& ram);

  // Another prompt: nothing of it is held.
  void Next() {
    ++serial_;
    Choose(serial_);
  }
  // The payload says which prompt it is of.
  void Choose(uint32_t serial) {
    for (size_t i = 0; i < tokens_.size(); ++i) {
      tokens_[i] = static_cast<uint32_t>((i + 1) * 2654435761u) ^ serial << 8;
    }
    prompt_.tokens = tokens_;
    for (uint64_t i = 0; i < kTransferBlocks; ++i) {
      std::memset(memory_.from.block(i).data(), static_cast<int>(serial * 64 + i), kTransferBlock);
    }
  }
  absl::StatusOr<double> StoreDurable();
  // Seconds, through gRPC / with a lease and through shared memory, as an engine on this host does.
  absl::StatusOr<double> Fetch(uint32_t first, uint32_t count);
  absl::StatusOr<double> FetchShared(uint32_t first, uint32_t count);
  bool shares() const { return client_->has_shared_memory(); }
  absl::Status Stop() { return process_->Stop(); }

 private:
  // What was fetched is what was stored.
  absl::Status Check(const FetchReport& report, uint32_t first, uint32_t count);

  SsdDaemon() : tokens_(kTransferBlocks * kBlockTokens) {}

  uint32_t serial_ = 0;
  std::vector<uint32_t> tokens_;
  TransferMemory memory_;
  std::unique_ptr<bench::ChildProcess> process_;
  std::unique_ptr<Client> client_;
  Prompt prompt_;
};

absl::StatusOr<std::unique_ptr<SsdDaemon>> SsdDaemon::Start(const BenchSetup& setup,
                                                            const std::string& dir,
                                                            const std::string& ram) {
  std::unique_ptr<SsdDaemon> daemon(new SsdDaemon);
  KVTIER_ASSIGN_OR_RETURN(const std::string program, DaemonPath());
  setup.output().Progress(absl::StrCat("bench: starting ", program, " with ", ram, " of RAM and ",
                                       kSsd, " of SSD in ", dir));
  KVTIER_ASSIGN_OR_RETURN(
      daemon->process_,
      bench::ChildProcess::Start({program, "--data-dir", dir + "/data", "--ram-bytes", ram,
                                  "--ssd-bytes", kSsd, "--log-level", "warning"}));
  ClientOptions options;
  options.address = "unix:" + dir + "/data/kvtier.sock";
  options.lookup_deadline = std::chrono::seconds(10);
  KVTIER_RETURN_IF_ERROR(WaitForServer(options.address, daemon->process_.get()));
  KVTIER_ASSIGN_OR_RETURN(daemon->client_, Client::Connect(options));
  KVTIER_ASSIGN_OR_RETURN(const RegisteredModel model, daemon->client_->RegisterModel(BenchModel(
                                                           "kvtier-bench-ssd", kTransferBlock)));
  daemon->prompt_.model = model.id;
  return daemon;
}

absl::StatusOr<double> SsdDaemon::StoreDurable() {
  StoreParams params;
  params.durability = StoreDurability::kDurable;
  const Stopwatch watch;
  KVTIER_ASSIGN_OR_RETURN(const StoreReport report,
                          client_->Store(prompt_, params, memory_.payloads));
  const double seconds = watch.Seconds();
  for (size_t i = 0; i < report.blocks.size(); ++i) {
    if (report.blocks[i].verdict == StoreVerdict::kStored) continue;
    return absl::InternalError(absl::StrCat("block ", i, " was not stored"));
  }
  return seconds;
}

absl::Status SsdDaemon::Check(const FetchReport& report, uint32_t first, uint32_t count) {
  if (report.leading != count) return absl::InternalError("a block was missed");
  for (uint32_t i = first; i < first + count; ++i) {
    if (std::memcmp(memory_.from.block(i).data(), memory_.to.block(i).data(), kTransferBlock) !=
        0) {
      return absl::DataLossError("wrong bytes were fetched");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<double> SsdDaemon::Fetch(uint32_t first, uint32_t count) {
  const Stopwatch watch;
  KVTIER_ASSIGN_OR_RETURN(
      const FetchReport report,
      client_->Fetch(prompt_, {.first_block = first, .last_block = first + count},
                     std::span(memory_.buffers).subspan(first, count)));
  const double seconds = watch.Seconds();
  KVTIER_RETURN_IF_ERROR(Check(report, first, count));
  return seconds;
}

absl::StatusOr<double> SsdDaemon::FetchShared(uint32_t first, uint32_t count) {
  const Stopwatch watch;
  KVTIER_ASSIGN_OR_RETURN(const PrefixMatch match, client_->Lookup(prompt_, {.lease = kLease}));
  KVTIER_ASSIGN_OR_RETURN(
      const FetchReport report,
      client_->Fetch(match.lease, {.first_block = first, .last_block = first + count},
                     std::span(memory_.buffers).subspan(first, count)));
  const double seconds = watch.Seconds();
  KVTIER_RETURN_IF_ERROR(Check(report, first, count));
  if (report.shared == count) return seconds;
  return absl::InternalError(
      absl::StrCat("of ", count, " blocks ", report.shared, " came through shared memory"));
}

// The tier by itself.
class BareTier {
 public:
  static absl::StatusOr<std::unique_ptr<BareTier>> Open(const std::string& dir) {
    std::unique_ptr<BareTier> bare(new BareTier);
    SsdTierOptions options;
    options.directory = dir + "/tier";
    options.capacity_bytes = kTierBytes;
    options.clock = &bare->clock_;
    KVTIER_ASSIGN_OR_RETURN(bare->tier_, SsdTier::Open(std::move(options)));
    bare->tier_->Recover([](std::span<const StoredPart>) {});
    return bare;
  }

  uint64_t bytes() const { return kTransferBlock * parts_.size(); }

  // As many parts as one segment holds, a new segment each time; the one before it goes.
  absl::StatusOr<double> Write() {
    std::vector<WriteOp> ops(parts_.size());
    for (size_t i = 0; i < ops.size(); ++i) {
      ops[i].id.key = BlockKey{++serial_, i};
      ops[i].from = from_.block(i);
      ops[i].checksum = parts_[i].checksum;
    }
    const Stopwatch watch;
    tier_->Write(ops, TimePoint::max());
    const double seconds = watch.Seconds();
    std::vector<Location> before;
    for (size_t i = 0; i < ops.size(); ++i) {
      KVTIER_RETURN_IF_ERROR(ops[i].status);
      if (written_) before.push_back(parts_[i].location);
      parts_[i].id = ops[i].id;
      parts_[i].location = ops[i].location;
    }
    written_ = true;
    tier_->Erase(before);
    return seconds;
  }

  absl::StatusOr<double> Read() {
    return bench::SideBySide(&readers_, kDepth, parts_.size(), [this](int /*thread*/, uint64_t i) {
      ReadOp op = parts_[i];
      op.to = to_.block(i);
      tier_->Read(std::span(&op, 1), TimePoint::max());
      return op.status;
    });
  }

 private:
  static constexpr uint64_t kParts = 31;  // of 2 MiB, in a segment of 64 MiB

  BareTier() : from_(kTransferBytes), to_(kTransferBytes), parts_(kParts), readers_(kDepth) {
    for (size_t i = 0; i < parts_.size(); ++i) {
      std::memset(from_.block(i).data(), static_cast<int>(i + 1), kTransferBlock);
      parts_[i].checksum = PayloadChecksum(from_.block(i).data(), kTransferBlock);
    }
  }

  const SteadyClock clock_{};
  WarmMemory from_;
  WarmMemory to_;
  std::vector<ReadOp> parts_;  // what was written last
  uint64_t serial_ = 0;
  bool written_ = false;
  std::unique_ptr<SsdTier> tier_;
  ThreadPool readers_;
};

// Rates by turns with the disk's own; the first round warms up.
struct Series {
  std::vector<double> ours;
  std::vector<double> limits;
};

absl::Status MeasureTier(const BenchSetup& setup, const std::string& dir, BenchReport* report) {
  KVTIER_ASSIGN_OR_RETURN(const std::unique_ptr<BareTier> tier, BareTier::Open(dir));
  KVTIER_ASSIGN_OR_RETURN(
      const std::unique_ptr<RawDisk> disk,
      RawDisk::Make(dir, kTransferBlock, tier->bytes() / kTransferBlock, kDepth));
  Series writes, reads;
  uint64_t device_bytes = 0;
  for (int round = -1; round < setup.options().rounds; ++round) {
    KVTIER_ASSIGN_OR_RETURN(const double raw_write, disk->Write());
    const uint64_t before = bench::BytesWritten();
    KVTIER_ASSIGN_OR_RETURN(const double write, tier->Write());
    const uint64_t written = bench::BytesWritten() - before;
    KVTIER_ASSIGN_OR_RETURN(const double raw_read, disk->Read());
    KVTIER_ASSIGN_OR_RETURN(const double read, tier->Read());
    setup.output().Progress(
        absl::StrCat("bench: SSD tier, round ", round + 1, " of ", setup.options().rounds));
    if (round < 0) continue;
    device_bytes += written;
    writes.ours.push_back(Rate(tier->bytes(), write));
    writes.limits.push_back(Rate(disk->bytes(), raw_write));
    reads.ours.push_back(Rate(tier->bytes(), read));
    reads.limits.push_back(Rate(disk->bytes(), raw_read));
  }
  const double handed_in = static_cast<double>(tier->bytes()) * setup.options().rounds;
  report->AddLooseRate("ssd_write", writes.ours, kWrite, writes.limits, kTarget);
  report->AddLooseRate("ssd_read", reads.ours, kRead, reads.limits, kTarget);
  report->AddFact("ssd_write_amplification", static_cast<double>(device_bytes) / handed_in,
                  "bytes to the device a byte of payload");
  return absl::OkStatus();
}

absl::Status MeasureDurable(const BenchSetup& setup, const std::string& dir, BenchReport* report) {
  KVTIER_ASSIGN_OR_RETURN(const std::unique_ptr<SsdDaemon> daemon,
                          SsdDaemon::Start(setup, dir, kLargeRam));
  KVTIER_ASSIGN_OR_RETURN(const std::unique_ptr<RawDisk> disk,
                          RawDisk::Make(dir, kTransferBlock, kTransferBlocks, 1));
  Series rates;
  for (int round = -1; round < setup.options().rounds; ++round) {
    daemon->Next();
    KVTIER_ASSIGN_OR_RETURN(const double raw, disk->WriteNew());
    KVTIER_ASSIGN_OR_RETURN(const double store, daemon->StoreDurable());
    setup.output().Progress(
        absl::StrCat("bench: durable stores, round ", round + 1, " of ", setup.options().rounds));
    if (round < 0) continue;
    rates.ours.push_back(Rate(kTransferBytes, store));
    rates.limits.push_back(Rate(kTransferBytes, raw));
  }
  report->AddLooseRate("store_durable", rates.ours, kWriteNew, rates.limits, 0);
  return daemon->Stop();
}

}  // namespace

absl::Status BenchFetchSsd(const BenchSetup& setup, BenchReport* report) {
  KVTIER_ASSIGN_OR_RETURN(const auto dir, bench::TemporaryDirectory::Make(setup.options().dir));
  KVTIER_ASSIGN_OR_RETURN(const std::unique_ptr<SsdDaemon> daemon,
                          SsdDaemon::Start(setup, dir->path(), kSmallRam));
  for (uint32_t prompt = 0; prompt < kPrompts; ++prompt) {
    daemon->Choose(prompt);
    KVTIER_RETURN_IF_ERROR(daemon->StoreDurable().status());
  }
  KVTIER_ASSIGN_OR_RETURN(const std::unique_ptr<RawDisk> disk,
                          RawDisk::Make(dir->path(), kTransferBlock, kTransferBlocks, kDepth));
  Series rates, latencies, shared;
  for (uint32_t round = 0; round <= static_cast<uint32_t>(setup.options().rounds); ++round) {
    daemon->Choose(2 * round % kPrompts);
    KVTIER_ASSIGN_OR_RETURN(const double raw_one, disk->ReadOne(round));
    KVTIER_ASSIGN_OR_RETURN(const double one, daemon->Fetch(0, 1));
    KVTIER_ASSIGN_OR_RETURN(const double raw, disk->Read());
    KVTIER_ASSIGN_OR_RETURN(const double fetch, daemon->Fetch(1, kTransferBlocks - 1));
    daemon->Choose((2 * round + 1) % kPrompts);
    KVTIER_ASSIGN_OR_RETURN(const double share,
                            daemon->shares() ? daemon->FetchShared(0, kTransferBlocks) : 0);
    setup.output().Progress(
        absl::StrCat("bench: SSD fetches, round ", round, " of ", setup.options().rounds));
    if (round == 0) continue;  // warms up
    rates.ours.push_back(Rate(kTransferBytes - kTransferBlock, fetch));
    rates.limits.push_back(Rate(disk->bytes(), raw));
    shared.ours.push_back(Rate(kTransferBytes, share));
    latencies.ours.push_back(one * 1e6);
    latencies.limits.push_back(raw_one * 1e6);
  }
  report->AddLooseRate("fetch_ssd", rates.ours, kRead, rates.limits, kTarget);
  if (daemon->shares()) {
    report->AddLooseRate("fetch_ssd_shared", shared.ours, kRead, rates.limits, kTarget);
  }
  report->AddLooseLatency("fetch_ssd_one", latencies.ours, kReadOne, latencies.limits, 0);
  return daemon->Stop();
}

absl::Status BenchStoreSsd(const BenchSetup& setup, BenchReport* report) {
  KVTIER_ASSIGN_OR_RETURN(const auto dir, bench::TemporaryDirectory::Make(setup.options().dir));
  KVTIER_RETURN_IF_ERROR(MeasureTier(setup, dir->path(), report));
  return MeasureDurable(setup, dir->path(), report);
}

}  // namespace kvtier::cli
