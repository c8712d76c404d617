#include "client/shared_store.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "client/replies.h"
#include "common/check.h"
#include "common/hashed_copy.h"
#include "common/mutex.h"
#include "common/wire.h"

namespace kvtier::client_internal {
namespace {

constexpr uint64_t kLine = 64;  // payloads start on lines of the CPU's cache
// Small enough for two of them to stay in a cache that the daemon's CPU sees (its reading then
// takes 10.2 GB/s of CPU time instead of 8.5), large enough for the call to cost little beside it.
constexpr uint64_t kBatchBytes = uint64_t{4} << 20;
constexpr uint32_t kBatchPayloads = 1024;

uint64_t ToLine(uint64_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

// After these nobody knows whether the daemon still reads the region.
bool MayStillRun(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnknown:
      return true;
    default:
      return false;
  }
}

}  // namespace

// The StoreShared call of one batch, and what it said once it has ended.
struct SharedStore::Call {
  Mutex mutex;
  CondVar ended;
  bool running KVTIER_GUARDED_BY(mutex) = false;
  std::string head;
  absl::Status status;
  v1::StoreResponse reply;

  ~Call() { Wait(); }
  void Wait() {
    MutexLock lock(mutex);
    while (running) ended.Wait(mutex);
  }
  void Start() {
    MutexLock lock(mutex);
    running = true;
  }
  void End() {
    MutexLock lock(mutex);
    running = false;
    ended.NotifyOne();
  }
};

SharedStore::SharedStore(Core* core, SharedSession* session, const EncodedPrompt& prompt,
                         const StoreParams& params,
                         std::span<const std::span<const std::byte>> payloads, uint32_t skip)
    : core_(core),
      session_(session),
      prompt_(prompt),
      params_(params),
      payloads_(payloads),
      half_bytes_(session->store_region_bytes() / 2 / kLine * kLine),
      stored_(skip) {
  KVTIER_CHECK(skip < payloads.size());
  MakeBatches();
}

void SharedStore::MakeBatches() {
  const uint64_t room = std::min(half_bytes_, kBatchBytes);
  uint64_t used = 0;
  for (uint32_t i = stored_; i < payloads_.size(); ++i) {
    const uint64_t bytes = ToLine(payloads_[i].size());
    if (bytes > half_bytes_) fits_ = false;
    if (batches_.empty() || used + bytes > room || i - batches_.back().first == kBatchPayloads) {
      batches_.push_back(Batch{i, i});
      used = 0;
    }
    used += bytes;
    batches_.back().last = i + 1;
  }
}

// The calls run one after the other on a thread of their own, so that the next begins at once; this
// one fills the half that the call before that has let go of.
absl::Status SharedStore::Run(Duration limit, StoreReport* report) {
  report_ = report;
  end_ = std::chrono::steady_clock::now() + limit;
  KVTIER_ASSIGN_OR_RETURN(const auto region, session_->TakeStoreRegion(limit));
  std::array<Call, 2> calls;  // of either half
  for (size_t i = 0; i < batches_.size(); ++i) {
    Call& call = calls[i % 2];
    if (i >= 2) KVTIER_RETURN_IF_ERROR(Take(batches_[i - 2], &call));
    if (stored_ == payloads_.size()) return absl::OkStatus();
    const uint64_t offset = i % 2 * half_bytes_;
    call.head = Fill(batches_[i], region->bytes().subspan(offset, half_bytes_), offset);
    call.Start();
    if (batches_.size() == 1) {
      Send(&call);
    } else {
      region->caller().Run([this, &call] { Send(&call); });
    }
  }
  for (size_t i = batches_.size() - std::min<size_t>(batches_.size(), 2); i < batches_.size();
       ++i) {
    if (stored_ == payloads_.size()) break;
    KVTIER_RETURN_IF_ERROR(Take(batches_[i], &calls[i % 2]));
  }
  return absl::OkStatus();
}

std::string SharedStore::Fill(const Batch& batch, std::span<std::byte> half, uint64_t half_offset) {
  v1::StoreSharedRequest request;
  request.set_session_id(session_->id());
  request.set_unverified(!core_->options().verify_shared);
  uint64_t used = 0;
  for (uint32_t i = batch.first; i < batch.last; ++i) {
    v1::SharedPayload* const out = request.add_payloads();
    out->set_offset(half_offset + used);
    Copy(payloads_[i], half.data() + used, out);
    used += ToLine(payloads_[i].size());
  }
  const StoreDurability durability =
      IsLast(batch) ? params_.durability : StoreDurability::kAccepted;
  return request.SerializeAsString() +
         wire::EncodeStoreHead(
             prompt_.head(), params_.first_block + batch.first, batch.last - batch.first,
             wire::Part{params_.part.layer_group, params_.part.rank},
             static_cast<uint32_t>(durability), wire::HeaderField::kStoreSharedRequest);
}

// Not past the cache: the daemon reads it soon.
void SharedStore::Copy(std::span<const std::byte> payload, std::byte* to, v1::SharedPayload* out) {
  if (!core_->options().verify_shared) {
    std::memcpy(to, payload.data(), payload.size());
    return;
  }
  checksum_.Restart();
  HashAndCopy(to, payload, &checksum_);
  out->set_checksum(checksum_.Value());
}

// After a call that did not store all of its batch the rest is not sent: nothing could find it. To
// make what is there durable the last one must be, though.
void SharedStore::Send(Call* call) {
  if (stopped_) {
    call->status = absl::CancelledError("an earlier batch failed");
    return call->End();
  }
  const Outgoing request = HeadAndTokens(call->head, prompt_.tokens());
  call->status = core_->Call(end_ - std::chrono::steady_clock::now(), [&](Duration left) {
    return core_->transport().Unary(Rpc::kStoreShared, request, left, [call](wire::Slices slices) {
      return Parse(slices, &call->reply);
    });
  });
  // Its region would be written to under the daemon's hands: another session gets another one.
  if (MayStillRun(call->status)) session_->End();
  const auto& outcomes = call->reply.outcomes();
  const bool cut = absl::IsResourceExhausted(call->status) ||
                   (call->status.ok() && !outcomes.empty() &&
                    outcomes.rbegin()->status() == v1::STORE_STATUS_REJECTED);
  stopped_ = cut ? !Durable() : !call->status.ok();
  call->End();
}

// A batch that finds no room is what the rest of one long Store would have been.
absl::Status SharedStore::Take(const Batch& batch, Call* call) {
  call->Wait();
  const bool first = batch.first == batches_.front().first;
  if (absl::IsResourceExhausted(call->status) && !first && !(Durable() && IsLast(batch))) {
    RefuseRest(batch.first, batch.last, StoreRefusal::kNoSpace);
  } else {
    KVTIER_RETURN_IF_ERROR(call->status);
    KVTIER_RETURN_IF_ERROR(
        TakeOutcomes(call->reply, batch.first, batch.last - batch.first, report_));
    report_->shared += batch.last - batch.first;
  }
  stored_ = batch.last;
  const StoredBlock& last = report_->blocks[batch.last - 1];
  if (last.verdict != StoreVerdict::kRejected || Durable()) return absl::OkStatus();
  RefuseRest(
      batch.last, static_cast<uint32_t>(payloads_.size()),
      last.refusal == StoreRefusal::kNoSpace ? StoreRefusal::kNoSpace : StoreRefusal::kNoParent);
  stored_ = static_cast<uint32_t>(payloads_.size());
  return absl::OkStatus();
}

void SharedStore::RefuseRest(uint32_t first, uint32_t last, StoreRefusal refusal) {
  for (uint32_t i = first; i < last; ++i) {
    report_->blocks[i] = StoredBlock{StoreVerdict::kRejected, refusal};
  }
}

}  // namespace kvtier::client_internal
