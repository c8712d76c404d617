#include "service/server.h"

#include <array>
#include <chrono>
#include <filesystem>
#include <optional>
#include <utility>

#include "absl/strings/str_join.h"
#include "common/bytes.h"
#include "common/executor.h"
#include "common/mutex.h"
#include "service/admin_service.h"
#include "service/call_registry.h"
#include "service/data_dir.h"
#include "service/grpc_server.h"
#include "service/host_memory_info.h"
#include "service/kv_cache_service.h"
#include "service/metrics_http.h"
#include "service/recorder.h"
#include "service/shared_memory.h"
#include "storage/ssd_tier.h"

namespace kvtier {
namespace {

constexpr Duration kTick = std::chrono::milliseconds(50);
constexpr Duration kSaveModelsPause = std::chrono::seconds(1);
constexpr std::chrono::milliseconds kShutdownGrace(250);
constexpr uint64_t kProgressSteps = 10;
constexpr uint64_t kProgressFrom = uint64_t{4} << 30;  // smaller pools are there at once
constexpr int kGpuOrdinal = 0;
// What clients may keep of RAM that was given up, as a share of ram-bytes, before RAM takes no
// more.
constexpr uint64_t kRetiredShare = 4;
constexpr uint64_t kMinSsdBytes = uint64_t{16} << 20;  // a few of its smallest segments
constexpr size_t kMostModelCurves = 16;                // in the metrics
constexpr char kDataService[] = "kvtier.v1.KvCache";
constexpr char kSsdHealth[] = "kvtier.ssd";

size_t Index(TierKind tier) { return static_cast<size_t>(tier); }

Duration Milliseconds(uint64_t value) { return std::chrono::milliseconds(value); }

// What of a valid configuration this build and this host cannot serve.
absl::Status CheckServable(const Config& config) {
  if (config.ssd_bytes > 0 && config.ssd_bytes < kMinSsdBytes) {
    return absl::InvalidArgumentError(absl::StrCat("ssd-bytes: ", FormatBytes(config.ssd_bytes),
                                                   " is not allowed, must be 0 or at least ",
                                                   FormatBytes(kMinSsdBytes)));
  }
  KVTIER_ASSIGN_OR_RETURN(const uint64_t available, AvailableMemory());
  return CheckHostMemory("ram-bytes", config.ram_bytes, 0, available);
}

// The memory tiers and the devices below them.
struct Tiers {
  std::unique_ptr<SharedHostMemory> shared_host;  // null: RAM is not shared
  std::unique_ptr<DeviceMemory> plain_host;       // null: it is
  std::unique_ptr<DeviceMemory> gpu_device;
  std::unique_ptr<MemoryTier> ram;
  std::unique_ptr<MemoryTier> gpu;
  std::unique_ptr<SsdTier> ssd;
  std::array<std::string, kTiers> notes;
};

absl::StatusOr<std::unique_ptr<MemoryTier>> TakeTier(const char* field, TierKind kind,
                                                     DeviceMemory* device, uint64_t bytes) {
  auto tier = std::make_unique<MemoryTier>(kind, device, bytes);
  uint64_t steps = 0;
  KVTIER_RETURN_IF_ERROR(Annotate(tier->pool().Prefault([&](uint64_t done, uint64_t total) {
    if (total < kProgressFrom || done * kProgressSteps / total == steps) return;
    steps = done * kProgressSteps / total;
    Log(LogLevel::kInfo, "taking memory",
        {{"tier", TierName(kind)}, {"done", FormatBytes(done)}, {"of", FormatBytes(total)}});
  }),
                                  field));
  Log(LogLevel::kInfo, "tier on",
      {{"tier", TierName(kind)}, {"capacity", FormatBytes(bytes)}, {"in", device->name()}});
  return tier;
}

absl::StatusOr<std::unique_ptr<SsdTier>> OpenSsd(const Config& config, const std::string& directory,
                                                 const Clock* clock) {
  if (config.ssd_bytes == 0) return nullptr;
  SsdTierOptions options;
  options.directory = directory;
  options.capacity_bytes = config.ssd_bytes;
  options.clock = clock;
  KVTIER_ASSIGN_OR_RETURN(std::unique_ptr<SsdTier> tier, SsdTier::Open(std::move(options)));
  Log(LogLevel::kInfo, "tier on",
      {{"tier", TierName(TierKind::kSsd)},
       {"capacity", FormatBytes(config.ssd_bytes)},
       {"in", directory}});
  return tier;
}

bool WantsSharedMemory(const Config& config) {
  if (!config.shared_memory || SharedMemorySocket(config).empty()) return false;
  const absl::Status supported = SharedHostMemory::Supported();
  if (supported.ok()) return true;
  Log(LogLevel::kWarning, "shared memory is off, clients go over gRPC",
      {{"reason", std::string(supported.message())}});
  return false;
}

DeviceMemory* TakeHost(const Config& config, Tiers* tiers) {
  if (!WantsSharedMemory(config)) {
    tiers->plain_host = MakeHostMemory();
    return tiers->plain_host.get();
  }
  tiers->shared_host = MakeSharedHostMemory(config.ram_bytes / kRetiredShare);
  return tiers->shared_host.get();
}

// Null without memory that can be shared.
absl::StatusOr<std::unique_ptr<SharedMemory>> StartSharedMemory(const Config& config,
                                                                SharedHostMemory* memory) {
  if (memory == nullptr) return nullptr;
  SharedMemoryOptions options;
  options.socket_path = SharedMemorySocket(config);
  for (const std::string& uid : config.shared_memory_uids) {
    options.uids.push_back(static_cast<uid_t>(std::stoul(uid)));
  }
  options.pools = config.shared_memory_pools;
  options.max_sessions = static_cast<uint32_t>(config.shared_memory_sessions);
  options.store_region_bytes = config.shared_store_bytes;
  return SharedMemory::Start(std::move(options), memory);
}

absl::StatusOr<Tiers> TakeTiers(const Config& config, const std::string& ssd_directory,
                                const Clock* clock) {
  Tiers tiers;
  KVTIER_ASSIGN_OR_RETURN(tiers.ssd, OpenSsd(config, ssd_directory, clock));
  DeviceMemory* const host = TakeHost(config, &tiers);
  KVTIER_ASSIGN_OR_RETURN(tiers.ram, TakeTier("ram-bytes", TierKind::kRam, host, config.ram_bytes));
  if (config.gpu_bytes == 0) return tiers;
  absl::StatusOr<std::unique_ptr<DeviceMemory>> device = MakeCudaMemory(kGpuOrdinal);
  if (absl::IsUnavailable(device.status())) {
    tiers.notes[Index(TierKind::kGpu)] = std::string(device.status().message());
    Log(LogLevel::kWarning, "GPU tier is off",
        {{"gpu_bytes", FormatBytes(config.gpu_bytes)},
         {"reason", tiers.notes[Index(TierKind::kGpu)]}});
    return tiers;
  }
  if (!device.ok()) return Annotate(device.status(), "gpu-bytes");
  tiers.gpu_device = std::move(*device);
  KVTIER_ASSIGN_OR_RETURN(
      tiers.gpu, TakeTier("gpu-bytes", TierKind::kGpu, tiers.gpu_device.get(), config.gpu_bytes));
  return tiers;
}

ServiceOptions DataServiceOptions(const Config& config, ModelStore* models,
                                  SharedMemory* shared_memory, Recorder* recorder) {
  ServiceOptions options;
  options.shared_memory = shared_memory;
  options.limits.tokens = config.max_tokens;
  options.limits.engine_hashes = config.max_engine_hashes;
  options.max_part_bytes = config.max_part_bytes;
  options.max_lease = Milliseconds(config.max_lease_ms);
  options.unary_deadline = Milliseconds(config.unary_deadline_ms);
  options.stream_deadline = Milliseconds(config.stream_deadline_ms);
  options.recorder = recorder;
  options.prefill_tokens_per_second = static_cast<double>(config.prefill_tokens_per_second);
  options.save_model = [models](const ModelSpec& spec) { return models->Add(spec); };
  options.save_models = [models] { return models->saved() ? absl::OkStatus() : models->Save(); };
  return options;
}

void LogModel(const ModelInfo& info, const ManagerStats& stats) {
  for (const TierKind tier : kAllTiers) {
    if (!stats.tiers[Index(tier)].on) continue;
    Log(LogLevel::kInfo, "model known",
        {{"name", info.spec.name},
         {"model_id", info.id.ToHex()},
         {"tier", TierName(tier)},
         {"blocks", info.capacity_blocks[Index(tier)]},
         {"tokens", info.capacity_blocks[Index(tier)] * info.spec.block_tokens}});
  }
}

RpcSnapshot SnapshotRpc(std::string_view name, const RpcStats& stats) {
  RpcSnapshot out;
  out.rpc = std::string(name);
  out.latency = stats.latency.snapshot();
  for (int code = 1; code < kStatusCodes; ++code) {
    const uint64_t count = stats.by_code[code].value();
    if (count == 0) continue;
    out.errors[absl::StatusCodeToString(static_cast<absl::StatusCode>(code))] = count;
  }
  return out;
}

std::string QuotedIfNeeded(const std::string& text) {
  return text.find(' ') == std::string::npos ? text : absl::StrCat("\"", text, "\"");
}

// The grace is for answers on their way out; what is then left has had its time, and health watches
// would never end by themselves.
void ShutDown(GrpcServer* server) {
  if (server->server == nullptr) return;
  server->server->Shutdown(std::chrono::system_clock::now() + kShutdownGrace);
  server->server.reset();
}

class Daemon final : public Server {
 public:
  Daemon(const Config& config, std::vector<EffectiveSetting> settings,
         std::unique_ptr<const SteadyClock> clock, std::unique_ptr<DataDirectory> directory,
         std::unique_ptr<ModelStore> models, Tiers tiers,
         std::unique_ptr<SharedMemory> shared_memory);
  ~Daemon() override { Stop(); }

  // What the data directory holds: models, and blocks on SSD.
  absl::Status Restore();
  absl::Status Listen();

  void Drain() override KVTIER_EXCLUDES(health_mutex_);
  void Stop() override;
  void WriteDown(TimePoint deadline);
  absl::Status DropIdleSsd() const;
  const std::vector<std::string>& listen() const override { return data_.addresses; }
  const std::string& admin_listen() const override { return admin_.addresses.front(); }
  const std::string& metrics_listen() const override { return metrics_listen_; }
  std::string ReadyLine() const override;

 private:
  AdminContext MakeAdminContext(std::vector<EffectiveSetting> settings);
  std::vector<CurveSnapshot> Curves(const ManagerStats& stats) const;
  MetricsSnapshot Snapshot() const;
  void ShowSsdHealth() KVTIER_EXCLUDES(health_mutex_);
  void SaveModels();
  double UptimeSeconds() const {
    return std::chrono::duration<double>(clock_->Now() - started_).count();
  }

  // Built in this order and torn down in reverse.
  const Config config_;
  const std::unique_ptr<const SteadyClock> clock_;
  const TimePoint started_;
  const std::unique_ptr<DataDirectory> directory_;
  const std::unique_ptr<ModelStore> models_;
  Tiers tiers_;
  const std::unique_ptr<SharedMemory> shared_memory_;  // null: none is offered
  const SsdTier* const ssd_;                           // the manager's; null when off
  ThreadPool executor_;
  ThreadPool ssd_reader_;
  ThreadPool ssd_writer_;
  ThreadPool recording_writer_;
  Recorder recorder_;
  TierManager manager_;
  CallRegistry registry_;
  RpcStatsTable rpc_stats_;
  const std::unique_ptr<grpc::Service> data_service_;
  AdminService admin_service_;
  // The ticker and drains speak to the data server's health service, while it is there.
  Mutex health_mutex_;
  grpc::HealthCheckServiceInterface* health_ KVTIER_GUARDED_BY(health_mutex_) = nullptr;
  std::optional<bool> ssd_shown_ KVTIER_GUARDED_BY(health_mutex_);
  TimePoint save_models_at_;  // the ticker's
  std::optional<Ticker> ticker_;
  GrpcServer data_;
  GrpcServer admin_;
  std::unique_ptr<MetricsHttp> metrics_;
  std::string metrics_listen_;
};

Daemon::Daemon(const Config& config, std::vector<EffectiveSetting> settings,
               std::unique_ptr<const SteadyClock> clock, std::unique_ptr<DataDirectory> directory,
               std::unique_ptr<ModelStore> models, Tiers tiers,
               std::unique_ptr<SharedMemory> shared_memory)
    : config_(config),
      clock_(std::move(clock)),
      started_(clock_->Now()),
      directory_(std::move(directory)),
      models_(std::move(models)),
      tiers_(std::move(tiers)),
      shared_memory_(std::move(shared_memory)),
      ssd_(tiers_.ssd.get()),
      executor_(static_cast<int>(config.executor_threads)),
      ssd_reader_(ssd_ == nullptr ? 0 : static_cast<int>(config.ssd_read_threads)),
      ssd_writer_(ssd_ == nullptr ? 0 : 1),
      recording_writer_(1),
      recorder_(directory_->PathOf("recordings"), &recording_writer_, clock_.get()),
      manager_(ManagerOptions{static_cast<uint32_t>(config.max_leases_per_client),
                              config.ssd_write_limit, config.eviction},
               std::move(tiers_.gpu), std::move(tiers_.ram), std::move(tiers_.ssd),
               ManagerExecutors{&executor_, &ssd_reader_, &ssd_writer_}, clock_.get()),
      registry_(static_cast<uint32_t>(config.max_streams_per_client), clock_.get()),
      data_service_(MakeKvCacheService(
          DataServiceOptions(config, models_.get(), shared_memory_.get(), &recorder_), &manager_,
          &registry_, &executor_, clock_.get(), &rpc_stats_)),
      admin_service_(MakeAdminContext(std::move(settings))),
      ticker_(std::in_place, kTick, [this] {
        manager_.Tick();
        registry_.Sweep();
        if (shared_memory_ != nullptr) shared_memory_->Tick();
        ShowSsdHealth();
        SaveModels();
      }) {}

AdminContext Daemon::MakeAdminContext(std::vector<EffectiveSetting> settings) {
  AdminContext context;
  context.manager = &manager_;
  context.ssd = ssd_;
  context.executor = &executor_;
  context.models = models_.get();
  context.shared_memory = shared_memory_.get();
  context.recorder = &recorder_;
  context.settings = std::move(settings);
  context.tier_notes = tiers_.notes;
  context.uptime_seconds = [this] { return UptimeSeconds(); };
  context.open_streams = [this] { return registry_.open_streams(); };
  context.draining = [this] { return registry_.draining(); };
  context.drop_idle_ssd = [this] { return DropIdleSsd(); };
  context.drain = [this] { Drain(); };
  return context;
}

// With the tier off nobody can mark single blocks there as gone, so all of them go.
absl::Status Daemon::DropIdleSsd() const {
  const std::string path = directory_->PathOf("ssd");
  std::error_code error;
  if (ssd_ != nullptr || !std::filesystem::exists(path, error)) return absl::OkStatus();
  std::filesystem::remove_all(path, error);
  if (error) return absl::ErrnoToStatus(error.value(), absl::StrCat("cannot remove ", path));
  Log(LogLevel::kWarning, "SSD tier is off, so all that it had is removed for this reset",
      {{"path", path}});
  return absl::OkStatus();
}

absl::Status Daemon::Restore() {
  for (const ModelSpec& spec : models_->Models()) {
    const absl::Status valid = ValidateSpec(spec, SpecLimits{config_.max_part_bytes});
    if (!valid.ok()) {
      Log(LogLevel::kWarning, "registered model is over the limits in force and not served",
          {{"name", spec.name}, {"reason", std::string(valid.message())}});
      continue;
    }
    KVTIER_RETURN_IF_ERROR(manager_.AddModel(spec));
  }
  manager_.Restore();
  const ManagerStats stats = manager_.stats();
  for (const ModelInfo& info : manager_.ListModels()) LogModel(info, stats);
  if (ssd_ != nullptr) {
    Log(LogLevel::kInfo, "blocks found on SSD", {{"blocks", stats.ssd_restored_blocks}});
  }
  return absl::OkStatus();
}

absl::Status Daemon::Listen() {
  KVTIER_ASSIGN_OR_RETURN(data_,
                          StartGrpcServer("listen", config_.listen, data_service_.get(), config_));
  data_.server->GetHealthCheckService()->SetServingStatus(kDataService, true);
  {
    MutexLock lock(health_mutex_);
    health_ = data_.server->GetHealthCheckService();
  }
  ShowSsdHealth();
  KVTIER_ASSIGN_OR_RETURN(
      admin_, StartGrpcServer("admin-listen", {config_.admin_listen}, &admin_service_, config_));
  if (config_.metrics_listen.empty()) return absl::OkStatus();
  KVTIER_ASSIGN_OR_RETURN(
      metrics_, MetricsHttp::Start(config_.metrics_listen, [this] { return Snapshot(); }));
  const std::string& asked = config_.metrics_listen;
  metrics_listen_ = absl::StrCat(asked.substr(0, asked.rfind(':') + 1), metrics_->port());
  return absl::OkStatus();
}

void Daemon::Drain() {
  MutexLock lock(health_mutex_);
  health_->SetServingStatus(false);
  registry_.StartDrain();
}

// Told only when it changes: each telling wakes those who watch.
void Daemon::ShowSsdHealth() {
  if (ssd_ == nullptr) return;
  const bool serving = ssd_->writable().ok();
  MutexLock lock(health_mutex_);
  if (health_ == nullptr || registry_.draining() || ssd_shown_ == serving) return;
  health_->SetServingStatus(kSsdHealth, serving);
  ssd_shown_ = serving;
}

// Those that a full disk kept from being saved.
void Daemon::SaveModels() {
  if (models_->saved() || clock_->Now() < save_models_at_) return;
  save_models_at_ = clock_->Now() + kSaveModelsPause;
  executor_.Run([this] { models_->Save().IgnoreError(); });
}

void Daemon::Stop() {
  const TimePoint deadline = clock_->Now() + Milliseconds(config_.drain_ms);
  const bool served = data_.server != nullptr;
  if (served) {
    Drain();
    const bool finished = registry_.WaitIdle(Milliseconds(config_.drain_ms));
    if (!finished) {
      Log(LogLevel::kWarning, "calls are ended before their time",
          {{"drain_ms", config_.drain_ms}, {"open_streams", registry_.open_streams()}});
    }
  }
  executor_.WaitIdle();  // admin calls are there until they are done
  // The admin server first: its Drain speaks to the data server.
  ShutDown(&admin_);
  {
    MutexLock lock(health_mutex_);
    health_ = nullptr;
  }
  ShutDown(&data_);
  metrics_.reset();
  ticker_.reset();
  // Each waits for those after it.
  if (shared_memory_ != nullptr) shared_memory_->store_threads().WaitIdle();
  executor_.WaitIdle();
  if (recorder_.on()) recorder_.Stop().IgnoreError();  // it logs what the recording came to
  recording_writer_.WaitIdle();
  ssd_reader_.WaitIdle();
  ssd_writer_.WaitIdle();
  if (!served) return;
  const absl::Status saved = models_->Save();
  if (!saved.ok()) {
    Log(LogLevel::kWarning, "models were not saved, and must be registered again",
        {{"reason", std::string(saved.message())}});
  }
  WriteDown(deadline);
}

// What RAM has and the SSD lacks, so that it is there after a restart.
void Daemon::WriteDown(TimePoint deadline) {
  if (ssd_ == nullptr) return;
  const uint64_t left = manager_.WriteDownAll(deadline);
  if (left == 0) {
    Log(LogLevel::kInfo, "all of RAM is on SSD");
  } else {
    Log(LogLevel::kWarning,
        "not all of RAM is on SSD: raise drain-ms, or ssd-bytes if that is full",
        {{"blocks_left", left}, {"drain_ms", config_.drain_ms}});
  }
}

// Of all models together, and of so many of them: each is some tens of series.
std::vector<CurveSnapshot> Daemon::Curves(const ManagerStats& stats) const {
  std::vector<CurveSnapshot> out;
  const absl::StatusOr<HitRatioCurve> all = manager_.Curve(std::nullopt, /*since_start=*/false);
  if (all.ok()) out.push_back({"all", TierCurves(*all, stats)});
  for (const ModelInfo& info : manager_.ListModels()) {
    if (out.size() > kMostModelCurves) break;
    const absl::StatusOr<HitRatioCurve> curve = manager_.Curve(info.id, /*since_start=*/false);
    if (curve.ok()) out.push_back({info.id.ToHex(), TierCurves(*curve, stats)});
  }
  return out;
}

MetricsSnapshot Daemon::Snapshot() const {
  MetricsSnapshot out;
  out.manager = manager_.stats();
  out.curves = Curves(out.manager);
  out.curve_stats = manager_.curve_stats();
  if (ssd_ != nullptr) out.ssd = ssd_->stats();
  if (shared_memory_ != nullptr) out.shared_memory = shared_memory_->stats();
  if (shared_memory_ != nullptr && config_.shared_memory_pools == SharedMemoryPools::kPerUid) {
    out.shared_pools = manager_.RamByDomain();
  }
  for (int i = 0; i < kRpcs; ++i) {
    out.rpcs.push_back(SnapshotRpc(kRpcNames[i], rpc_stats_.of(static_cast<Rpc>(i))));
  }
  out.uptime_seconds = UptimeSeconds();
  out.recorded_requests = recorder_.recorded_total();
  out.recording_dropped = recorder_.dropped_total();
  out.draining = registry_.draining();
  out.open_streams = registry_.open_streams();
  const absl::StatusOr<uint64_t> memory = ProcessMemory();
  if (memory.ok()) {
    out.process_memory_bytes = *memory;
  } else {
    Log(LogLevel::kWarning, "process memory is unknown",
        {{"reason", std::string(memory.status().message())}});
  }
  return out;
}

std::string Daemon::ReadyLine() const {
  const ManagerStats stats = manager_.stats();
  std::string line =
      absl::StrCat("ready listen=", QuotedIfNeeded(absl::StrJoin(data_.addresses, ",")),
                   " admin=", QuotedIfNeeded(admin_listen()));
  if (!metrics_listen_.empty()) absl::StrAppend(&line, " metrics=", metrics_listen_);
  absl::StrAppend(&line, " data_dir=", QuotedIfNeeded(directory_->path()));
  for (const TierKind tier : kAllTiers) {
    const std::string name(TierName(tier));
    absl::StrAppend(&line, " ", name, "=", stats.tiers[Index(tier)].usage.capacity_bytes);
  }
  absl::StrAppend(&line, " models=", stats.models);
  return line;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const Config& config,
                                                      std::vector<EffectiveSetting> settings) {
  KVTIER_RETURN_IF_ERROR(CheckServable(config));
  KVTIER_ASSIGN_OR_RETURN(std::unique_ptr<DataDirectory> directory,
                          DataDirectory::Open(config.data_dir));
  KVTIER_ASSIGN_OR_RETURN(std::unique_ptr<ModelStore> models,
                          ModelStore::Open(directory->PathOf("models")));
  auto clock = std::make_unique<const SteadyClock>();
  KVTIER_ASSIGN_OR_RETURN(Tiers tiers, TakeTiers(config, directory->PathOf("ssd"), clock.get()));
  KVTIER_ASSIGN_OR_RETURN(std::unique_ptr<SharedMemory> shared_memory,
                          StartSharedMemory(config, tiers.shared_host.get()));
  auto daemon =
      std::make_unique<Daemon>(config, std::move(settings), std::move(clock), std::move(directory),
                               std::move(models), std::move(tiers), std::move(shared_memory));
  KVTIER_RETURN_IF_ERROR(daemon->Restore());
  KVTIER_RETURN_IF_ERROR(daemon->Listen());
  return std::unique_ptr<Server>(std::move(daemon));
}

}  // namespace kvtier
