#include "kvtier/client.h"

#include <algorithm>
#include <utility>

#include "client/core.h"
#include "client/fetch_calls.h"
#include "client/replies.h"
#include "client/requests.h"
#include "client/shared_fetch.h"
#include "client/shared_store.h"
#include "client/spec_proto.h"
#include "client/transport.h"
#include "common/wire.h"
#include "kvtier/v1/kvtier.pb.h"

namespace kvtier {

using client_internal::AsReplyError;
using client_internal::Core;
using client_internal::EncodedPrompt;
using client_internal::FetchByLease;
using client_internal::FetchByPrompt;
using client_internal::LeaseWatch;
using client_internal::Outgoing;
using client_internal::Parse;
using client_internal::SharedPart;
using client_internal::SharedSession;
using client_internal::SharedStatus;
using client_internal::SharedStore;
using client_internal::StoreMessages;
using client_internal::Transport;

namespace {

CacheTier ToCacheTier(uint32_t tier) {
  return tier <= static_cast<uint32_t>(CacheTier::kSsd) ? static_cast<CacheTier>(tier)
                                                        : CacheTier::kUnknown;
}

// A daemon that tells nonsense has not measured.
Duration ToLoadTime(double seconds) {
  constexpr double kMost = 1e6;
  if (!(seconds > 0 && seconds < kMost)) return Duration::zero();
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

absl::StatusOr<RegisteredModel> ToModel(const v1::RegisterModelResponse& reply,
                                        const ModelSpec& spec) {
  RegisteredModel model;
  model.id = SpecId(spec);
  if (reply.model_id() != model.id.ToBytes()) {
    return absl::InternalError(
        absl::StrCat("RegisterModel: the daemon's model_id for this spec is ",
                     Digest128::Of(reply.model_id()).ToHex(), " (digest), this library's is ",
                     model.id.ToHex()));
  }
  model.block_tokens = spec.block_tokens;
  model.layer_groups = reply.layer_groups();
  model.tensor_parallel = reply.tensor_parallel();
  model.part_bytes.assign(reply.part_bytes().begin(), reply.part_bytes().end());
  model.block_bytes = reply.block_bytes();
  if (model.part_bytes != PartBytes(spec)) {
    return absl::InternalError("RegisterModel: the daemon's part_bytes differ from this library's");
  }
  for (const v1::TierCapacity& tier : reply.tiers()) {
    model.tiers.push_back(
        TierRoom{ToCacheTier(static_cast<uint32_t>(tier.tier())), tier.blocks(), tier.tokens()});
  }
  return model;
}

absl::Status RunRelease(Core* core, uint64_t lease_id, const client_internal::LeaseUse& use) {
  v1::ReleaseRequest request;
  request.set_lease_id(lease_id);
  request.set_verified_blocks(use.verified_blocks);
  request.set_shared_bytes(use.shared_bytes);
  request.set_shared_seconds(std::chrono::duration<double>(use.shared_time).count());
  core->lease_times().Close(lease_id);
  return core->Acknowledged(Rpc::kRelease, request.SerializeAsString());
}

absl::Status RunRenew(Core* core, uint64_t lease_id, Duration remaining) {
  v1::RenewRequest request;
  KVTIER_ASSIGN_OR_RETURN(const uint32_t lease_ms, client_internal::LeaseMilliseconds(remaining));
  request.set_lease_id(lease_id);
  request.set_lease_ms(lease_ms);
  const client_internal::LeaseTimes::Renewal renewal =
      core->lease_times().BeginRenew(lease_id, remaining);
  absl::Status status = core->Acknowledged(Rpc::kRenew, request.SerializeAsString());
  core->lease_times().EndRenew(renewal, status.ok());
  return status;
}

absl::StatusOr<wire::LookupResponse> RunLookup(Core* core, const EncodedPrompt& prompt,
                                               const wire::LookupHead& lookup) {
  const std::string head = wire::EncodeLookupHead(prompt.head(), lookup);
  const Outgoing request = client_internal::HeadAndTokens(head, prompt.tokens());
  wire::LookupResponse reply;
  KVTIER_RETURN_IF_ERROR(core->Call(core->options().lookup_deadline, [&](Duration left) {
    return core->transport().Unary(Rpc::kLookup, request, left, [&](wire::Slices slices) {
      return AsReplyError(wire::DecodeLookupResponse(slices, &reply));
    });
  }));
  return reply;
}

// How many leading payloads need not be sent.
absl::StatusOr<uint32_t> CountPresent(Core* core, const EncodedPrompt& prompt,
                                      const StoreParams& params, size_t payloads) {
  uint32_t first_missing = 0;
  if (params.first_missing.has_value()) {
    first_missing = *params.first_missing;
  } else {
    KVTIER_ASSIGN_OR_RETURN(const wire::LookupResponse found,
                            RunLookup(core, prompt, {.before_store = true}));
    first_missing = found.blocks;
  }
  if (first_missing <= params.first_block) return 0;
  return static_cast<uint32_t>(std::min<size_t>(first_missing - params.first_block, payloads));
}

absl::Status RunStore(Core* core, StoreMessages* messages, v1::StoreResponse* reply) {
  return core->Call(core->options().transfer_deadline, [&](Duration left) {
    messages->Restart();
    return core->transport().ClientStream(
        Rpc::kStore, left,
        [messages](Outgoing* out) {
          messages->Next(out);
          return !messages->done();
        },
        [reply](wire::Slices slices) { return Parse(slices, reply); });
  });
}

// What shared memory can do of a Store from payload *next on; *next goes past it.
absl::Status StoreShared(Core* core, const EncodedPrompt& prompt, const StoreParams& params,
                         std::span<const std::span<const std::byte>> payloads, uint32_t* next,
                         StoreReport* report) {
  const std::shared_ptr<SharedSession> session = core->shared_memory().Session();
  if (session == nullptr) return absl::OkStatus();
  SharedStore store(core, session.get(), prompt, params, payloads, *next);
  const absl::Status status = store.Run(core->options().transfer_deadline, report);
  core->CountSharedStore(report->shared);
  if (status.ok()) *next = static_cast<uint32_t>(payloads.size());
  return client_internal::GrpcMayDo(status) ? absl::OkStatus() : status;
}

absl::Status CollectViews(Core* core, SharedSession* session, uint64_t lease_id,
                          const FetchParams& params, std::vector<SharedViews::Block>* blocks,
                          std::vector<std::shared_ptr<const void>>* mappings) {
  blocks->resize(params.last_block - params.first_block);
  const auto on_part = [&](const SharedPart& part) {
    (*blocks)[part.block - params.first_block] =
        SharedViews::Block{FetchStatus::kOk, false, part.bytes, part.checksum};
    if (mappings->empty() || mappings->back() != part.mapping) mappings->push_back(part.mapping);
    return absl::OkStatus();
  };
  KVTIER_ASSIGN_OR_RETURN(
      const std::vector<SharedStatus> statuses,
      CallFetchShared(core, session, lease_id, params, core->options().transfer_deadline, on_part));
  uint64_t shared = 0;
  for (size_t i = 0; i < statuses.size(); ++i) {
    (*blocks)[i].not_shared = statuses[i] == SharedStatus::kNotShared;
    if (statuses[i] == SharedStatus::kOk) ++shared;
  }
  core->CountSharedFetch(shared);
  return absl::OkStatus();
}

absl::Status CheckPayloads(std::span<const std::span<const std::byte>> payloads) {
  if (payloads.empty()) return absl::InvalidArgumentError("payloads is empty, the least is 1");
  for (size_t i = 0; i < payloads.size(); ++i) {
    if (payloads[i].empty()) {
      return absl::InvalidArgumentError(absl::StrCat("payloads[", i, "] is empty"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

// ---------------------------------------------------------------------- Lease

Lease::Lease(std::shared_ptr<Core> core, uint64_t id, uint32_t blocks, TimePoint end)
    : core_(std::move(core)), id_(id), blocks_(blocks) {
  core_->leases().Open(id, blocks);
  core_->lease_times().Open(id, end);
}

TimePoint Lease::end() const {
  if (id_ == 0) return TimePoint::min();
  return core_->lease_times().End(id_).value_or(TimePoint::min());
}

Lease::Lease(Lease&& other) noexcept
    : core_(std::move(other.core_)),
      id_(std::exchange(other.id_, 0)),
      blocks_(std::exchange(other.blocks_, 0)) {}

Lease& Lease::operator=(Lease&& other) noexcept {
  Lease ended(std::move(*this));
  core_ = std::move(other.core_);
  id_ = std::exchange(other.id_, 0);
  blocks_ = std::exchange(other.blocks_, 0);
  return *this;
}

Lease::~Lease() {
  // The daemon ends what is not released here when its time is up.
  if (id_ != 0) Release().IgnoreError();
}

absl::Status Lease::Renew(Duration remaining) {
  if (id_ == 0) return absl::NotFoundError("the lease is empty");
  return RunRenew(core_.get(), id_, remaining);
}

absl::Status Lease::Release() {
  if (id_ == 0) return absl::NotFoundError("the lease is empty");
  const std::shared_ptr<Core> core = core_;
  const client_internal::LeaseUse use = core->leases().Close(id_);
  return RunRelease(core.get(), Detach(), use);
}

uint64_t Lease::Detach() {
  if (id_ != 0) core_->leases().Close(id_);
  core_.reset();
  blocks_ = 0;
  return std::exchange(id_, 0);
}

// ---------------------------------------------------------------------- SharedViews

bool SharedViews::expired() const { return LeaseWatch(core_.get(), lease_id_, lease_end_).over(); }

// ---------------------------------------------------------------------- Client

Client::Client(std::shared_ptr<Core> core) : core_(std::move(core)) {}
Client::~Client() = default;

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(ClientOptions options) {
  KVTIER_ASSIGN_OR_RETURN(std::unique_ptr<Transport> transport, Transport::Create(options.address));
  auto core = std::make_shared<Core>(std::move(options), std::move(transport));
  KVTIER_RETURN_IF_ERROR(core->WaitConnected());
  return std::unique_ptr<Client>(new Client(std::move(core)));
}

absl::StatusOr<RegisteredModel> Client::RegisterModel(const ModelSpec& spec) {
  KVTIER_RETURN_IF_ERROR(ValidateSpec(spec));
  v1::RegisterModelRequest request;
  *request.mutable_spec() = client_internal::ToProto(spec);
  const std::string bytes = request.SerializeAsString();
  v1::RegisterModelResponse reply;
  KVTIER_RETURN_IF_ERROR(core_->Call(core_->options().register_deadline, [&](Duration left) {
    return core_->transport().Unary(Rpc::kRegisterModel, {bytes}, left,
                                    [&](wire::Slices slices) { return Parse(slices, &reply); });
  }));
  core_->shared_memory().Offer(reply.shared_memory_socket());
  return ToModel(reply, spec);
}

absl::StatusOr<PrefixMatch> Client::Lookup(const Prompt& prompt, const LookupParams& params) {
  KVTIER_ASSIGN_OR_RETURN(const EncodedPrompt encoded, EncodedPrompt::Make(prompt));
  wire::LookupHead head;
  KVTIER_ASSIGN_OR_RETURN(head.lease_ms, client_internal::LeaseMilliseconds(params.lease));
  head.promote_to = static_cast<uint32_t>(params.promote_to.value_or(CacheTier::kUnknown));
  head.prefill_tokens_per_second = params.prefill_tokens_per_second;
  // The daemon counts from later on.
  const TimePoint lease_end = core_->clock().Now() + params.lease;
  KVTIER_ASSIGN_OR_RETURN(wire::LookupResponse reply, RunLookup(core_.get(), encoded, head));
  PrefixMatch match;
  match.blocks = reply.blocks;
  match.tokens = reply.tokens;
  for (const wire::TierRun& run : reply.runs) {
    match.runs.push_back(TierSpan{ToCacheTier(run.tier), run.blocks, ToLoadTime(run.load_seconds)});
  }
  match.group_blocks = std::move(reply.group_blocks);
  if (reply.lease_id != 0) {
    match.lease = Lease(core_, reply.lease_id, reply.blocks, lease_end);
  }
  return match;
}

absl::StatusOr<FetchReport> Client::Fetch(const Prompt& prompt, const FetchParams& params,
                                          std::span<const std::span<std::byte>> buffers) {
  KVTIER_RETURN_IF_ERROR(client_internal::CheckBuffers(params, buffers.size()));
  return FetchByPrompt(core_.get(), prompt, params, buffers, nullptr);
}

absl::StatusOr<FetchReport> Client::Fetch(uint64_t lease_id, const FetchParams& params,
                                          std::span<const std::span<std::byte>> buffers) {
  KVTIER_RETURN_IF_ERROR(client_internal::CheckBuffers(params, buffers.size()));
  return FetchByLease(core_.get(), lease_id, params, buffers, nullptr);
}

absl::StatusOr<FetchReport> Client::FetchViews(const Prompt& prompt, const FetchParams& params,
                                               const PieceVisitor& visit) {
  KVTIER_RETURN_IF_ERROR(client_internal::CheckFetchRange(params));
  return FetchByPrompt(core_.get(), prompt, params, {}, &visit);
}

absl::StatusOr<FetchReport> Client::FetchViews(uint64_t lease_id, const FetchParams& params,
                                               const PieceVisitor& visit) {
  KVTIER_RETURN_IF_ERROR(client_internal::CheckFetchRange(params));
  return FetchByLease(core_.get(), lease_id, params, {}, &visit);
}

absl::StatusOr<SharedViews> Client::FetchSharedViews(uint64_t lease_id, const FetchParams& params) {
  KVTIER_RETURN_IF_ERROR(client_internal::CheckFetchRange(params));
  if (!LeaseWatch(core_.get(), lease_id, params.lease_end).known()) {
    return absl::FailedPreconditionError(
        "lease_end is not given, and this client does not know when the lease ends");
  }
  const std::shared_ptr<SharedSession> session = core_->shared_memory().Session();
  if (session == nullptr) return absl::UnavailableError("this client has no shared memory");
  SharedViews views;
  views.core_ = core_;
  views.lease_id_ = lease_id;
  views.lease_end_ = params.lease_end;
  KVTIER_RETURN_IF_ERROR(
      CollectViews(core_.get(), session.get(), lease_id, params, &views.blocks, &views.mappings_));
  while (views.leading < views.blocks.size() &&
         views.blocks[views.leading].status == FetchStatus::kOk) {
    ++views.leading;
  }
  return views;
}

absl::StatusOr<StoreReport> Client::Store(const Prompt& prompt, const StoreParams& params,
                                          std::span<const std::span<const std::byte>> payloads) {
  KVTIER_RETURN_IF_ERROR(CheckPayloads(payloads));
  KVTIER_ASSIGN_OR_RETURN(const EncodedPrompt encoded, EncodedPrompt::Make(prompt));
  KVTIER_ASSIGN_OR_RETURN(uint32_t present,
                          CountPresent(core_.get(), encoded, params, payloads.size()));
  // Present is not durable: naming the last block makes all before it durable too.
  if (params.durability == StoreDurability::kDurable && present == payloads.size()) --present;
  StoreReport report;
  report.blocks.resize(payloads.size());
  std::fill_n(report.blocks.begin(), present,
              StoredBlock{StoreVerdict::kAlreadyPresent, StoreRefusal::kNone});
  if (present == payloads.size()) return report;
  KVTIER_RETURN_IF_ERROR(StoreShared(core_.get(), encoded, params, payloads, &present, &report));
  if (present == payloads.size()) return report;
  StoreMessages messages(encoded, params, payloads, present);
  v1::StoreResponse reply;
  KVTIER_RETURN_IF_ERROR(RunStore(core_.get(), &messages, &reply));
  KVTIER_RETURN_IF_ERROR(
      client_internal::TakeOutcomes(reply, present, payloads.size() - present, &report));
  return report;
}

absl::Status Client::Release(uint64_t lease_id, uint32_t verified_blocks) {
  return RunRelease(core_.get(), lease_id, {.verified_blocks = verified_blocks});
}

absl::Status Client::Renew(uint64_t lease_id, Duration remaining) {
  return RunRenew(core_.get(), lease_id, remaining);
}

ClientCounters Client::counters() const { return core_->counters(); }

bool Client::has_shared_memory() const { return core_->shared_memory().Session() != nullptr; }

}  // namespace kvtier
