#include "kvtier/client.h"

#include <algorithm>
#include <utility>

#include "client/core.h"
#include "client/fetch_assembler.h"
#include "client/requests.h"
#include "client/spec_proto.h"
#include "client/transport.h"
#include "common/wire.h"
#include "kvtier/v1/kvtier.pb.h"

namespace kvtier {

using client_internal::CallResult;
using client_internal::Core;
using client_internal::EncodedPrompt;
using client_internal::FetchAssembler;
using client_internal::Outgoing;
using client_internal::Rpc;
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

// A reply that generated code reads.
template <typename Message>
absl::Status Parse(wire::Slices slices, Message* out) {
  std::string bytes;
  for (std::string_view slice : slices) bytes.append(slice);
  if (out->ParseFromString(bytes)) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("reply of ", bytes.size(), " bytes is not protobuf"));
}

// What the hand-written codec says about a reply is a fault of the peer, not of our caller.
absl::Status AsReplyError(const absl::Status& status) {
  if (status.ok()) return status;
  return absl::InternalError(absl::StrCat("reply breaks the protocol: ", status.message()));
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

wire::FetchHead FetchHeadOf(const FetchParams& params) {
  wire::FetchHead head;
  head.first_block = params.first_block;
  head.last_block = params.last_block;
  head.part = wire::Part{params.part.layer_group, params.part.rank};
  head.allow_gaps = params.allow_gaps;
  return head;
}

absl::Status RunRelease(Core* core, uint64_t lease_id, uint32_t verified_blocks) {
  v1::ReleaseRequest request;
  request.set_lease_id(lease_id);
  request.set_verified_blocks(verified_blocks);
  return core->Acknowledged(Rpc::kRelease, request.SerializeAsString());
}

absl::Status RunRenew(Core* core, uint64_t lease_id, Duration remaining) {
  v1::RenewRequest request;
  KVTIER_ASSIGN_OR_RETURN(const uint32_t lease_ms, client_internal::LeaseMilliseconds(remaining));
  request.set_lease_id(lease_id);
  request.set_lease_ms(lease_ms);
  return core->Acknowledged(Rpc::kRenew, request.SerializeAsString());
}

Outgoing HeadAndTokens(std::string_view head, std::string_view tokens) {
  Outgoing request{head};
  if (!tokens.empty()) request.push_back(tokens);
  return request;
}

absl::StatusOr<FetchReport> RunFetch(Core* core, const FetchParams& params, const Outgoing& request,
                                     std::span<const std::span<std::byte>> buffers,
                                     const PieceVisitor* visit) {
  FetchAssembler assembler(params, buffers, visit);
  wire::PieceList pieces;
  const auto on_message = [&](wire::Slices slices) {
    KVTIER_RETURN_IF_ERROR(
        AsReplyError(wire::DecodeFetchResponse(slices, wire::Limits(), &pieces)));
    return assembler.Add(pieces);
  };
  const absl::Status status = core->Call(core->options().transfer_deadline, [&](Duration left) {
    return core->transport().ServerStream(Rpc::kFetch, request, left, on_message);
  });
  core->CountChecksumFailures(assembler.checksum_failures());
  KVTIER_RETURN_IF_ERROR(status);
  return assembler.Finish();
}

absl::StatusOr<FetchReport> FetchByPrompt(Core* core, const Prompt& prompt,
                                          const FetchParams& params,
                                          std::span<const std::span<std::byte>> buffers,
                                          const PieceVisitor* visit) {
  KVTIER_ASSIGN_OR_RETURN(const EncodedPrompt encoded, EncodedPrompt::Make(prompt));
  wire::FetchHead fetch = FetchHeadOf(params);
  const wire::PromptHead prompt_head = encoded.head();
  fetch.prompt = &prompt_head;
  const std::string head = wire::EncodeFetchHead(fetch);
  return RunFetch(core, params, HeadAndTokens(head, encoded.tokens()), buffers, visit);
}

absl::StatusOr<FetchReport> FetchByLease(Core* core, uint64_t lease_id, const FetchParams& params,
                                         std::span<const std::span<std::byte>> buffers,
                                         const PieceVisitor* visit) {
  if (lease_id == 0) return absl::InvalidArgumentError("lease_id is 0: there is no lease");
  wire::FetchHead fetch = FetchHeadOf(params);
  fetch.lease_id = lease_id;
  const std::string head = wire::EncodeFetchHead(fetch);
  absl::StatusOr<FetchReport> report = RunFetch(core, params, {head}, buffers, visit);
  if (report.ok()) core->leases().Note(lease_id, params.first_block, report->blocks);
  return report;
}

absl::StatusOr<wire::LookupResponse> RunLookup(Core* core, const EncodedPrompt& prompt,
                                               const wire::LookupHead& lookup) {
  const std::string head = wire::EncodeLookupHead(prompt.head(), lookup);
  const Outgoing request = HeadAndTokens(head, prompt.tokens());
  wire::LookupResponse reply;
  KVTIER_RETURN_IF_ERROR(core->Call(core->options().lookup_deadline, [&](Duration left) {
    return core->transport().Unary(Rpc::kLookup, request, left, [&](wire::Slices slices) {
      return AsReplyError(wire::DecodeLookupResponse(slices, &reply));
    });
  }));
  return reply;
}

StoredBlock ToStoredBlock(const v1::BlockOutcome& outcome) {
  switch (outcome.status()) {
    case v1::STORE_STATUS_STORED:
      return {StoreVerdict::kStored, StoreRefusal::kNone};
    case v1::STORE_STATUS_ALREADY_PRESENT:
      return {StoreVerdict::kAlreadyPresent, StoreRefusal::kNone};
    default:
      return {StoreVerdict::kRejected, static_cast<StoreRefusal>(outcome.reason())};
  }
}

absl::Status ToReport(const v1::StoreResponse& reply, uint32_t skip, StoreReport* report) {
  const size_t expected = report->blocks.size() - skip;
  if (static_cast<size_t>(reply.outcomes_size()) != expected) {
    return absl::InternalError(absl::StrCat("Store: the reply has ", reply.outcomes_size(),
                                            " outcomes for ", expected, " blocks"));
  }
  for (size_t i = 0; i < expected; ++i) {
    report->blocks[skip + i] = ToStoredBlock(reply.outcomes(static_cast<int>(i)));
  }
  report->sent = static_cast<uint32_t>(expected);
  report->checksum_mismatches = reply.checksum_mismatches();
  return absl::OkStatus();
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

Lease::Lease(std::shared_ptr<Core> core, uint64_t id, uint32_t blocks)
    : core_(std::move(core)), id_(id), blocks_(blocks) {
  core_->leases().Open(id, blocks);
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
  const uint32_t verified = core->leases().Close(id_);
  return RunRelease(core.get(), Detach(), verified);
}

uint64_t Lease::Detach() {
  if (id_ != 0) core_->leases().Close(id_);
  core_.reset();
  blocks_ = 0;
  return std::exchange(id_, 0);
}

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
  return ToModel(reply, spec);
}

absl::StatusOr<PrefixMatch> Client::Lookup(const Prompt& prompt, const LookupParams& params) {
  KVTIER_ASSIGN_OR_RETURN(const EncodedPrompt encoded, EncodedPrompt::Make(prompt));
  wire::LookupHead head;
  KVTIER_ASSIGN_OR_RETURN(head.lease_ms, client_internal::LeaseMilliseconds(params.lease));
  head.promote_to = static_cast<uint32_t>(params.promote_to.value_or(CacheTier::kUnknown));
  head.prefill_tokens_per_second = params.prefill_tokens_per_second;
  KVTIER_ASSIGN_OR_RETURN(wire::LookupResponse reply, RunLookup(core_.get(), encoded, head));
  PrefixMatch match;
  match.blocks = reply.blocks;
  match.tokens = reply.tokens;
  for (const wire::TierRun& run : reply.runs) {
    match.runs.push_back(TierSpan{ToCacheTier(run.tier), run.blocks, ToLoadTime(run.load_seconds)});
  }
  match.group_blocks = std::move(reply.group_blocks);
  if (reply.lease_id != 0) match.lease = Lease(core_, reply.lease_id, reply.blocks);
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
  StoreMessages messages(encoded, params, payloads, present);
  v1::StoreResponse reply;
  KVTIER_RETURN_IF_ERROR(RunStore(core_.get(), &messages, &reply));
  KVTIER_RETURN_IF_ERROR(ToReport(reply, present, &report));
  return report;
}

absl::Status Client::Release(uint64_t lease_id, uint32_t verified_blocks) {
  return RunRelease(core_.get(), lease_id, verified_blocks);
}

absl::Status Client::Renew(uint64_t lease_id, Duration remaining) {
  return RunRenew(core_.get(), lease_id, remaining);
}

ClientCounters Client::counters() const { return core_->counters(); }

}  // namespace kvtier
