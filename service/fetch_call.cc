#include "service/fetch_call.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace kvtier {
namespace {

// Below this, copying payload into the message's head costs less than a slice of its own.
constexpr uint64_t kCopyBelow = 2048;

struct Hold {
  std::shared_ptr<const void> pins;
  LentSlices* lent;
};

void DropHold(void* hold) {
  LentSlices* lent = static_cast<Hold*>(hold)->lent;
  delete static_cast<Hold*>(hold);
  lent->Return();
}

// A slice over the view's own bytes that keeps them where they are.
grpc::Slice HoldingSlice(const PartView& view, uint64_t offset, uint64_t bytes, LentSlices* lent) {
  lent->Lend();
  std::byte* from = const_cast<std::byte*>(view.bytes.data()) + offset;
  return grpc::Slice(from, bytes, &DropHold, new Hold{view.hold, lent});
}

}  // namespace

// A FetchResponse of at most limits.payload_bytes of payload.
class FetchCall::MessageBuilder {
 public:
  MessageBuilder(const wire::Limits& limits, LentSlices* lent) : limits_(limits), lent_(lent) {}

  bool empty() const { return pieces_ == 0; }
  const BytesByTier& bytes_from() const { return bytes_from_; }
  bool full() const { return room() == 0 || pieces_ == limits_.pieces; }
  uint64_t room() const { return limits_.payload_bytes - payload_bytes_; }

  void AddMiss(uint32_t block) { AddHead({.block = block, .status = wire::kBlockStatusMiss}); }

  // REQUIRES: bytes <= room().
  void AddPiece(uint32_t block, const PartView& view, uint64_t offset, uint64_t bytes) {
    AddHead({.block = block,
             .status = wire::kBlockStatusOk,
             .offset = offset,
             .part_bytes = view.bytes.size(),
             .checksum = view.checksum,
             .payload_bytes = bytes});
    payload_bytes_ += bytes;
    bytes_from_[static_cast<int>(view.tier)] += bytes;
    if (bytes < kCopyBelow) {
      copied_.append(reinterpret_cast<const char*>(view.bytes.data()) + offset, bytes);
      return;
    }
    FlushCopied();
    slices_.push_back(HoldingSlice(view, offset, bytes, lent_));
  }

  grpc::ByteBuffer Build() {
    FlushCopied();
    return grpc::ByteBuffer(slices_.data(), slices_.size());
  }

 private:
  void AddHead(const wire::Piece& piece) {
    char head[wire::kMaxPieceHead];
    copied_.append(head, wire::EncodePieceHead(wire::PieceField::kFetchResponse, piece, head));
    ++pieces_;
  }

  void FlushCopied() {
    if (copied_.empty()) return;
    slices_.emplace_back(copied_);
    copied_.clear();
  }

  const wire::Limits& limits_;
  LentSlices* const lent_;
  uint64_t payload_bytes_ = 0;
  BytesByTier bytes_from_{};
  uint64_t pieces_ = 0;
  std::string copied_;  // heads and small payloads since the last slice
  std::vector<grpc::Slice> slices_;
};

absl::StatusOr<std::unique_ptr<FetchSession>> FetchCall::Open(const grpc::ByteBuffer& request) {
  const MessageSlices message(request);
  wire::FetchRequest fetch;
  KVTIER_RETURN_IF_ERROR(wire::DecodeFetchRequest(message.views(), core_->options.limits, &fetch));
  allow_gaps_ = fetch.allow_gaps;
  return OpenSession(&fetch);
}

// A prompt, when there is one, says which blocks are meant; a lease alone names those it pins.
absl::StatusOr<std::unique_ptr<FetchSession>> FetchCall::OpenSession(wire::FetchRequest* request) {
  if (request->has_prompt) {
    KVTIER_ASSIGN_OR_RETURN(const ModelId id, RequireModelId(request->prompt));
    KVTIER_ASSIGN_OR_RETURN(const ServedModel model, core_->models.Get(id));
    KVTIER_ASSIGN_OR_RETURN(const uint32_t part, PartIndex(request->part, model));
    KVTIER_ASSIGN_OR_RETURN(PromptRef prompt, ToPromptRef(&request->prompt, id, model));
    return core_->manager->BeginFetch(prompt, request->first_block, request->last_block, part);
  }
  if (request->lease_id == 0) {
    return absl::InvalidArgumentError("prompt and lease_id are missing, one of them must be given");
  }
  KVTIER_ASSIGN_OR_RETURN(const ModelId id, core_->manager->LeaseModel(request->lease_id));
  KVTIER_ASSIGN_OR_RETURN(const ServedModel model, core_->models.Get(id));
  KVTIER_ASSIGN_OR_RETURN(const uint32_t part, PartIndex(request->part, model));
  return core_->manager->BeginFetch(request->lease_id, request->first_block, request->last_block,
                                    part);
}

void FetchCall::Drop() {
  view_.reset();
  FetchStream::Drop();
}

bool FetchCall::Build(Message* message) {
  MessageBuilder builder(core_->options.limits, &core_->lent);
  const bool exhausted = Fill(&builder);
  message->empty = builder.empty();
  if (!builder.empty()) message->bytes = builder.Build();
  message->from = builder.bytes_from();
  return exhausted;
}

bool FetchCall::Fill(MessageBuilder* message) {
  while (!message->full()) {
    if (!view_.has_value()) {
      if (block_ == session_->last()) return true;
      if (!message->empty() && WouldWait()) return false;
      if (!TakeBlock(message)) return true;
      if (!view_.has_value()) continue;  // a miss
    }
    const uint64_t bytes = std::min(message->room(), view_->bytes.size() - offset_);
    message->AddPiece(block_ - 1, *view_, offset_, bytes);
    offset_ += bytes;
    if (offset_ == view_->bytes.size()) view_.reset();
  }
  return !view_.has_value() && block_ == session_->last();
}

// The next block's view, or a miss in the message. False when the stream ends here.
bool FetchCall::TakeBlock(MessageBuilder* message) {
  absl::StatusOr<PartView> view = session_->Next(block_, deadline_);
  ++block_;
  offset_ = 0;
  if (view.ok()) {
    view_ = std::move(*view);
    return true;
  }
  if (!absl::IsNotFound(view.status()) && !absl::IsDataLoss(view.status())) {
    stop_ = view.status();
    return false;
  }
  message->AddMiss(block_ - 1);
  return allow_gaps_;
}

}  // namespace kvtier
