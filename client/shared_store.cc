#include "client/shared_store.h"

#include <chrono>
#include <cstring>
#include <utility>

#include "client/replies.h"
#include "common/hashed_copy.h"
#include "common/wire.h"
#include "kvtier/v1/kvtier.pb.h"

namespace kvtier::client_internal {
namespace {

// A stream as long as this goes in before the call: that the daemon begins meanwhile saves less
// than the hand-over to another thread costs.
constexpr uint64_t kShort = uint64_t{256} << 10;

// After these nobody knows whether the daemon still reads the region.
bool MayStillRun(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kAborted:
      return true;
    default:
      return false;
  }
}

}  // namespace

// The call, and what it said once it has ended.
struct SharedStore::Call {
  StoreRingWriter* const ring;
  std::atomic<bool> ended{false};  // for whoever fills
  absl::Status status = {};
  v1::StoreResponse reply = {};
};

absl::Status SharedStore::Run(Duration limit, StoreReport* report) {
  const TimePoint end = std::chrono::steady_clock::now() + limit;
  KVTIER_ASSIGN_OR_RETURN(const auto region, session_->TakeStoreRegion(limit));
  StoreRingWriter ring(region->bytes());
  uint64_t stream = 0;
  for (const auto& part : payloads_) stream += StoreRing::StreamBytes(part.size());
  Call call{.ring = &ring};
  const Duration left = end - std::chrono::steady_clock::now();
  if (stream <= kShort && ring.Holds(stream)) {
    Fill(&ring, call.ended);
    Send(left, &call);
  } else {
    region->caller().Run([this, left, &call] { Send(left, &call); });
    Fill(&ring, call.ended);
    region->caller().WaitIdle();  // nobody else uses it while the region is taken
  }
  KVTIER_RETURN_IF_ERROR(call.status);
  const auto count = static_cast<uint32_t>(payloads_.size());
  report->shared += count;
  return TakeOutcomes(call.reply, skip_, count, report);
}

std::string SharedStore::Head() const {
  v1::StoreSharedRequest request;
  request.set_session_id(session_->id());
  request.set_unverified(!core_->options().verify_shared);
  return request.SerializeAsString() +
         wire::EncodeStoreHead(
             prompt_.head(), params_.first_block + skip_, static_cast<uint32_t>(payloads_.size()),
             wire::Part{params_.part.layer_group, params_.part.rank},
             static_cast<uint32_t>(params_.durability), wire::HeaderField::kStoreSharedRequest);
}

void SharedStore::Send(Duration limit, Call* call) {
  const std::string head = Head();
  const Outgoing request = HeadAndTokens(head, prompt_.tokens());
  bool tried = false;
  call->status = core_->Call(limit, [&](Duration left) {
    // The stream can't be taken twice. Over gRPC the payloads can.
    if (tried) return CallResult{absl::AbortedError("StoreShared: the daemon has gone")};
    tried = true;
    return core_->transport().Unary(Rpc::kStoreShared, request, left, [call](wire::Slices slices) {
      return Parse(slices, &call->reply);
    });
  });
  // Its region would be written to under the daemon's hands: another session gets another one.
  if (MayStillRun(call->status)) session_->End();
  call->ended.store(true);
  call->ring->Wake();
}

void SharedStore::Fill(StoreRingWriter* ring, const std::atomic<bool>& stop) {
  for (const std::span<const std::byte> part : payloads_) {
    if (!FillPart(part, ring, stop)) return;
  }
  ring->Flush();
}

// Not past the cache: the daemon reads it soon. False: nobody takes any more.
bool SharedStore::FillPart(std::span<const std::byte> part, StoreRingWriter* ring,
                           const std::atomic<bool>& stop) {
  const bool verified = core_->options().verify_shared;
  checksum_.Restart();
  while (!part.empty()) {
    const std::span<std::byte> room = ring->Room(part.size(), stop);
    if (room.empty()) return false;
    const std::span<const std::byte> piece = part.first(room.size());
    if (verified) {
      HashAndCopy(room.data(), piece, &checksum_);
    } else {
      std::memcpy(room.data(), piece.data(), piece.size());
    }
    ring->Fill(piece.size());
    part = part.subspan(piece.size());
  }
  const std::span<std::byte> line = ring->Room(StoreRing::kLine, stop);
  if (line.empty()) return false;
  const uint64_t checksum = verified ? checksum_.Value() : 0;
  std::memcpy(line.data(), &checksum, sizeof(checksum));
  ring->Fill(line.size());
  return true;
}

}  // namespace kvtier::client_internal
