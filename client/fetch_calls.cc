#include "client/fetch_calls.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "client/fetch_assembler.h"
#include "client/replies.h"
#include "client/requests.h"
#include "client/shared_fetch.h"
#include "common/copy_past.h"
#include "common/wire.h"

namespace kvtier::client_internal {
namespace {

using Buffers = std::span<const std::span<std::byte>>;

wire::FetchHead FetchHeadOf(const FetchParams& params) {
  wire::FetchHead head;
  head.first_block = params.first_block;
  head.last_block = params.last_block;
  head.part = wire::Part{params.part.layer_group, params.part.rank};
  head.allow_gaps = params.allow_gaps;
  return head;
}

absl::StatusOr<FetchReport> RunFetch(Core* core, const FetchParams& params, const Outgoing& request,
                                     Duration limit, Buffers buffers, const PieceVisitor* visit) {
  FetchAssembler assembler(params, buffers, visit);
  wire::PieceList pieces;
  const auto on_message = [&](wire::Slices slices) {
    KVTIER_RETURN_IF_ERROR(
        AsReplyError(wire::DecodeFetchResponse(slices, wire::Limits(), &pieces)));
    return assembler.Add(pieces);
  };
  const absl::Status status = core->Call(limit, [&](Duration left) {
    return core->transport().ServerStream(Rpc::kFetch, request, left, on_message);
  });
  core->CountChecksumFailures(assembler.checksum_failures());
  KVTIER_RETURN_IF_ERROR(status);
  return assembler.Finish();
}

// One Fetch by a lease, until `deadline`.
class LeaseFetch {
 public:
  LeaseFetch(Core* core, uint64_t lease_id, const FetchParams& params, Buffers buffers,
             const PieceVisitor* visit)
      : core_(core),
        lease_id_(lease_id),
        params_(params),
        buffers_(buffers),
        visit_(visit),
        watch_(core, lease_id, params.lease_end),
        deadline_(std::chrono::steady_clock::now() + core->options().transfer_deadline) {}

  absl::StatusOr<FetchReport> Run() {
    // A lease that is over may yet live for a moment by the daemon's clock: that is its to say.
    if (!watch_.over()) {
      const std::shared_ptr<SharedSession> session = core_->shared_memory().Session();
      if (session != nullptr) {
        absl::StatusOr<FetchReport> report = Shared(session.get());
        if (!GrpcMayDo(report.status())) return report;
      }
    }
    return OverGrpc(params_, buffers_);
  }

 private:
  Duration Left() const { return deadline_ - std::chrono::steady_clock::now(); }

  absl::StatusOr<FetchReport> OverGrpc(const FetchParams& params, Buffers buffers) {
    wire::FetchHead fetch = FetchHeadOf(params);
    fetch.lease_id = lease_id_;
    const std::string head = wire::EncodeFetchHead(fetch);
    return RunFetch(core_, params, {head}, Left(), buffers, visit_);
  }

  absl::StatusOr<FetchReport> Shared(SharedSession* session) {
    FetchReport report;
    report.blocks.resize(params_.last_block - params_.first_block);
    SharedReader reader(params_, buffers_, visit_, core_->options().verify_shared);
    const auto on_part = [&](const SharedPart& part) -> absl::Status {
      if (watch_.over()) return absl::CancelledError("the lease has ended");
      const TimePoint begun = core_->clock().Now();
      KVTIER_ASSIGN_OR_RETURN(const std::optional<FetchedBlock> block, reader.Read(part));
      read_time_ += core_->clock().Now() - begun;
      read_bytes_ += part.bytes.size();
      if (block.has_value()) {
        report.blocks[part.block - params_.first_block] = *block;
        ++report.shared;
      } else {
        core_->CountChecksumFailures(1);
      }
      return absl::OkStatus();
    };
    const absl::StatusOr<std::vector<SharedStatus>> statuses =
        CallFetchShared(core_, session, lease_id_, params_, Left(), on_part);
    FinishCopies();
    if (GrpcMayDo(statuses.status())) return statuses.status();
    if (watch_.over()) return Ended();
    KVTIER_RETURN_IF_ERROR(statuses.status());
    core_->CountSharedFetch(report.shared);
    // A visitor need not look at what it is shown.
    const bool read = visit_ == nullptr || core_->options().verify_shared;
    if (read) core_->leases().NoteShared(lease_id_, read_bytes_, read_time_);
    KVTIER_RETURN_IF_ERROR(FetchRest(*statuses, &report));
    CountLeading(&report);
    return report;
  }

  // Nobody knows which bytes were read too late.
  FetchReport Ended() const {
    core_->CountEndedLease();
    FetchReport report;
    report.blocks.resize(params_.last_block - params_.first_block);
    report.lease_ended = true;
    return report;
  }

  // What could not be shared, run by run.
  absl::Status FetchRest(const std::vector<SharedStatus>& statuses, FetchReport* report) {
    for (uint32_t first = 0; first < statuses.size(); ++first) {
      if (statuses[first] != SharedStatus::kNotShared) continue;
      uint32_t last = first;
      while (last < statuses.size() && statuses[last] == SharedStatus::kNotShared) ++last;
      FetchParams run = params_;
      run.first_block = params_.first_block + first;
      run.last_block = params_.first_block + last;
      KVTIER_ASSIGN_OR_RETURN(
          const FetchReport rest,
          OverGrpc(run, buffers_.empty() ? Buffers() : buffers_.subspan(first, last - first)));
      std::copy(rest.blocks.begin(), rest.blocks.end(), report->blocks.begin() + first);
      first = last - 1;
    }
    return absl::OkStatus();
  }

  Core* const core_;
  const uint64_t lease_id_;
  const FetchParams& params_;
  const Buffers buffers_;
  const PieceVisitor* const visit_;
  const LeaseWatch watch_;
  const TimePoint deadline_;
  uint64_t read_bytes_ = 0;  // out of shared memory
  Duration read_time_ = Duration::zero();
};

}  // namespace

absl::StatusOr<FetchReport> FetchByPrompt(Core* core, const Prompt& prompt,
                                          const FetchParams& params, Buffers buffers,
                                          const PieceVisitor* visit) {
  KVTIER_ASSIGN_OR_RETURN(const EncodedPrompt encoded, EncodedPrompt::Make(prompt));
  wire::FetchHead fetch = FetchHeadOf(params);
  const wire::PromptHead prompt_head = encoded.head();
  fetch.prompt = &prompt_head;
  const std::string head = wire::EncodeFetchHead(fetch);
  return RunFetch(core, params, HeadAndTokens(head, encoded.tokens()),
                  core->options().transfer_deadline, buffers, visit);
}

absl::StatusOr<FetchReport> FetchByLease(Core* core, uint64_t lease_id, const FetchParams& params,
                                         Buffers buffers, const PieceVisitor* visit) {
  if (lease_id == 0) return absl::InvalidArgumentError("lease_id is 0: there is no lease");
  absl::StatusOr<FetchReport> report = LeaseFetch(core, lease_id, params, buffers, visit).Run();
  // The ledger is of what was verified.
  const bool verified = report.ok() && (report->shared == 0 || core->options().verify_shared);
  if (verified) core->leases().Note(lease_id, params.first_block, report->blocks);
  return report;
}

}  // namespace kvtier::client_internal
