#include "service/admin_service.h"

#include <utility>

#include "common/bytes.h"
#include "service/convert.h"
#include "service/host_memory_info.h"
#include "service/recorder.h"
#include "service/shared_memory.h"
#include "service/tier_curves.h"
#include "storage/ssd_tier.h"

namespace kvtier {
namespace {

// Engines' hashes have one of these lengths; each length is a root of its own.
constexpr uint32_t kMinEngineHash = 8;
constexpr uint32_t kMaxEngineHash = 64;

grpc::Status End(const char* rpc, const std::string& request_id, const absl::Status& status) {
  if (!status.ok()) {
    Log(LogLevel::kWarning, "admin call failed",
        {{"rpc", rpc},
         {"request_id", request_id},
         {"code", absl::StatusCodeToString(status.code())},
         {"error", std::string(status.message())}});
  }
  return ToGrpcStatus(status, request_id);
}

grpc::ServerUnaryReactor* FinishNow(grpc::CallbackServerContext* call, const grpc::Status& status) {
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  reactor->Finish(status);
  return reactor;
}

void FillTier(TierKind kind, const TierStats& stats, const std::string& note, v1::TierStatus* out) {
  out->set_tier(ToProto(kind));
  out->set_capacity_bytes(stats.usage.capacity_bytes);
  out->set_used_bytes(stats.usage.used_bytes);
  out->set_backed_bytes(stats.usage.backed_bytes);
  out->set_blocks(stats.blocks);
  out->set_hits(stats.hits);
  out->set_evictions(stats.evictions);
  out->set_promotions(stats.promotions);
  out->set_demotions(stats.demotions);
  out->set_bytes_written(stats.bytes_written);
  out->set_bytes_read(stats.bytes_read);
  out->set_note(note);
  out->set_measured_bytes_per_second(stats.speed.BytesPerSecond());
  out->set_measured_first_byte_seconds(stats.speed.first_byte_seconds);
  out->set_fetched_blocks(stats.fetched_blocks);
  out->set_fetched_bytes(stats.fetched_bytes);
}

v1::SsdState ToProto(SsdState state) {
  switch (state) {
    case SsdState::kServing:
      return v1::SSD_STATE_SERVING;
    case SsdState::kReadOnly:
      return v1::SSD_STATE_READ_ONLY;
    case SsdState::kReopening:
      return v1::SSD_STATE_REOPENING;
  }
  return v1::SSD_STATE_UNSPECIFIED;
}

// The bound that at least this share of the calls kept.
double QuantileSeconds(const LatencyHistogram::Snapshot& latency, double share) {
  uint64_t within = 0;
  const double wanted = share * static_cast<double>(latency.count);
  for (int i = 0; i < LatencyHistogram::kBuckets; ++i) {
    within += latency.counts[i];
    if (within > 0 && static_cast<double>(within) >= wanted) return LatencyHistogram::UpperBound(i);
  }
  return 0;
}

void FillSsd(const SsdTierStats& tier, const std::string& why, const ManagerStats& stats,
             v1::SsdStatus* out) {
  out->set_state(ToProto(tier.state));
  out->set_why(why);
  out->set_files(tier.files);
  out->set_live_records(tier.live_records);
  out->set_dead_records(tier.dead_records);
  out->set_segments(stats.ssd_segments);
  out->set_file_bytes_written(tier.file_bytes_written);
  out->set_payload_bytes_written(tier.payload_bytes_written);
  out->set_files_retired(tier.files_retired);
  out->set_carried_blocks(stats.ssd_carried_blocks);
  out->set_restored_blocks(stats.ssd_restored_blocks);
  out->set_skipped_blocks(stats.ssd_skipped_blocks);
  out->set_limited_blocks(stats.ssd_limited_blocks);
  out->set_waiting_blocks(stats.ssd_waiting_blocks);
  out->set_write_errors(tier.write_errors);
  out->set_read_errors(tier.read_errors);
  out->set_checksum_failures(tier.checksum_failures);
  out->set_reads(tier.read_latency.count);
  out->set_read_seconds(tier.read_latency.sum_seconds);
  out->set_read_p50_seconds(QuantileSeconds(tier.read_latency, 0.5));
  out->set_read_p99_seconds(QuantileSeconds(tier.read_latency, 0.99));
}

void FillCounters(const ManagerStats& stats, v1::CacheCounters* out) {
  out->set_lookups(stats.lookups);
  out->set_lookup_blocks(stats.lookup_blocks);
  out->set_hit_blocks(stats.hit_blocks);
  out->set_fetched_blocks(stats.fetched_blocks);
  out->set_fetch_missed_blocks(stats.fetch_missed_blocks);
  out->set_stored_blocks(stats.stored_blocks);
  out->set_already_present_blocks(stats.already_present_blocks);
  out->set_rejected_blocks(stats.rejected_blocks);
  out->set_checksum_failures(stats.checksum_failures);
  out->set_checksum_mismatches(stats.checksum_mismatches);
  out->set_expired_leases(stats.expired_leases);
  out->set_unreachable_blocks(stats.unreachable_blocks);
  out->set_never_hit_blocks(stats.never_hit_blocks);
  out->set_verified_blocks(stats.verified_blocks);
  out->set_prefill_seconds(stats.prefill_seconds);
  out->set_lease_fetch_seconds(stats.lease_fetch_seconds);
  out->set_stalled_fetches(stats.stalled_fetches);
}

void FillSharedMemory(const SharedMemory& shared, v1::SharedMemoryStatus* out) {
  const SharedMemoryStats stats = shared.stats();
  out->set_socket(shared.socket_path());
  out->set_sessions(stats.sessions);
  out->set_open_regions(stats.open_regions);
  out->set_store_bytes(stats.store_bytes);
  out->set_retired_regions(stats.retired_regions);
  out->set_retired_bytes(stats.retired_bytes);
  out->set_sessions_total(stats.sessions_total);
  out->set_refused_total(stats.refused_total);
  out->set_cut_off_total(stats.cut_off_total);
  out->set_fetched_blocks(stats.fetched_blocks);
  out->set_fetched_bytes(stats.fetched_bytes);
  out->set_not_shared_blocks(stats.not_shared_blocks);
  out->set_stored_blocks(stats.stored_blocks);
  out->set_stored_bytes(stats.stored_bytes);
}

void FillHitCurve(const HitCurveStats& stats, v1::HitCurveStatus* out) {
  out->set_sampling_rate(stats.rate);
  out->set_ghost_blocks(stats.ghost_blocks);
  out->set_memory_bytes(stats.memory_bytes);
}

void FillTierCurve(const TierCurve& curve, v1::TierCurve* out) {
  out->set_tier(ToProto(curve.tier));
  out->set_capacity_bytes(curve.capacity_bytes);
  for (const CurvePoint& point : curve.points) {
    v1::CurvePoint* at = out->add_points();
    at->set_scale(point.scale);
    at->set_capacity_bytes(point.capacity_bytes);
    at->set_hit_ratio(point.hit_ratio);
  }
}

v1::RecordingStatus ToProto(const RecordingStatus& status) {
  v1::RecordingStatus out;
  out.set_on(status.on);
  out.set_why(status.why);
  out.set_directory(status.directory);
  for (const std::string& file : status.files) out.add_files(file);
  out.set_seconds(status.seconds);
  out.set_requests(status.requests);
  out.set_dropped(status.dropped);
  out.set_bytes(status.bytes);
  out.set_models(status.models);
  out.set_max_file_bytes(status.options.max_file_bytes);
  out.set_max_files(status.options.max_files);
  return out;
}

void FillModel(const ModelInfo& info, const ManagerStats& stats, v1::ModelStatus* out) {
  out->set_model_id(info.id.ToBytes());
  *out->mutable_spec() = ToProto(info.spec);
  out->set_block_bytes(BlockBytes(info.spec));
  for (const TierKind kind : kAllTiers) {
    const size_t i = static_cast<size_t>(kind);
    if (!stats.tiers[i].on) continue;
    v1::TierUsage* usage = out->add_tiers();
    usage->set_tier(ToProto(kind));
    usage->set_blocks(info.blocks[i]);
    usage->set_capacity_tokens(info.capacity_blocks[i] * info.spec.block_tokens);
  }
}

}  // namespace

grpc::ServerUnaryReactor* AdminService::Later(grpc::CallbackServerContext* call, const char* rpc,
                                              std::function<absl::Status()> work) {
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  const std::string id = request_ids_.Take(call);
  context_.executor->Run(
      [reactor, rpc, id, work = std::move(work)] { reactor->Finish(End(rpc, id, work())); });
  return reactor;
}

grpc::ServerUnaryReactor* AdminService::GetStatus(grpc::CallbackServerContext* call,
                                                  const v1::GetStatusRequest*,
                                                  v1::GetStatusResponse* response) {
  const std::string id = request_ids_.Take(call);
  return FinishNow(call, End("GetStatus", id, DoGetStatus(response)));
}

absl::Status AdminService::DoGetStatus(v1::GetStatusResponse* response) {
  KVTIER_ASSIGN_OR_RETURN(const uint64_t memory, ProcessMemory());
  const ManagerStats stats = context_.manager->stats();
  response->set_version(KVTIER_VERSION);
  response->set_uptime_seconds(context_.uptime_seconds());
  response->set_draining(context_.draining());
  std::array<std::string, kTiers> notes = context_.tier_notes;
  if (context_.ssd != nullptr) {
    const std::string why(context_.ssd->writable().message());
    notes[static_cast<size_t>(TierKind::kSsd)] = why;
    FillSsd(context_.ssd->stats(), why, stats, response->mutable_ssd());
  }
  for (const TierKind kind : kAllTiers) {
    const size_t i = static_cast<size_t>(kind);
    FillTier(kind, stats.tiers[i], notes[i], response->add_tiers());
  }
  response->set_models(stats.models);
  response->set_blocks(stats.blocks);
  response->set_index_bytes(stats.index_bytes);
  response->set_identity_bytes(stats.identity_bytes);
  response->set_leases(stats.leases);
  response->set_pinned_blocks(stats.pinned_blocks);
  response->set_open_streams(context_.open_streams());
  response->set_process_memory_bytes(memory);
  FillCounters(stats, response->mutable_counters());
  FillHitCurve(context_.manager->curve_stats(), response->mutable_hit_curve());
  const RecordingStatus recording = context_.recorder->status();
  if (!recording.directory.empty()) *response->mutable_recording() = ToProto(recording);
  if (context_.shared_memory != nullptr) {
    FillSharedMemory(*context_.shared_memory, response->mutable_shared_memory());
  }
  for (const EffectiveSetting& setting : context_.settings) {
    v1::Setting* out = response->add_settings();
    out->set_name(setting.name);
    out->set_value(setting.value);
    out->set_source(setting.source);
  }
  return absl::OkStatus();
}

grpc::ServerUnaryReactor* AdminService::ListModels(grpc::CallbackServerContext* call,
                                                   const v1::ListModelsRequest*,
                                                   v1::ListModelsResponse* response) {
  request_ids_.Take(call);
  const ManagerStats stats = context_.manager->stats();
  for (const ModelInfo& info : context_.manager->ListModels()) {
    FillModel(info, stats, response->add_models());
  }
  return FinishNow(call, grpc::Status::OK);
}

grpc::ServerUnaryReactor* AdminService::GetHitCurve(grpc::CallbackServerContext* call,
                                                    const v1::GetHitCurveRequest* request,
                                                    v1::GetHitCurveResponse* response) {
  const std::string id = request_ids_.Take(call);
  return FinishNow(call, End("GetHitCurve", id, DoGetHitCurve(*request, response)));
}

absl::Status AdminService::DoGetHitCurve(const v1::GetHitCurveRequest& request,
                                         v1::GetHitCurveResponse* response) {
  std::optional<ModelId> model;
  if (!request.model_id().empty()) {
    KVTIER_ASSIGN_OR_RETURN(model, ToModelId(request.model_id()));
  }
  KVTIER_ASSIGN_OR_RETURN(const HitRatioCurve curve,
                          context_.manager->Curve(model, request.since_start()));
  for (const TierCurve& tier : TierCurves(curve, context_.manager->stats())) {
    FillTierCurve(tier, response->add_tiers());
  }
  response->set_lookups(curve.lookups);
  response->set_lookup_blocks(curve.blocks);
  response->set_hit_blocks(curve.hits);
  response->set_sampled_references(curve.sampled_refs);
  response->set_sampling_rate(context_.manager->curve_stats().rate);
  response->set_window_lookups(HitCurve::kWindowLookups);
  return absl::OkStatus();
}

grpc::ServerUnaryReactor* AdminService::UnregisterModel(grpc::CallbackServerContext* call,
                                                        const v1::UnregisterModelRequest* request,
                                                        v1::UnregisterModelResponse* response) {
  return Later(call, "UnregisterModel",
               [this, request, response] { return DoUnregister(*request, response); });
}

grpc::ServerUnaryReactor* AdminService::SetTierCapacity(grpc::CallbackServerContext* call,
                                                        const v1::SetTierCapacityRequest* request,
                                                        v1::SetTierCapacityResponse* response) {
  return Later(call, "SetTierCapacity",
               [this, request, response] { return DoSetTierCapacity(*request, response); });
}

grpc::ServerUnaryReactor* AdminService::Reset(grpc::CallbackServerContext* call,
                                              const v1::ResetRequest* request,
                                              v1::ResetResponse* response) {
  return Later(call, "Reset", [this, request, response] { return DoReset(*request, response); });
}

grpc::ServerUnaryReactor* AdminService::Drain(grpc::CallbackServerContext* call,
                                              const v1::DrainRequest*, v1::DrainResponse*) {
  const std::string id = request_ids_.Take(call);
  Log(LogLevel::kInfo, "drain asked for: new calls are refused from now on", {{"request_id", id}});
  context_.drain();
  return FinishNow(call, grpc::Status::OK);
}

grpc::ServerUnaryReactor* AdminService::StartRecording(grpc::CallbackServerContext* call,
                                                       const v1::StartRecordingRequest* request,
                                                       v1::StartRecordingResponse* response) {
  return Later(call, "StartRecording",
               [this, request, response] { return DoStartRecording(*request, response); });
}

absl::Status AdminService::DoStartRecording(const v1::StartRecordingRequest& request,
                                            v1::StartRecordingResponse* response) {
  RecordingOptions options;
  if (request.max_file_bytes() > 0) options.max_file_bytes = request.max_file_bytes();
  if (request.max_files() > 0) options.max_files = request.max_files();
  KVTIER_ASSIGN_OR_RETURN(const RecordingStatus status, context_.recorder->Start(options));
  *response->mutable_recording() = ToProto(status);
  return absl::OkStatus();
}

grpc::ServerUnaryReactor* AdminService::StopRecording(grpc::CallbackServerContext* call,
                                                      const v1::StopRecordingRequest*,
                                                      v1::StopRecordingResponse* response) {
  return Later(call, "StopRecording", [this, response]() -> absl::Status {
    KVTIER_ASSIGN_OR_RETURN(const RecordingStatus status, context_.recorder->Stop());
    *response->mutable_recording() = ToProto(status);
    return absl::OkStatus();
  });
}

// On disk first: a model that cannot be forgotten there would come back at the next start.
absl::Status AdminService::DoUnregister(const v1::UnregisterModelRequest& request,
                                        v1::UnregisterModelResponse* response) {
  KVTIER_ASSIGN_OR_RETURN(const ModelId id, ToModelId(request.model_id()));
  KVTIER_RETURN_IF_ERROR(context_.drop_idle_ssd());
  KVTIER_RETURN_IF_ERROR(context_.models->Remove(id));
  KVTIER_ASSIGN_OR_RETURN(const uint64_t dropped, context_.manager->RemoveModel(id));
  response->set_dropped_blocks(dropped);
  Log(LogLevel::kInfo, "model unregistered",
      {{"model_id", id.ToHex()}, {"dropped_blocks", dropped}});
  return absl::OkStatus();
}

absl::Status AdminService::DoSetTierCapacity(const v1::SetTierCapacityRequest& request,
                                             v1::SetTierCapacityResponse* response) {
  KVTIER_ASSIGN_OR_RETURN(const TierKind kind, ToTierKind(request.tier()));
  const uint64_t wanted = request.capacity_bytes();
  const TierUsage usage = context_.manager->stats().tiers[static_cast<size_t>(kind)].usage;
  if (kind == TierKind::kRam && wanted > usage.capacity_bytes) {
    KVTIER_ASSIGN_OR_RETURN(const uint64_t available, AvailableMemory());
    KVTIER_RETURN_IF_ERROR(
        CheckHostMemory("capacity_bytes", wanted, usage.backed_bytes, available));
  }
  KVTIER_ASSIGN_OR_RETURN(const ResizeResult result, context_.manager->SetCapacity(kind, wanted));
  response->set_previous_bytes(result.previous_bytes);
  response->set_evicted_blocks(result.evicted_blocks);
  response->set_backed_bytes(result.backed_bytes);
  Log(LogLevel::kInfo, "tier capacity changed",
      {{"tier", TierName(kind)},
       {"from", FormatBytes(result.previous_bytes)},
       {"to", FormatBytes(wanted)},
       {"evicted_blocks", result.evicted_blocks},
       {"backed_bytes", result.backed_bytes}});
  return absl::OkStatus();
}

absl::Status AdminService::DoReset(const v1::ResetRequest& request, v1::ResetResponse* response) {
  KVTIER_ASSIGN_OR_RETURN(const ModelId id, ToModelId(request.model_id()));
  KVTIER_RETURN_IF_ERROR(context_.drop_idle_ssd());
  uint64_t dropped = 0;
  if (request.has_namespace_()) {
    KVTIER_ASSIGN_OR_RETURN(const Namespace name, ToNamespace(request.namespace_()));
    KVTIER_ASSIGN_OR_RETURN(dropped, ResetNamespace(id, name));
  } else {
    KVTIER_ASSIGN_OR_RETURN(dropped, context_.manager->ResetModel(id));
  }
  response->set_dropped_blocks(dropped);
  Log(LogLevel::kInfo, "reset",
      {{"model_id", id.ToHex()},
       {"what", request.has_namespace_() ? "namespace" : "model"},
       {"dropped_blocks", dropped}});
  return absl::OkStatus();
}

// A namespace has one root for tokens and one for each length of engine hash.
absl::StatusOr<uint64_t> AdminService::ResetNamespace(const ModelId& model, const Namespace& name) {
  KVTIER_ASSIGN_OR_RETURN(const ModelInfo info, context_.manager->GetModel(model));
  const uint32_t token_bytes = info.spec.block_tokens * uint32_t{sizeof(uint32_t)};
  KVTIER_ASSIGN_OR_RETURN(uint64_t dropped,
                          context_.manager->ResetNamespace(
                              model, CanonicalRoot(model, name, PromptKind::kTokens, token_bytes)));
  for (uint32_t bytes = kMinEngineHash; bytes <= kMaxEngineHash; ++bytes) {
    KVTIER_ASSIGN_OR_RETURN(
        const uint64_t more,
        context_.manager->ResetNamespace(
            model, CanonicalRoot(model, name, PromptKind::kEngineHashes, bytes)));
    dropped += more;
  }
  return dropped;
}

}  // namespace kvtier
