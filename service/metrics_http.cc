#include "service/metrics_http.h"

#include <prometheus/collectable.h>
#include <prometheus/exposer.h>

#include <exception>
#include <utility>

namespace kvtier {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

struct Figure {
  const char* name;
  const char* help;
  MetricType type;
  double (*value)(const MetricsSnapshot&);
};

constexpr MetricType kCounter = MetricType::Counter;
constexpr MetricType kGauge = MetricType::Gauge;

#define KVTIER_STAT(member) [](const MetricsSnapshot& s) { return double(s.manager.member); }

const Figure kFigures[] = {
    {"kvtier_uptime_seconds", "Time since the daemon was ready. A drop is a restart.", kGauge,
     [](const MetricsSnapshot& s) { return s.uptime_seconds; }},
    {"kvtier_draining", "1 when new calls are refused: a stop or a drain was asked for.", kGauge,
     [](const MetricsSnapshot& s) { return s.draining ? 1.0 : 0.0; }},
    {"kvtier_process_memory_bytes",
     "Anonymous and shared memory of the daemon, pools included. Above the tiers' capacity plus "
     "256 MiB: lower max-connections-memory-bytes or report it.",
     kGauge, [](const MetricsSnapshot& s) { return double(s.process_memory_bytes); }},
    {"kvtier_open_streams",
     "Fetch and Store calls in flight. Near max-streams-per-client for one client: raise it.",
     kGauge, [](const MetricsSnapshot& s) { return double(s.open_streams); }},
    {"kvtier_models", "Registered models.", kGauge, KVTIER_STAT(models)},
    {"kvtier_blocks", "Distinct complete blocks over all tiers.", kGauge, KVTIER_STAT(blocks)},
    {"kvtier_index_bytes",
     "Memory of the block index, identities included. It comes on top of the tiers' capacity.",
     kGauge, KVTIER_STAT(index_bytes)},
    {"kvtier_identity_bytes", "Part of the index that holds tokens and engine hashes.", kGauge,
     KVTIER_STAT(identity_bytes)},
    {"kvtier_leases", "Open leases. Only ever growing: an engine does not release.", kGauge,
     KVTIER_STAT(leases)},
    {"kvtier_pinned_blocks",
     "Blocks that cannot leave now. Near kvtier_tier_blocks: shorten leases or grow the tier.",
     kGauge, KVTIER_STAT(pinned_blocks)},
    {"kvtier_lookups_total", "Lookup calls that were answered.", kCounter, KVTIER_STAT(lookups)},
    {"kvtier_lookup_blocks_total", "Full blocks in the prompts looked up.", kCounter,
     KVTIER_STAT(lookup_blocks)},
    {"kvtier_hit_blocks_total",
     "Blocks found by Lookup. Over kvtier_lookup_blocks_total: the hit ratio. Low with evictions: "
     "grow a tier; low without: prompts share no prefix.",
     kCounter, KVTIER_STAT(hit_blocks)},
    {"kvtier_fetched_blocks_total", "Parts of blocks streamed whole to engines.", kCounter,
     KVTIER_STAT(fetched_blocks)},
    {"kvtier_fetch_missed_blocks_total",
     "Parts of blocks asked for by Fetch and not there. High: engines should look up with a lease.",
     kCounter, KVTIER_STAT(fetch_missed_blocks)},
    {"kvtier_stored_blocks_total", "Parts of blocks stored.", kCounter, KVTIER_STAT(stored_blocks)},
    {"kvtier_already_present_blocks_total",
     "Parts of blocks sent although they were there. High: engines should look up before they "
     "store.",
     kCounter, KVTIER_STAT(already_present_blocks)},
    {"kvtier_rejected_blocks_total",
     "Parts of blocks not stored. Rising: see the Store replies for the reason; NO_SPACE: shorten "
     "leases or grow the tier.",
     kCounter, KVTIER_STAT(rejected_blocks)},
    {"kvtier_checksum_failures_total",
     "Payload that did not match its checksum, and was not served. Any: check memory and network.",
     kCounter, KVTIER_STAT(checksum_failures)},
    {"kvtier_checksum_mismatches_total",
     "Blocks stored a second time with other bytes; the first stay. Normal for KV computed in "
     "another batch shape.",
     kCounter, KVTIER_STAT(checksum_mismatches)},
    {"kvtier_expired_leases_total",
     "Leases that ran out unreleased. Rising: engines die, or take longer than their lease.",
     kCounter, KVTIER_STAT(expired_leases)},
    {"kvtier_unreachable_blocks_total",
     "Blocks that left a tier unfindable, as a block before them was gone.", kCounter,
     KVTIER_STAT(unreachable_blocks)},
    {"kvtier_never_hit_blocks_total",
     "Blocks that left the last tier without one hit. Near all evictions: what is stored is not "
     "asked for again, or the tier is too small.",
     kCounter, KVTIER_STAT(never_hit_blocks)},
    {"kvtier_recorded_requests_total",
     "Lookups written by 'kvtier record'. Standing still while it is on and there is traffic: see "
     "'kvtier record status'.",
     kCounter, [](const MetricsSnapshot& s) { return double(s.recorded_requests); }},
    {"kvtier_recording_dropped_total",
     "Lookups left out of a recording. Rising: they come faster than the disk takes them, and the "
     "recording is a sample.",
     kCounter, [](const MetricsSnapshot& s) { return double(s.recording_dropped); }},
    {"kvtier_funnel_verified_blocks_total",
     "Blocks that clients fetched by a lease, checked and used, as they told at its release. Far "
     "below kvtier_funnel_fetched_blocks_total: clients do not tell, or fetch without a lease.",
     kCounter, KVTIER_STAT(verified_blocks)},
    {"kvtier_funnel_prefill_seconds_total",
     "Prefill time of the verified blocks, for leases whose engine's prefill rate is known. 0 with "
     "verified blocks: set prefill-tokens-per-second.",
     kCounter, KVTIER_STAT(prefill_seconds)},
    {"kvtier_funnel_fetch_seconds_total",
     "Time that the fetches of those leases took. kvtier_funnel_prefill_seconds_total minus this "
     "is the time saved; above it: recomputing is faster, see 'kvtier advise'.",
     kCounter, KVTIER_STAT(lease_fetch_seconds)},
    {"kvtier_stalled_fetches_total",
     "Fetches left out of the measured speeds, as their reader did not keep up. Most of them: "
     "engines read too slowly, or the network does not keep up.",
     kCounter, KVTIER_STAT(stalled_fetches)},
};

#undef KVTIER_STAT

struct TierFigure {
  const char* name;
  const char* help;
  MetricType type;
  uint64_t TierStats::*member;
};

const TierFigure kTierFigures[] = {
    {"kvtier_tier_blocks", "Complete blocks in the tier.", kGauge, &TierStats::blocks},
    {"kvtier_tier_hits_total", "Blocks that Lookup found with this tier as the best.", kCounter,
     &TierStats::hits},
    {"kvtier_tier_evictions_total",
     "Blocks that left the tier to make room. High with a low hit ratio: grow the tier.", kCounter,
     &TierStats::evictions},
    {"kvtier_tier_promotions_total", "Blocks copied up into the tier.", kCounter,
     &TierStats::promotions},
    {"kvtier_tier_demotions_total", "Blocks copied down into the tier.", kCounter,
     &TierStats::demotions},
    {"kvtier_tier_written_bytes_total", "Payload put into the tier.", kCounter,
     &TierStats::bytes_written},
    {"kvtier_tier_read_bytes_total", "Payload taken from the tier.", kCounter,
     &TierStats::bytes_read},
    {"kvtier_funnel_fetched_blocks_total",
     "Blocks that Fetch served from the tier, counted by their first part. Far below "
     "kvtier_tier_hits_total: engines look up what they do not fetch.",
     kCounter, &TierStats::fetched_blocks},
    {"kvtier_funnel_fetched_bytes_total", "Payload that Fetch served from the tier.", kCounter,
     &TierStats::fetched_bytes},
};

struct TierUsageFigure {
  const char* name;
  const char* help;
  uint64_t TierUsage::*member;
};

const TierUsageFigure kTierUsageFigures[] = {
    {"kvtier_tier_capacity_bytes", "Limit of the tier; 0: off.", &TierUsage::capacity_bytes},
    {"kvtier_tier_used_bytes",
     "Bytes in slots that hold a part, or are being given one; on SSD: of files with live records.",
     &TierUsage::used_bytes},
    {"kvtier_tier_backed_bytes",
     "Memory taken from the system; on SSD: all payload files. Above capacity for long after a "
     "shrink: pins hold it.",
     &TierUsage::backed_bytes},
};

struct SsdFigure {
  const char* name;
  const char* help;
  MetricType type;
  uint64_t (*value)(const SsdTierStats&, const ManagerStats&);
};

#define KVTIER_TIER_STAT(member) [](const SsdTierStats& s, const ManagerStats&) { return s.member; }
#define KVTIER_LOG_STAT(member) [](const SsdTierStats&, const ManagerStats& s) { return s.member; }

const SsdFigure kSsdFigures[] = {
    {"kvtier_ssd_files", "Files with live records.", kGauge, KVTIER_TIER_STAT(files)},
    {"kvtier_ssd_live_records", "Parts of blocks that can be read from SSD.", kGauge,
     KVTIER_TIER_STAT(live_records)},
    {"kvtier_ssd_dead_records",
     "Records in files with live ones, whose space comes back with the file's. More than the live "
     "ones: much was reset or written twice; it goes by itself.",
     kGauge, KVTIER_TIER_STAT(dead_records)},
    {"kvtier_ssd_segments", "Files of the log, in the order in which they leave.", kGauge,
     KVTIER_LOG_STAT(ssd_segments)},
    {"kvtier_ssd_file_written_bytes_total",
     "Bytes written to SSD, headers and padding included. Over "
     "kvtier_tier_read_bytes_total{tier=\"ssd\"}: bytes written per byte served from SSD. Above 1 "
     "for days: the SSD wears for little; grow ssd-bytes, or set ssd-write-limit.",
     kCounter, KVTIER_TIER_STAT(file_bytes_written)},
    {"kvtier_ssd_payload_written_bytes_total",
     "Payload in what was written. kvtier_ssd_file_written_bytes_total over this: the write "
     "amplification. Above 1.1: parts are small; make blocks larger.",
     kCounter, KVTIER_TIER_STAT(payload_bytes_written)},
    {"kvtier_ssd_files_retired_total",
     "Files removed. Their rate times their size is how fast the SSD turns over; under a day: "
     "grow ssd-bytes.",
     kCounter, KVTIER_TIER_STAT(files_retired)},
    {"kvtier_ssd_carried_blocks_total",
     "Blocks written again, as they were in use when their file was to leave. Near "
     "kvtier_tier_demotions_total: what is in use fills the SSD; grow ssd-bytes.",
     kCounter, KVTIER_LOG_STAT(ssd_carried_blocks)},
    {"kvtier_ssd_restored_blocks",
     "Blocks found on SSD at the start. 0 after a planned restart: look at the log for why.",
     kGauge, KVTIER_LOG_STAT(ssd_restored_blocks)},
    {"kvtier_ssd_skipped_blocks_total",
     "Blocks that left RAM unwritten, as the SSD took nothing or was too slow. Rising: see "
     "kvtier_ssd_state; if it serves, the SSD is too slow: set ssd-write-limit or use a faster "
     "one.",
     kCounter, KVTIER_LOG_STAT(ssd_skipped_blocks)},
    {"kvtier_ssd_limited_blocks_total",
     "Blocks that left RAM unwritten because of ssd-write-limit. Expected with a limit; with a low "
     "hit ratio: raise it.",
     kCounter, KVTIER_LOG_STAT(ssd_limited_blocks)},
    {"kvtier_ssd_waiting_blocks",
     "Blocks of DURABLE stores in the queue for the SSD. Above 0 for long: the SSD is too slow for "
     "that many.",
     kGauge, KVTIER_LOG_STAT(ssd_waiting_blocks)},
    {"kvtier_ssd_write_errors_total",
     "Writes, and removals, that failed. Any: see kvtier_ssd_state and the log; a full or broken "
     "disk.",
     kCounter, KVTIER_TIER_STAT(write_errors)},
    {"kvtier_ssd_read_errors_total",
     "Reads that the medium did not answer; each is a miss. Any: look at the kernel's log, the "
     "disk may be failing.",
     kCounter, KVTIER_TIER_STAT(read_errors)},
    {"kvtier_ssd_checksum_failures_total",
     "Reads that gave other bytes than were written; each is a miss. Any: stop the daemon, run "
     "'kvtier inspect --verify' and consider another disk.",
     kCounter, KVTIER_TIER_STAT(checksum_failures)},
};

#undef KVTIER_TIER_STAT
#undef KVTIER_LOG_STAT

struct SharedFigure {
  const char* name;
  const char* help;
  MetricType type;
  uint64_t SharedMemoryStats::*member;
};

const SharedFigure kSharedFigures[] = {
    {"kvtier_shared_sessions",
     "Clients that have shared memory. At shared-memory-sessions: others go over gRPC; raise it.",
     kGauge, &SharedMemoryStats::sessions},
    {"kvtier_shared_open_regions", "Regions of the RAM tier handed out to those clients.", kGauge,
     &SharedMemoryStats::open_regions},
    {"kvtier_shared_store_bytes",
     "Memory that those clients store through, on top of ram-bytes. Near sessions times "
     "shared-store-bytes is its most.",
     kGauge, &SharedMemoryStats::store_bytes},
    {"kvtier_shared_retired_regions",
     "Regions that the RAM tier gave up and some process still has mapped.", kGauge,
     &SharedMemoryStats::retired_regions},
    {"kvtier_shared_retired_bytes",
     "Memory of those regions, on top of ram-bytes. Not falling: a client is frozen or does not "
     "unmap; end it. Above a quarter of ram-bytes RAM takes no new memory.",
     kGauge, &SharedMemoryStats::retired_bytes},
    {"kvtier_shared_sessions_total",
     "Sessions that were opened. Rising fast: clients die, or are cut off.", kCounter,
     &SharedMemoryStats::sessions_total},
    {"kvtier_shared_refused_total",
     "Connections refused: another user, see shared-memory-uids, or too many, see "
     "shared-memory-sessions.",
     kCounter, &SharedMemoryStats::refused_total},
    {"kvtier_shared_cut_off_total",
     "Clients cut off, as they sent garbage or too much. Any: a client is broken or hostile.",
     kCounter, &SharedMemoryStats::cut_off_total},
    {"kvtier_shared_fetched_blocks_total",
     "Parts of blocks that clients were told the place of, to read them there.", kCounter,
     &SharedMemoryStats::fetched_blocks},
    {"kvtier_shared_fetched_bytes_total", "Payload in them.", kCounter,
     &SharedMemoryStats::fetched_bytes},
    {"kvtier_shared_not_shared_blocks_total",
     "Parts of blocks that go over gRPC: they came from SSD and had no room in RAM, or lie in "
     "another user's pool. High: grow ram-bytes, shorten leases, or give users prompts of their "
     "own.",
     kCounter, &SharedMemoryStats::not_shared_blocks},
    {"kvtier_shared_stored_blocks_total", "Parts of blocks stored through shared memory.", kCounter,
     &SharedMemoryStats::stored_blocks},
    {"kvtier_shared_stored_bytes_total", "Payload in them.", kCounter,
     &SharedMemoryStats::stored_bytes},
};

ClientMetric Sample(MetricType type, double value, std::vector<ClientMetric::Label> labels = {}) {
  ClientMetric metric;
  metric.label = std::move(labels);
  if (type == kCounter) {
    metric.counter.value = value;
  } else {
    metric.gauge.value = value;
  }
  return metric;
}

// One sample per tier.
template <typename Value>
MetricFamily TierFamily(const char* name, const char* help, MetricType type, Value value) {
  MetricFamily family{name, help, type, {}};
  for (const TierKind tier : kAllTiers) {
    family.metric.push_back(Sample(type, static_cast<double>(value(static_cast<size_t>(tier))),
                                   {{"tier", std::string(TierName(tier))}}));
  }
  return family;
}

// A tier is asked for what no faster one had, so its hits and misses add up to what it was asked
// for.
uint64_t TierMisses(const ManagerStats& stats, size_t tier) {
  uint64_t misses = stats.lookup_blocks;
  for (size_t i = 0; i <= tier; ++i) misses -= stats.tiers[i].hits;
  return stats.tiers[tier].on ? misses : 0;
}

void AddTierFamilies(const ManagerStats& stats, std::vector<MetricFamily>* out) {
  for (const TierUsageFigure& figure : kTierUsageFigures) {
    out->push_back(TierFamily(figure.name, figure.help, kGauge,
                              [&](size_t tier) { return stats.tiers[tier].usage.*figure.member; }));
  }
  for (const TierFigure& figure : kTierFigures) {
    out->push_back(TierFamily(figure.name, figure.help, figure.type,
                              [&](size_t tier) { return stats.tiers[tier].*figure.member; }));
  }
  out->push_back(TierFamily(
      "kvtier_tier_measured_bytes_per_second",
      "How fast fetches from the tier were lately, as clients see it; 0: not measured yet. What "
      "Lookup's load_seconds rests on. Lower than the medium's own rate: it is busy.",
      kGauge, [&](size_t tier) { return stats.tiers[tier].speed.BytesPerSecond(); }));
  out->push_back(TierFamily(
      "kvtier_tier_measured_first_byte_seconds",
      "What a fetch from the tier took lately on top, whatever its size. Above 50 ms on SSD: the "
      "disk is busy; set ssd-write-limit.",
      kGauge, [&](size_t tier) { return stats.tiers[tier].speed.first_byte_seconds; }));
  out->push_back(
      TierFamily("kvtier_tier_misses_total",
                 "Blocks that Lookup asked this tier for, as no faster tier had them, and "
                 "did not find. With hits: all it was asked for.",
                 kCounter, [&](size_t tier) { return TierMisses(stats, tier); }));
}

ClientMetric HistogramSample(const LatencyHistogram::Snapshot& latency,
                             std::vector<ClientMetric::Label> labels) {
  ClientMetric metric;
  metric.label = std::move(labels);
  metric.histogram.sample_count = latency.count;
  metric.histogram.sample_sum = latency.sum_seconds;
  uint64_t cumulative = 0;
  for (int i = 0; i + 1 < LatencyHistogram::kBuckets; ++i) {
    cumulative += latency.counts[i];
    metric.histogram.bucket.push_back({cumulative, LatencyHistogram::UpperBound(i)});
  }
  return metric;
}

MetricFamily SsdStateFamily(SsdState now) {
  MetricFamily family{"kvtier_ssd_state",
                      "1 for the state that the SSD tier is in. read-only: writing failed, what is "
                      "there is read; reopening: RAM serves alone. Both are retried; longer than a "
                      "minute: see the note in 'kvtier status', the disk is full or broken.",
                      kGauge,
                      {}};
  for (const SsdState state : {SsdState::kServing, SsdState::kReadOnly, SsdState::kReopening}) {
    family.metric.push_back(
        Sample(kGauge, state == now ? 1 : 0, {{"state", std::string(SsdStateName(state))}}));
  }
  return family;
}

void AddSsdFamilies(const SsdTierStats& ssd, const ManagerStats& stats,
                    std::vector<MetricFamily>* out) {
  out->push_back(SsdStateFamily(ssd.state));
  for (const SsdFigure& figure : kSsdFigures) {
    const double value = static_cast<double>(figure.value(ssd, stats));
    out->push_back({figure.name, figure.help, figure.type, {Sample(figure.type, value)}});
  }
  out->push_back({"kvtier_ssd_read_seconds",
                  "Time to read one record from SSD, verified. Above 10 ms for one in a hundred: "
                  "the disk is busy; set ssd-write-limit or lower ssd-read-threads.",
                  MetricType::Histogram,
                  {HistogramSample(ssd.read_latency, {})}});
}

void AddSharedFamilies(const SharedMemoryStats& shared, std::vector<MetricFamily>* out) {
  for (const SharedFigure& figure : kSharedFigures) {
    const double value = static_cast<double>(shared.*figure.member);
    out->push_back({figure.name, figure.help, figure.type, {Sample(figure.type, value)}});
  }
}

// A series for each user that may map RAM; there are as many as the operator lists.
void AddPoolFamilies(const std::vector<SlotPool::DomainUsage>& pools,
                     std::vector<MetricFamily>* out) {
  if (pools.empty()) return;
  MetricFamily backed{"kvtier_shared_pool_bytes",
                      "Memory of the RAM tier in each user's pool, by uid; none: of what came over "
                      "gRPC, and nobody may map. One user's near ram-bytes: the others go over "
                      "gRPC or SSD; grow ram-bytes.",
                      kGauge,
                      {}};
  MetricFamily used{"kvtier_shared_pool_used_bytes",
                    "Of that, in slots that hold blocks. Far below it: the pool waits for another "
                    "user to need the rest.",
                    kGauge,
                    {}};
  for (const SlotPool::DomainUsage& pool : pools) {
    const std::string uid = pool.domain.common() ? "none" : absl::StrCat(pool.domain.uid());
    backed.metric.push_back(Sample(kGauge, static_cast<double>(pool.backed_bytes), {{"uid", uid}}));
    used.metric.push_back(Sample(kGauge, static_cast<double>(pool.used_bytes), {{"uid", uid}}));
  }
  out->push_back(std::move(backed));
  out->push_back(std::move(used));
}

// Whole powers of two, to keep the number of series down.
void AddCurveFamilies(const std::vector<CurveSnapshot>& curves, const HitCurveStats& stats,
                      std::vector<MetricFamily>* out) {
  MetricFamily family{
      "kvtier_estimated_hit_ratio",
      "Share of the blocks looked up that would be found if the tier had scale times "
      "its present size, over the last 32,768 lookups; ssd: in all tiers together. "
      "Scale 2 well above scale 1: grow the tier. Scale 0.5 like 1: it may shrink.",
      kGauge,
      {}};
  for (const CurveSnapshot& curve : curves) {
    for (const TierCurve& tier : curve.tiers) {
      for (const CurvePoint& point : tier.points) {
        if (point.half_octaves % 2 != 0) continue;
        family.metric.push_back(Sample(kGauge, point.hit_ratio,
                                       {{"tier", std::string(TierName(tier.tier))},
                                        {"scale", absl::StrCat(point.scale)},
                                        {"model", curve.model}}));
      }
    }
  }
  out->push_back(std::move(family));
  out->push_back({"kvtier_hit_curve_bytes",
                  "Memory of the estimate in kvtier_estimated_hit_ratio; at most 64 MiB.",
                  kGauge,
                  {Sample(kGauge, static_cast<double>(stats.memory_bytes))}});
}

void AddRpcFamilies(const std::vector<RpcSnapshot>& rpcs, std::vector<MetricFamily>* out) {
  MetricFamily latency{"kvtier_rpc_seconds",
                       "Time of the calls that ended, by rpc; _count is their number, failed ones "
                       "included. Lookup above 10 ms: the host is short of CPU.",
                       MetricType::Histogram,
                       {}};
  MetricFamily errors{"kvtier_rpc_errors_total",
                      "Calls that ended with an error, by rpc and status code. Look the code up in "
                      "the log under the caller's kvtier-request-id.",
                      kCounter,
                      {}};
  for (const RpcSnapshot& rpc : rpcs) {
    latency.metric.push_back(HistogramSample(rpc.latency, {{"rpc", rpc.rpc}}));
    for (const auto& [code, count] : rpc.errors) {
      errors.metric.push_back(
          Sample(kCounter, static_cast<double>(count), {{"rpc", rpc.rpc}, {"code", code}}));
    }
  }
  out->push_back(std::move(latency));
  out->push_back(std::move(errors));
}

class SnapshotCollectable final : public prometheus::Collectable {
 public:
  explicit SnapshotCollectable(std::function<MetricsSnapshot()> take) : take_(std::move(take)) {}
  std::vector<MetricFamily> Collect() const override { return ToFamilies(take_()); }

 private:
  const std::function<MetricsSnapshot()> take_;
};

class ExposedMetrics final : public MetricsHttp {
 public:
  ExposedMetrics(const std::string& address, std::function<MetricsSnapshot()> take)
      : collectable_(std::make_shared<SnapshotCollectable>(std::move(take))), exposer_(address) {
    exposer_.RegisterCollectable(collectable_);
  }
  int port() const override { return exposer_.GetListeningPorts().front(); }

 private:
  const std::shared_ptr<SnapshotCollectable> collectable_;
  prometheus::Exposer exposer_;  // destroyed first: then nobody collects
};

}  // namespace

std::vector<MetricFamily> ToFamilies(const MetricsSnapshot& snapshot) {
  std::vector<MetricFamily> out;
  out.push_back({"kvtier_build_info",
                 "Always 1; the version that runs. Two values at once: a rollout is under way.",
                 kGauge,
                 {Sample(kGauge, 1, {{"version", KVTIER_VERSION}})}});
  for (const Figure& figure : kFigures) {
    out.push_back(
        {figure.name, figure.help, figure.type, {Sample(figure.type, figure.value(snapshot))}});
  }
  AddTierFamilies(snapshot.manager, &out);
  if (snapshot.ssd) AddSsdFamilies(*snapshot.ssd, snapshot.manager, &out);
  if (snapshot.shared_memory) AddSharedFamilies(*snapshot.shared_memory, &out);
  AddPoolFamilies(snapshot.shared_pools, &out);
  AddCurveFamilies(snapshot.curves, snapshot.curve_stats, &out);
  AddRpcFamilies(snapshot.rpcs, &out);
  return out;
}

absl::StatusOr<std::unique_ptr<MetricsHttp>> MetricsHttp::Start(
    const std::string& host_and_port, std::function<MetricsSnapshot()> take) {
  try {
    return std::unique_ptr<MetricsHttp>(new ExposedMetrics(host_and_port, std::move(take)));
  } catch (const std::exception& error) {
    return absl::UnavailableError(absl::StrCat("metrics-listen: cannot listen on ", host_and_port,
                                               " (", error.what(),
                                               "): another process may have the port"));
  }
}

}  // namespace kvtier
