#include "cli/replay.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <span>
#include <thread>

#include "cli/pace.h"
#include "cli/replay_payload.h"
#include "common/bytes.h"
#include "common/executor.h"
#include "common/mutex.h"
#include "common/prompt.h"
#include "kvtier/client.h"

namespace kvtier::cli {
namespace {

constexpr Duration kProgressEvery = std::chrono::seconds(2);
// Long prompts are stored in several calls, so that memory does not grow with the request.
constexpr uint64_t kStoreCallBytes = uint64_t{256} << 20;
constexpr uint64_t kRealTokenBytes = 327680;  // KV of one token of Llama-3-70B in bf16

float Microseconds(Duration duration) { return static_cast<float>(duration.count()) * 1e-3f; }

// What one client counted; the report is their sum.
struct Tally {
  ReplayReport counts;
  std::vector<float> lookup_us, fetch_us, store_us, release_us;
};

// Runs `call` and notes how long it took.
template <typename F>
auto Timed(std::vector<float>* latencies, F&& call) {
  const TimePoint start = std::chrono::steady_clock::now();
  auto result = call();
  latencies->push_back(Microseconds(std::chrono::steady_clock::now() - start));
  return result;
}

// Hands the trace's requests out in order, to any number of clients, and keeps the pace.
// Thread-safe.
class Dispatcher {
 public:
  Dispatcher(const ReplayOptions& options, TraceSource& trace,
             const std::function<void(const std::string&)>& progress)
      : options_(options), progress_(progress), trace_(trace), start_(SteadyClock().Now()) {}

  struct Ticket {
    uint64_t number;  // from 1
    TraceRequest request;
  };

  // Empty at the end, and for everyone once a client has failed. Waits until the request is due.
  absl::StatusOr<std::optional<Ticket>> Next() KVTIER_EXCLUDES(mutex_) {
    std::optional<Ticket> ticket;
    TimePoint due;
    {
      MutexLock lock(mutex_);
      if (stopped_ || (options_.limit > 0 && given_ == options_.limit)) return ticket;
      KVTIER_ASSIGN_OR_RETURN(std::optional<TraceRequest> request, trace_.Next());
      if (!request) return ticket;
      if (given_ == 0) first_ms_ = request->timestamp_ms;
      ticket = Ticket{++given_, *std::move(request)};
      due = Due(ticket->request);
      ReportProgress();
    }
    if (options_.speed > 0) std::this_thread::sleep_until(due);
    return ticket;
  }

  void Stop() KVTIER_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    stopped_ = true;
  }

 private:
  // The pace begins with the first request: a later file of a recording begins late.
  TimePoint Due(const TraceRequest& request) const KVTIER_REQUIRES(mutex_) {
    return start_ + SecondsAhead((request.timestamp_ms - first_ms_) * 1e-3 / options_.speed);
  }

  void ReportProgress() KVTIER_REQUIRES(mutex_) {
    const TimePoint now = SteadyClock().Now();
    if (now - reported_ < kProgressEvery) return;
    reported_ = now;
    const double seconds = std::chrono::duration<double>(now - start_).count();
    progress_(absl::StrCat("replay: ", given_, " requests in ", Fixed(seconds, 1), " s"));
  }

  const ReplayOptions& options_;
  const std::function<void(const std::string&)>& progress_;
  Mutex mutex_;
  TraceSource& trace_ KVTIER_GUARDED_BY(mutex_);
  const TimePoint start_;
  TimePoint reported_ KVTIER_GUARDED_BY(mutex_) = SteadyClock().Now();
  uint64_t given_ KVTIER_GUARDED_BY(mutex_) = 0;
  double first_ms_ KVTIER_GUARDED_BY(mutex_) = 0;  // timestamp of the first request
  bool stopped_ KVTIER_GUARDED_BY(mutex_) = false;
};

// One engine: one request at a time.
class ReplayClient {
 public:
  ReplayClient(const ReplayOptions& options, Client& client, const RegisteredModel& model,
               ReplaySlices& slices)
      : options_(options),
        client_(client),
        model_(model),
        slices_(slices),
        start_(SteadyClock().Now()) {
    const std::string root = CanonicalRoot(model.id, Name(), PromptKind::kTokens,
                                           options.block_tokens * sizeof(uint32_t));
    root_ = Digest128::Of(root);
  }

  absl::Status Run(Dispatcher& dispatcher) {
    while (true) {
      KVTIER_ASSIGN_OR_RETURN(const std::optional<Dispatcher::Ticket> ticket, dispatcher.Next());
      if (!ticket) return absl::OkStatus();
      const ReplaySlice before = SoFar();
      const absl::Status status = RunRequest(ticket->request);
      if (!status.ok()) return Annotate(status, absl::StrCat("request ", ticket->number));
      slices_.Add(ticket->number, before, SoFar());
    }
  }

  Tally& tally() { return tally_; }

 private:
  Namespace Name() const { return Namespace{.tenant = options_.tenant, .salt = "", .adapter = ""}; }

  ReplaySlice SoFar() const {
    const ReplayReport& counts = tally_.counts;
    return {.requests = counts.requests,
            .blocks = counts.blocks,
            .hit_blocks_by_tier = counts.hit_blocks_by_tier,
            .fetched_bytes = counts.fetched_bytes,
            .stored_bytes = counts.stored_bytes,
            .end_seconds = std::chrono::duration<double>(SteadyClock().Now() - start_).count(),
            .ssd_written = std::nullopt};
  }

  absl::Status RunRequest(const TraceRequest& request) {
    Prepare(request);
    ++tally_.counts.requests;
    tally_.counts.blocks += keys_.size();
    if (keys_.empty()) return absl::OkStatus();
    const Prompt prompt{
        .model = model_.id, .name = Name(), .tokens = tokens_, .engine_hashes = {}, .media = {}};
    absl::StatusOr<PrefixMatch> match = Timed(&tally_.lookup_us, [&] {
      return client_.Lookup(prompt, {.lease = options_.lease,
                                     .promote_to = std::nullopt,
                                     .prefill_tokens_per_second = options_.prefill_rate});
    });
    KVTIER_RETURN_IF_ERROR(match.status());
    CountHits(*match);
    if (match->blocks > 0) KVTIER_RETURN_IF_ERROR(FetchHits(*match));
    KVTIER_RETURN_IF_ERROR(StoreRest(prompt, match->blocks));
    if (!match->lease) return absl::OkStatus();
    return Timed(&tally_.release_us, [&] { return match->lease.Release(); });
  }

  void Prepare(const TraceRequest& request) {
    const size_t blocks = UsedBlocks(request, options_.block_tokens, options_.full_only);
    tokens_.resize(blocks * options_.block_tokens);
    for (size_t i = 0; i < blocks; ++i) {
      BlockTokens(request.hash_ids[i],
                  std::span(tokens_).subspan(i * options_.block_tokens, options_.block_tokens));
    }
    keys_ = BlockKeys(root_, tokens_, options_.block_tokens);
  }

  void CountHits(const PrefixMatch& match) {
    tally_.counts.hit_blocks += match.blocks;
    for (const TierSpan& run : match.runs) {
      tally_.counts.hit_blocks_by_tier[static_cast<size_t>(run.tier)] += run.blocks;
    }
  }

  absl::Status FetchHits(const PrefixMatch& match) {
    std::vector<uint64_t> good_bytes(match.blocks, 0);  // seen so far, each as it must be
    const PieceVisitor check = [&](const PieceView& piece) {
      if (piece.block < match.blocks &&
          PayloadMatches(keys_[piece.block], options_.block_bytes, piece.offset, piece.bytes)) {
        good_bytes[piece.block] += piece.bytes.size();
      }
    };
    const FetchParams params{
        .first_block = 0, .last_block = match.blocks, .part = {}, .allow_gaps = false};
    absl::StatusOr<FetchReport> report = Timed(
        &tally_.fetch_us, [&] { return client_.FetchViews(match.lease.id(), params, check); });
    KVTIER_RETURN_IF_ERROR(report.status());
    if (report->blocks.size() != match.blocks) {
      return absl::InternalError(absl::StrCat("Fetch told of ", report->blocks.size(),
                                              " blocks, asked for were ", match.blocks));
    }
    for (uint32_t i = 0; i < match.blocks; ++i) {
      CountFetched(report->blocks[i], good_bytes[i]);
    }
    return absl::OkStatus();
  }

  void CountFetched(const FetchedBlock& block, uint64_t good_bytes) {
    if (block.status != FetchStatus::kOk) {
      ++tally_.counts.missed_blocks;
      return;
    }
    tally_.counts.fetched_bytes += block.bytes;
    const bool good = block.bytes == options_.block_bytes && good_bytes == block.bytes;
    ++(good ? tally_.counts.verified_blocks : tally_.counts.wrong_blocks);
  }

  absl::Status StoreRest(const Prompt& prompt, uint32_t first) {
    const uint64_t per_call = std::max<uint64_t>(1, kStoreCallBytes / options_.block_bytes);
    bool room = true;
    for (uint64_t begin = first; begin < keys_.size() && room; begin += per_call) {
      const uint64_t end = std::min<uint64_t>(keys_.size(), begin + per_call);
      KVTIER_ASSIGN_OR_RETURN(room, StoreBlocks(prompt, begin, end));
      if (!room) tally_.counts.rejected_blocks += keys_.size() - end;
    }
    return absl::OkStatus();
  }

  // Whether all of them found room.
  absl::StatusOr<bool> StoreBlocks(const Prompt& prompt, uint64_t begin, uint64_t end) {
    buffer_.resize(std::max<size_t>(buffer_.size(), (end - begin) * options_.block_bytes));
    std::vector<std::span<const std::byte>> payloads;
    for (uint64_t i = begin; i < end; ++i) {
      const std::span<std::byte> payload =
          std::span(buffer_).subspan((i - begin) * options_.block_bytes, options_.block_bytes);
      FillPayload(keys_[i], payload);
      payloads.push_back(payload);
    }
    Prompt up_to = prompt;
    up_to.tokens = prompt.tokens.first(end * options_.block_tokens);
    StoreParams params;
    params.first_block = static_cast<uint32_t>(begin);
    params.first_missing = params.first_block;
    const absl::StatusOr<StoreReport> report =
        Timed(&tally_.store_us, [&] { return client_.Store(up_to, params, payloads); });
    if (absl::IsResourceExhausted(report.status())) {  // not one block fits
      tally_.counts.rejected_blocks += end - begin;
      return false;
    }
    KVTIER_RETURN_IF_ERROR(report.status());
    return CountStored(*report);
  }

  absl::StatusOr<bool> CountStored(const StoreReport& report) {
    bool room = true;
    for (const StoredBlock& block : report.blocks) {
      if (block.verdict == StoreVerdict::kStored) {
        ++tally_.counts.stored_blocks;
        tally_.counts.stored_bytes += options_.block_bytes;
      } else if (block.verdict == StoreVerdict::kAlreadyPresent) {
        ++tally_.counts.present_blocks;
      } else if (block.refusal == StoreRefusal::kNoSpace ||
                 block.refusal == StoreRefusal::kNoParent) {  // its parent found no room
        ++tally_.counts.rejected_blocks;
        room = false;
      } else {
        return absl::InternalError(
            absl::StrCat("Store rejected a block for reason ", static_cast<int>(block.refusal)));
      }
    }
    return room;
  }

  const ReplayOptions& options_;
  Client& client_;
  const RegisteredModel& model_;
  ReplaySlices& slices_;
  const TimePoint start_;
  BlockKey root_;
  std::vector<uint32_t> tokens_;
  std::vector<BlockKey> keys_;
  std::vector<std::byte> buffer_;  // kept, because first touch of memory costs more than filling it
  Tally tally_;
};

absl::Status CheckOptions(const ReplayOptions& options) {
  KVTIER_RETURN_IF_ERROR(CheckPayloadBytes(options.block_bytes));
  if (options.clients < 1 || options.clients > 256) {
    return absl::InvalidArgumentError(
        absl::StrCat("clients is ", options.clients, ", the limits are 1 and 256"));
  }
  if (!(options.speed >= 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("speed is ", options.speed, ", a number from 0 is needed"));
  }
  if (!(options.prefill_rate >= 0 && options.prefill_rate <= 1e9)) {
    return absl::InvalidArgumentError(
        absl::StrCat("prefill-rate is ", options.prefill_rate, ", the limits are 0 and 1e9"));
  }
  return ValidateSpec(ReplayModel(options));
}

absl::StatusOr<std::unique_ptr<Client>> ConnectTo(const ReplayOptions& options) {
  ClientOptions client;
  client.address = options.server;
  // A replay measures; it does not protect an engine. So: no breaker, generous deadlines.
  client.lookup_deadline = std::chrono::seconds(30);
  client.register_deadline = std::chrono::seconds(30);
  client.transfer_deadline = std::chrono::minutes(5);
  client.breaker.failures_to_open = 0;
  absl::StatusOr<std::unique_ptr<Client>> connected = Client::Connect(client);
  if (connected.ok()) return connected;
  return Annotate(connected.status(), absl::StrCat("cannot reach kvtierd at ", options.server,
                                                   ": is it running? --server gives its address"));
}

void Merge(const std::vector<float>& from, std::vector<float>* into) {
  into->insert(into->end(), from.begin(), from.end());
}

void Merge(const Tally& from, Tally* into) {
  ReplayReport& sum = into->counts;
  const ReplayReport& one = from.counts;
  sum.requests += one.requests;
  sum.blocks += one.blocks;
  sum.hit_blocks += one.hit_blocks;
  for (size_t i = 0; i < one.hit_blocks_by_tier.size(); ++i) {
    sum.hit_blocks_by_tier[i] += one.hit_blocks_by_tier[i];
  }
  sum.verified_blocks += one.verified_blocks;
  sum.wrong_blocks += one.wrong_blocks;
  sum.missed_blocks += one.missed_blocks;
  sum.stored_blocks += one.stored_blocks;
  sum.present_blocks += one.present_blocks;
  sum.rejected_blocks += one.rejected_blocks;
  sum.fetched_bytes += one.fetched_bytes;
  sum.stored_bytes += one.stored_bytes;
  Merge(from.lookup_us, &into->lookup_us);
  Merge(from.fetch_us, &into->fetch_us);
  Merge(from.store_us, &into->store_us);
  Merge(from.release_us, &into->release_us);
}

// Runs every client on a thread of its own to the end. The first error in the clients' order.
absl::Status RunClients(std::vector<std::unique_ptr<ReplayClient>>& clients,
                        Dispatcher& dispatcher) {
  std::vector<absl::Status> results(clients.size());
  {
    ThreadPool threads(static_cast<int>(clients.size()));
    for (size_t i = 0; i < clients.size(); ++i) {
      threads.Run([&, i] {
        results[i] = clients[i]->Run(dispatcher);
        if (!results[i].ok()) dispatcher.Stop();
      });
    }
  }
  for (const absl::Status& result : results) KVTIER_RETURN_IF_ERROR(result);
  return absl::OkStatus();
}

double Ratio(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

double TierRatio(const ReplayReport& report, CacheTier tier) {
  return Ratio(report.hit_blocks_by_tier[static_cast<size_t>(tier)], report.blocks);
}

std::string ScaleStatement(const ReplayOptions& options) {
  const uint64_t real = kRealTokenBytes * options.block_tokens;
  return absl::StrCat(
      "a block of ", options.block_tokens, " tokens has ", options.block_bytes,
      " bytes here; of Llama-3-70B in bf16 it has ", real, ", ",
      Fixed(static_cast<double>(real) / static_cast<double>(options.block_bytes), 1),
      " times as many");
}

Json LatencyJson(const LatencySummary& latency) {
  return {{"count", latency.count},
          {"p50", latency.p50},
          {"p90", latency.p90},
          {"p99", latency.p99},
          {"max", latency.max}};
}

Json SlicesJson(const std::vector<ReplaySlice>& slices) {
  Json out = Json::array();
  for (const ReplaySlice& slice : slices) {
    const auto hits = [&](CacheTier tier) {
      return slice.hit_blocks_by_tier[static_cast<size_t>(tier)];
    };
    out.push_back(
        {{"requests", slice.requests},
         {"end_seconds", slice.end_seconds},
         {"blocks", slice.blocks},
         {"hit_blocks_gpu", hits(CacheTier::kGpu)},
         {"hit_blocks_ram", hits(CacheTier::kRam)},
         {"hit_blocks_ssd", hits(CacheTier::kSsd)},
         {"fetched_bytes", slice.fetched_bytes},
         {"stored_bytes", slice.stored_bytes},
         {"ssd_written_blocks", slice.ssd_written ? Json(*slice.ssd_written) : Json(nullptr)}});
  }
  return out;
}

std::vector<std::string> LatencyRow(const std::string& name, const LatencySummary& latency) {
  return {name,
          WithCommas(latency.count),
          Fixed(latency.p50, 0),
          Fixed(latency.p90, 0),
          Fixed(latency.p99, 0),
          Fixed(latency.max, 0)};
}

std::optional<double> SsdWritesPerBlock(const ReplayReport& report,
                                        std::optional<double> ssd_writes) {
  if (!report.ssd_tier) return 0;
  if (!ssd_writes) return std::nullopt;
  return report.blocks == 0 ? 0 : *ssd_writes / static_cast<double>(report.blocks);
}

}  // namespace

LatencySummary Summarize(std::vector<float>* microseconds) {
  LatencySummary summary;
  summary.count = microseconds->size();
  if (microseconds->empty()) return summary;
  std::sort(microseconds->begin(), microseconds->end());
  // The smallest value that at least this share of the calls did not exceed.
  const auto at = [&](double share) {
    const auto rank = static_cast<size_t>(std::ceil(share * static_cast<double>(summary.count)));
    return static_cast<double>((*microseconds)[std::max<size_t>(rank, 1) - 1]);
  };
  summary.p50 = at(0.5);
  summary.p90 = at(0.9);
  summary.p99 = at(0.99);
  summary.max = microseconds->back();
  return summary;
}

ModelSpec ReplayModel(const ReplayOptions& options) {
  ModelSpec spec;
  spec.name = "kvtier-replay";
  spec.block_tokens = options.block_tokens;
  spec.pack_order = PackOrder::kOpaque;
  spec.explicit_part_bytes = {options.block_bytes};
  return spec;
}

void BlockTokens(uint64_t id, std::span<uint32_t> out) {
  uint64_t state = id * 0x9e3779b97f4a7c15 + 0x632be59bd9b4e019;
  for (uint32_t& token : out) {
    state = state * 6364136223846793005 + 1442695040888963407;
    token = static_cast<uint32_t>(state >> 32);
  }
}

absl::StatusOr<ReplayReport> Replay(const ReplayOptions& options, TraceSource& trace,
                                    const std::function<void(const std::string&)>& progress) {
  KVTIER_RETURN_IF_ERROR(CheckOptions(options));
  KVTIER_ASSIGN_OR_RETURN(const std::unique_ptr<Client> client, ConnectTo(options));
  KVTIER_ASSIGN_OR_RETURN(const RegisteredModel model, client->RegisterModel(ReplayModel(options)));
  ReplaySlices slices(options.ssd_written);
  std::vector<std::unique_ptr<ReplayClient>> clients;
  for (int i = 0; i < options.clients; ++i) {
    clients.push_back(std::make_unique<ReplayClient>(options, *client, model, slices));
  }
  const TimePoint start = SteadyClock().Now();
  Dispatcher dispatcher(options, trace, progress);
  KVTIER_RETURN_IF_ERROR(RunClients(clients, dispatcher));
  Tally total;
  total.counts.seconds = std::chrono::duration<double>(SteadyClock().Now() - start).count();
  for (const auto& one : clients) Merge(one->tally(), &total);
  ReplayReport report = total.counts;
  report.skipped_lines = trace.skipped_lines();
  for (const TierRoom& room : model.tiers) report.ssd_tier |= room.tier == CacheTier::kSsd;
  report.lookup = Summarize(&total.lookup_us);
  report.fetch = Summarize(&total.fetch_us);
  report.store = Summarize(&total.store_us);
  report.release = Summarize(&total.release_us);
  report.slices = slices.Take();
  return report;
}

absl::Status CheckReplay(const ReplayReport& report) {
  if (report.blocks == 0) {
    return absl::InvalidArgumentError("no request of the trace has a block: nothing was replayed");
  }
  if (report.hit_blocks + report.stored_blocks + report.present_blocks == 0) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the daemon kept none of ", report.blocks,
        " blocks: is --block-bytes larger than its RAM tier? 'kvtier status' shows the tiers"));
  }
  if (report.wrong_blocks == 0 && report.verified_blocks == report.hit_blocks) {
    return absl::OkStatus();
  }
  return absl::DataLossError(absl::StrCat(report.hit_blocks, " blocks were found and ",
                                          report.verified_blocks,
                                          " verified: ", report.wrong_blocks, " had wrong bytes, ",
                                          report.missed_blocks, " were gone"));
}

Json ReplayJson(const ReplayOptions& options, const ReplayReport& report,
                std::optional<double> ssd_writes) {
  const double hits = Ratio(report.hit_blocks, report.blocks);
  const std::optional<double> writes = SsdWritesPerBlock(report, ssd_writes);
  return {{"trace", options.trace},
          {"convention", options.full_only ? "full" : "all"},
          {"hit_ratio_all", options.full_only ? Json(nullptr) : Json(hits)},
          {"hit_ratio_full", options.full_only ? Json(hits) : Json(nullptr)},
          {"hit_ratio_gpu", TierRatio(report, CacheTier::kGpu)},
          {"hit_ratio_ram", TierRatio(report, CacheTier::kRam)},
          {"hit_ratio_ssd", TierRatio(report, CacheTier::kSsd)},
          {"requests", report.requests},
          {"skipped_lines", report.skipped_lines},
          {"blocks", report.blocks},
          {"hit_blocks", report.hit_blocks},
          {"verified_blocks", report.verified_blocks},
          {"wrong_blocks", report.wrong_blocks},
          {"missed_blocks", report.missed_blocks},
          {"stored_blocks", report.stored_blocks},
          {"present_blocks", report.present_blocks},
          {"rejected_blocks", report.rejected_blocks},
          {"ssd_writes_per_block", writes ? Json(*writes) : Json(nullptr)},
          {"fetched_bytes", report.fetched_bytes},
          {"stored_bytes", report.stored_bytes},
          {"seconds", report.seconds},
          {"clients", options.clients},
          {"block_tokens", options.block_tokens},
          {"block_bytes", options.block_bytes},
          {"scale", ScaleStatement(options)},
          {"latency_us",
           {{"lookup", LatencyJson(report.lookup)},
            {"fetch", LatencyJson(report.fetch)},
            {"store", LatencyJson(report.store)},
            {"release", LatencyJson(report.release)}}},
          {"slices", SlicesJson(report.slices)}};
}

std::string ReplayText(const ReplayOptions& options, const ReplayReport& report,
                       std::optional<double> ssd_writes) {
  const std::optional<double> writes = SsdWritesPerBlock(report, ssd_writes);
  Table latencies;
  latencies.Row({"latency, us", "calls", "p50", "p90", "p99", "max"})
      .Row(LatencyRow("Lookup", report.lookup))
      .Row(LatencyRow("Fetch", report.fetch))
      .Row(LatencyRow("Store", report.store))
      .Row(LatencyRow("Release", report.release));
  Table table;
  table.Row({"requests", WithCommas(report.requests)});
  if (report.skipped_lines > 0) table.Row({"skipped lines", WithCommas(report.skipped_lines)});
  table.Row({"seconds", Fixed(report.seconds, 1)})
      .Row({"blocks", WithCommas(report.blocks)})
      .Row({"hit blocks", WithCommas(report.hit_blocks)})
      .Row({"verified blocks", WithCommas(report.verified_blocks)})
      .Row({"wrong blocks", WithCommas(report.wrong_blocks)})
      .Row({"missed blocks", WithCommas(report.missed_blocks)})
      .Row({"stored blocks", WithCommas(report.stored_blocks)})
      .Row({"present already", WithCommas(report.present_blocks)})
      .Row({"rejected blocks", WithCommas(report.rejected_blocks)})
      .Row({"fetched", FormatBytes(report.fetched_bytes)})
      .Row({"stored", FormatBytes(report.stored_bytes)})
      .Row({"SSD writes per block", writes ? Fixed(*writes, 4) : "unknown"})
      .Row({"hit ratio, GPU", Fixed(TierRatio(report, CacheTier::kGpu), 4)})
      .Row({"hit ratio, RAM", Fixed(TierRatio(report, CacheTier::kRam), 4)})
      .Row({"hit ratio, SSD", Fixed(TierRatio(report, CacheTier::kSsd), 4)})
      .Row({options.full_only ? "hit ratio, full blocks" : "hit ratio, all blocks",
            Fixed(Ratio(report.hit_blocks, report.blocks), 4)});
  return absl::StrCat("Scale: ", ScaleStatement(options), "\n\n", latencies.ToString(), "\n",
                      table.ToString());
}

}  // namespace kvtier::cli
