#include "client/shared_store.h"

#include <algorithm>
#include <utility>

#include "client/replies.h"
#include "common/check.h"
#include "common/copy_past.h"
#include "common/mutex.h"
#include "common/wire.h"

namespace kvtier::client_internal {
namespace {

constexpr uint64_t kLine = 64;  // payloads start on lines of the CPU's cache
// Small enough for the daemon to find it in a cache that the two share, large enough for the call
// to cost little beside it.
constexpr uint64_t kBatchBytes = uint64_t{4} << 20;
constexpr uint32_t kBatchPayloads = 1024;
// Stays in the core's own cache between hashing and copying.
constexpr size_t kPiece = size_t{64} << 10;

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

// One StoreShared call, perhaps on another thread.
struct SharedStore::Call {
  Mutex mutex;
  CondVar ended;
  bool running KVTIER_GUARDED_BY(mutex) = false;
  Batch batch;
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

absl::Status SharedStore::Run(Duration limit, StoreReport* report) {
  report_ = report;
  const TimePoint end = std::chrono::steady_clock::now() + limit;
  const auto left = [end] { return end - std::chrono::steady_clock::now(); };
  KVTIER_ASSIGN_OR_RETURN(const auto region, session_->TakeStoreRegion(limit));
  Call call;
  for (size_t i = 0; i < batches_.size(); ++i) {
    const Batch& batch = batches_[i];
    const uint64_t offset = i % 2 * half_bytes_;
    const std::string head = Fill(batch, region->bytes().subspan(offset, half_bytes_), offset);
    call.Wait();
    if (i > 0) KVTIER_RETURN_IF_ERROR(Take(batches_[i - 1], call));
    if (stored_ == payloads_.size()) return absl::OkStatus();
    call.Start();
    const auto send = [this, &call, head, limit = left()] {
      call.status = Send(head, limit, &call.reply);
      call.End();
    };
    if (IsLast(batch)) {
      send();  // nothing is left to do meanwhile
    } else {
      region->caller().Run(send);
    }
  }
  return Take(batches_.back(), call);
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
  FinishCopies();
  const StoreDurability durability =
      IsLast(batch) ? params_.durability : StoreDurability::kAccepted;
  return request.SerializeAsString() +
         wire::EncodeStoreHead(
             prompt_.head(), params_.first_block + batch.first, batch.last - batch.first,
             wire::Part{params_.part.layer_group, params_.part.rank},
             static_cast<uint32_t>(durability), wire::HeaderField::kStoreSharedRequest);
}

void SharedStore::Copy(std::span<const std::byte> payload, std::byte* to, v1::SharedPayload* out) {
  const bool verify = core_->options().verify_shared;
  if (verify) checksum_.Restart();
  for (size_t offset = 0; offset < payload.size(); offset += kPiece) {
    const auto piece = payload.subspan(offset, std::min(kPiece, payload.size() - offset));
    if (verify) checksum_.Update(piece);
    CopyPast(to + offset, piece);
  }
  if (verify) out->set_checksum(checksum_.Value());
}

absl::Status SharedStore::Send(const std::string& head, Duration limit, v1::StoreResponse* reply) {
  Outgoing request{head};
  if (!prompt_.tokens().empty()) request.push_back(prompt_.tokens());
  const absl::Status status = core_->Call(limit, [&](Duration left) {
    return core_->transport().Unary(Rpc::kStoreShared, request, left,
                                    [reply](wire::Slices slices) { return Parse(slices, reply); });
  });
  // Its region would be written to under the daemon's hands: another session gets another one.
  if (MayStillRun(status)) session_->End();
  return status;
}

// A batch that finds no room is what the rest of one long Store would have been.
absl::Status SharedStore::Take(const Batch& batch, const Call& call) {
  const bool durable = params_.durability == StoreDurability::kDurable;
  const bool first = batch.first == batches_.front().first;
  if (absl::IsResourceExhausted(call.status) && !first && !(durable && IsLast(batch))) {
    RefuseRest(batch.first, batch.last, StoreRefusal::kNoSpace);
  } else {
    KVTIER_RETURN_IF_ERROR(call.status);
    KVTIER_RETURN_IF_ERROR(
        TakeOutcomes(call.reply, batch.first, batch.last - batch.first, report_));
    report_->shared += batch.last - batch.first;
  }
  stored_ = batch.last;
  const StoredBlock& last = report_->blocks[batch.last - 1];
  if (last.verdict != StoreVerdict::kRejected || durable) return absl::OkStatus();
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
