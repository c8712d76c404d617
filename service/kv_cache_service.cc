#include "service/kv_cache_service.h"

#include <grpc/grpc.h>
#include <grpcpp/grpcpp.h>

#include <utility>

#include "absl/strings/match.h"
#include "common/check.h"
#include "kvtier/v1/kvtier.grpc.pb.h"
#include "service/call.h"
#include "service/convert.h"
#include "service/fetch_call.h"
#include "service/fetch_shared_call.h"
#include "service/shared_memory.h"
#include "service/store_call.h"
#include "service/store_shared_call.h"

namespace kvtier {
namespace {

constexpr double kMaxPrefillRate = 1e9;  // tokens per second
constexpr double kMostSharedSeconds = 1e6;

template <typename Base>
using WithRaw = v1::KvCache::WithRawCallbackMethod_Lookup<v1::KvCache::WithRawCallbackMethod_Fetch<
    v1::KvCache::WithRawCallbackMethod_Store<v1::KvCache::WithRawCallbackMethod_FetchShared<
        v1::KvCache::WithRawCallbackMethod_StoreShared<Base>>>>>;
template <typename Base>
using WithTyped = v1::KvCache::WithCallbackMethod_RegisterModel<
    v1::KvCache::WithCallbackMethod_Release<v1::KvCache::WithCallbackMethod_Renew<Base>>>;

// Lets a unary call in for as long as it lives.
class UnaryAdmission {
 public:
  explicit UnaryAdmission(CallRegistry* registry)
      : registry_(registry), status_(registry->BeginUnary()) {}
  ~UnaryAdmission() {
    if (status_.ok()) registry_->EndUnary();
  }
  UnaryAdmission(const UnaryAdmission&) = delete;
  UnaryAdmission& operator=(const UnaryAdmission&) = delete;
  const absl::Status& status() const { return status_; }

 private:
  CallRegistry* const registry_;
  const absl::Status status_;
};

absl::Status CheckLease(uint32_t lease_ms, const ServiceOptions& options) {
  const Duration lease = std::chrono::milliseconds(lease_ms);
  if (lease >= options.min_lease && lease <= options.max_lease) return absl::OkStatus();
  const auto ms = [](Duration d) {
    return std::chrono::duration_cast<std::chrono::milliseconds>(d).count();
  };
  return absl::InvalidArgumentError(absl::StrCat("lease_ms is ", lease_ms, ", the limits are ",
                                                 ms(options.min_lease), " and ",
                                                 ms(options.max_lease)));
}

absl::StatusOr<double> PrefillRate(double given, const ServiceOptions& options) {
  if (!(given >= 0 && given <= kMaxPrefillRate)) {
    return absl::InvalidArgumentError(absl::StrCat("prefill_tokens_per_second is ", given,
                                                   ", the limits are 0 and ", kMaxPrefillRate));
  }
  return given > 0 ? given : options.prefill_tokens_per_second;
}

// The time to fetch a run is that of a Fetch of all its bytes: ranks share the way they take.
wire::LookupResponse ToWire(LookupResult&& result, const TierSpeeds& speeds) {
  wire::LookupResponse out;
  out.blocks = result.blocks;
  out.tokens = result.blocks * result.block_tokens;
  out.runs.reserve(result.runs.size());
  for (const auto& [tier, blocks] : result.runs) {
    const double seconds = speeds.speed(tier).LoadSeconds(blocks * result.block_bytes);
    out.runs.push_back({static_cast<uint32_t>(ToProto(tier)), blocks, seconds});
  }
  out.lease_id = result.lease;
  out.group_blocks = std::move(result.group_blocks);
  return out;
}

// A Lookup's message, kept for the recorder's writer, which hashes it off the reply's path.
struct KeptLookup {
  MessageSlices message;
  wire::LookupRequest lookup;
};

// Read once more: the walk took the tokens' slices out of what was read before.
absl::Status RecordLookup(const wire::Limits& limits, MessageSlices message, const ModelId& id,
                          const ServedModel& model, Recorder* recorder) {
  auto kept = std::make_shared<KeptLookup>(KeptLookup{std::move(message), {}});
  KVTIER_RETURN_IF_ERROR(wire::DecodeLookupRequest(kept->message.views(), limits, &kept->lookup));
  wire::Prompt& prompt = kept->lookup.prompt;
  RecordedLookup recorded{.model = id,
                          .block_tokens = model.block_tokens,
                          .input_tokens = prompt.engine_hash_count > 0
                                              ? prompt.engine_hash_count * model.block_tokens
                                              : prompt.token_count,
                          .prompt = PromptCursor({}, {}, 1),
                          .bytes = 0,
                          .memory = kept};
  for (const std::string_view slice : kept->message.views()) recorded.bytes += slice.size();
  KVTIER_ASSIGN_OR_RETURN(PromptRef ref, ToPromptRef(&prompt, id, model));
  recorded.prompt = std::move(ref.cursor);
  recorder->Record(std::move(recorded));
  return absl::OkStatus();
}

class KvCacheService final : public WithRaw<WithTyped<v1::KvCache::Service>> {
 public:
  KvCacheService(ServiceOptions options, TierManager* manager, CallRegistry* registry,
                 Executor* executor, const Clock* clock, RpcStatsTable* stats)
      : core_(std::move(options), manager, registry, executor, clock, stats) {}

  grpc::ServerUnaryReactor* RegisterModel(grpc::CallbackServerContext* context,
                                          const v1::RegisterModelRequest* request,
                                          v1::RegisterModelResponse* response) override;
  grpc::ServerUnaryReactor* Lookup(grpc::CallbackServerContext* context,
                                   const grpc::ByteBuffer* request,
                                   grpc::ByteBuffer* response) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Fetch(grpc::CallbackServerContext* context,
                                                    const grpc::ByteBuffer* request) override {
    return FetchStream::Start(std::make_shared<FetchCall>(&core_, context), *request);
  }
  grpc::ServerWriteReactor<grpc::ByteBuffer>* FetchShared(
      grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) override {
    return FetchStream::Start(std::make_shared<FetchSharedCall>(&core_, context), *request);
  }
  grpc::ServerReadReactor<grpc::ByteBuffer>* Store(grpc::CallbackServerContext* context,
                                                   grpc::ByteBuffer* response) override {
    return StoreCall::Start(&core_, context, response);
  }
  grpc::ServerUnaryReactor* StoreShared(grpc::CallbackServerContext* context,
                                        const grpc::ByteBuffer* request,
                                        grpc::ByteBuffer* response) override {
    return StoreSharedCall::Start(&core_, context, request, response);
  }
  grpc::ServerUnaryReactor* Release(grpc::CallbackServerContext* context,
                                    const v1::ReleaseRequest* request,
                                    v1::ReleaseResponse* response) override;
  grpc::ServerUnaryReactor* Renew(grpc::CallbackServerContext* context,
                                  const v1::RenewRequest* request,
                                  v1::RenewResponse* response) override;

 private:
  absl::Status DoRegister(const ModelSpec& spec, TimePoint deadline, bool same_host,
                          v1::RegisterModelResponse* response);
  absl::Status DoLookup(const Call& call, const grpc::ByteBuffer& request,
                        grpc::ByteBuffer* response);
  absl::Status DoRelease(const v1::ReleaseRequest& request);
  absl::Status DoRenew(const v1::RenewRequest& request);

  ServiceCore core_;
};

// On the executor, because saving the model waits for the disk.
grpc::ServerUnaryReactor* KvCacheService::RegisterModel(grpc::CallbackServerContext* context,
                                                        const v1::RegisterModelRequest* request,
                                                        v1::RegisterModelResponse* response) {
  auto call = std::make_shared<Call>(&core_, Rpc::kRegisterModel, context);
  auto admission = std::make_shared<UnaryAdmission>(core_.registry);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  absl::StatusOr<ModelSpec> spec = ToModelSpec(request->spec());
  if (!admission->status().ok()) spec = admission->status();
  if (spec.ok()) {
    const absl::Status valid =
        ValidateSpec(*spec, SpecLimits{.part_bytes = core_.options.max_part_bytes});
    if (!valid.ok()) spec = valid;
  }
  if (!spec.ok()) {
    reactor->Finish(call->End(spec.status()));
    return reactor;
  }
  const TimePoint deadline = call->Deadline(core_.options.unary_deadline);
  const bool same_host = absl::StartsWith(context->peer(), "unix");
  core_.executor->Run([this, call, admission, reactor, deadline, same_host, spec = *std::move(spec),
                       response]() mutable {
    grpc::Status status = call->End(DoRegister(spec, deadline, same_host, response));
    admission.reset();  // before the reply: who has it may find the service gone
    reactor->Finish(std::move(status));
  });
  return reactor;
}

absl::Status KvCacheService::DoRegister(const ModelSpec& spec, TimePoint deadline, bool same_host,
                                        v1::RegisterModelResponse* response) {
  if (core_.clock->Now() > deadline) {
    return absl::DeadlineExceededError("the call's deadline has passed");
  }
  const bool known = core_.manager->GetModel(SpecId(spec)).ok();
  KVTIER_RETURN_IF_ERROR(core_.manager->AddModel(spec));
  if (!known && core_.options.save_model) {
    const absl::Status saved = core_.options.save_model(spec);
    if (!saved.ok()) {  // it would be gone after a restart: refused is refused
      core_.manager->RemoveModel(SpecId(spec)).status().IgnoreError();  // nothing was stored yet
      return saved;
    }
  }
  KVTIER_ASSIGN_OR_RETURN(const ModelInfo info, core_.manager->GetModel(SpecId(spec)));
  response->set_model_id(info.id.ToBytes());
  const std::vector<uint64_t> part_bytes = PartBytes(spec);
  response->mutable_part_bytes()->Add(part_bytes.begin(), part_bytes.end());
  response->set_block_bytes(BlockBytes(spec));
  response->set_layer_groups(GroupCount(spec));
  response->set_tensor_parallel(PartCount(spec) / GroupCount(spec));
  if (same_host && core_.options.shared_memory != nullptr) {
    response->set_shared_memory_socket(core_.options.shared_memory->socket_path());
  }
  const ManagerStats stats = core_.manager->stats();
  for (const TierKind tier : kAllTiers) {
    if (!stats.tiers[static_cast<int>(tier)].on) continue;
    v1::TierCapacity* capacity = response->add_tiers();
    capacity->set_tier(ToProto(tier));
    capacity->set_blocks(info.capacity_blocks[static_cast<int>(tier)]);
    capacity->set_tokens(capacity->blocks() * spec.block_tokens);
  }
  return absl::OkStatus();
}

grpc::ServerUnaryReactor* KvCacheService::Lookup(grpc::CallbackServerContext* context,
                                                 const grpc::ByteBuffer* request,
                                                 grpc::ByteBuffer* response) {
  Call call(&core_, Rpc::kLookup, context);
  const UnaryAdmission admission(core_.registry);
  absl::Status status = admission.status();
  if (status.ok()) status = DoLookup(call, *request, response);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(call.End(status));
  return reactor;
}

absl::Status KvCacheService::DoLookup(const Call& call, const grpc::ByteBuffer& request,
                                      grpc::ByteBuffer* response) {
  MessageSlices message(request);
  wire::LookupRequest lookup;
  KVTIER_RETURN_IF_ERROR(wire::DecodeLookupRequest(message.views(), core_.options.limits, &lookup));
  LookupOptions options;
  options.before_store = lookup.before_store;
  if (lookup.lease_ms > 0) {
    KVTIER_RETURN_IF_ERROR(CheckLease(lookup.lease_ms, core_.options));
    options.lease = std::chrono::milliseconds(lookup.lease_ms);
    options.client = call.ClientName();
  }
  if (lookup.promote_to != v1::TIER_UNSPECIFIED) {
    KVTIER_ASSIGN_OR_RETURN(options.promote_to,
                            ToTierKind(static_cast<v1::Tier>(lookup.promote_to)));
  }
  KVTIER_ASSIGN_OR_RETURN(options.prefill_tokens_per_second,
                          PrefillRate(lookup.prefill_tokens_per_second, core_.options));
  KVTIER_ASSIGN_OR_RETURN(const ModelId id, RequireModelId(lookup.prompt));
  KVTIER_ASSIGN_OR_RETURN(const ServedModel model, core_.models.Get(id));
  KVTIER_ASSIGN_OR_RETURN(PromptRef prompt, ToPromptRef(&lookup.prompt, id, model));
  KVTIER_ASSIGN_OR_RETURN(LookupResult result, core_.manager->Lookup(prompt, options));
  Recorder* const recorder = core_.options.recorder;
  if (recorder != nullptr && recorder->on() && !lookup.before_store) {
    KVTIER_RETURN_IF_ERROR(
        RecordLookup(core_.options.limits, std::move(message), id, model, recorder));
  }
  const grpc::Slice bytes(
      wire::EncodeLookupResponse(ToWire(std::move(result), core_.manager->speeds())));
  *response = grpc::ByteBuffer(&bytes, 1);
  return absl::OkStatus();
}

grpc::ServerUnaryReactor* KvCacheService::Release(grpc::CallbackServerContext* context,
                                                  const v1::ReleaseRequest* request,
                                                  v1::ReleaseResponse*) {
  Call call(&core_, Rpc::kRelease, context);
  const UnaryAdmission admission(core_.registry);
  absl::Status status = admission.status();
  if (status.ok()) status = DoRelease(*request);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(call.End(status));
  return reactor;
}

absl::Status KvCacheService::DoRelease(const v1::ReleaseRequest& request) {
  const double seconds = request.shared_seconds();
  if (!(seconds >= 0 && seconds <= kMostSharedSeconds)) {
    return absl::InvalidArgumentError(
        absl::StrCat("shared_seconds is ", seconds, ", the limits are 0 and ", kMostSharedSeconds));
  }
  return core_.manager->Release(request.lease_id(), request.verified_blocks(),
                                {request.shared_bytes(), seconds});
}

absl::Status KvCacheService::DoRenew(const v1::RenewRequest& request) {
  KVTIER_RETURN_IF_ERROR(CheckLease(request.lease_ms(), core_.options));
  return core_.manager->Renew(request.lease_id(), std::chrono::milliseconds(request.lease_ms()));
}

grpc::ServerUnaryReactor* KvCacheService::Renew(grpc::CallbackServerContext* context,
                                                const v1::RenewRequest* request,
                                                v1::RenewResponse*) {
  Call call(&core_, Rpc::kRenew, context);
  const UnaryAdmission admission(core_.registry);
  absl::Status status = admission.status();
  if (status.ok()) status = DoRenew(*request);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(call.End(status));
  return reactor;
}

}  // namespace

std::unique_ptr<grpc::Service> MakeKvCacheService(ServiceOptions options, TierManager* manager,
                                                  CallRegistry* registry, Executor* executor,
                                                  const Clock* clock, RpcStatsTable* stats) {
  // Keeps gRPC from taking itself down with its last server: that may wait 10 s for its own poller,
  // in the way of an orderly stop.
  static const bool initialised = (grpc_init(), true);
  KVTIER_CHECK(initialised);
  return std::make_unique<KvCacheService>(std::move(options), manager, registry, executor, clock,
                                          stats);
}

}  // namespace kvtier
