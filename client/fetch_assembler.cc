#include "client/fetch_assembler.h"

#include <algorithm>

#include "common/check.h"
#include "common/copy_past.h"

namespace kvtier::client_internal {
namespace {

absl::Status Broken(const wire::Piece& piece, const std::string& what) {
  return absl::InternalError(
      absl::StrCat("reply breaks the protocol at block ", piece.block, ": ", what));
}

}  // namespace

void CountLeading(FetchReport* report) {
  const auto miss =
      std::find_if(report->blocks.begin(), report->blocks.end(),
                   [](const FetchedBlock& block) { return block.status != FetchStatus::kOk; });
  report->leading = static_cast<uint32_t>(miss - report->blocks.begin());
}

FetchAssembler::FetchAssembler(const FetchParams& params,
                               std::span<const std::span<std::byte>> buffers,
                               const PieceVisitor* visit)
    : params_(params), buffers_(buffers), visit_(visit), next_block_(params.first_block) {
  KVTIER_CHECK(params.first_block <= params.last_block);
  KVTIER_CHECK(visit != nullptr || buffers.size() == params.last_block - params.first_block);
  report_.blocks.resize(params.last_block - params.first_block);
}

absl::Status FetchAssembler::Add(const wire::PieceList& pieces) {
  for (size_t i = 0; i < pieces.size(); ++i) {
    KVTIER_RETURN_IF_ERROR(AddPiece(pieces[i], pieces.payload(i)));
  }
  return absl::OkStatus();
}

absl::Status FetchAssembler::AddPiece(const wire::Piece& piece, wire::Slices payload) {
  if (!in_block_) {
    KVTIER_RETURN_IF_ERROR(BeginBlock(piece));
    if (!in_block_) return absl::OkStatus();  // a miss
  }
  KVTIER_RETURN_IF_ERROR(CheckContinues(piece));
  TakePayload(piece, payload);
  if (received_ == current_.part_bytes) CompleteBlock();
  return absl::OkStatus();
}

absl::Status FetchAssembler::BeginBlock(const wire::Piece& piece) {
  if (piece.block != next_block_ || piece.block >= params_.last_block) {
    return Broken(piece, absl::StrCat("the next block is ", next_block_, ", the last is before ",
                                      params_.last_block));
  }
  ++next_block_;
  if (piece.status == wire::kBlockStatusMiss) {
    if (piece.payload_bytes > 0) return Broken(piece, "a miss with payload");
    return absl::OkStatus();
  }
  if (piece.status != wire::kBlockStatusOk) {
    return Broken(piece, absl::StrCat("status is ", piece.status));
  }
  if (piece.part_bytes == 0) return Broken(piece, "part_bytes is 0");
  if (visit_ == nullptr) {
    const uint64_t room = buffers_[piece.block - params_.first_block].size();
    if (piece.part_bytes != room) {
      return Broken(piece,
                    absl::StrCat("part_bytes is ", piece.part_bytes, ", the buffer has ", room));
    }
  }
  current_ = piece;
  received_ = 0;
  checksum_.Restart();
  in_block_ = true;
  return absl::OkStatus();
}

absl::Status FetchAssembler::CheckContinues(const wire::Piece& piece) const {
  if (piece.block != current_.block) {
    return Broken(piece, absl::StrCat("block ", current_.block, " has only ", received_, " of ",
                                      current_.part_bytes, " bytes"));
  }
  if (piece.status != wire::kBlockStatusOk || piece.part_bytes != current_.part_bytes ||
      piece.checksum != current_.checksum) {
    return Broken(piece, "status, part_bytes or checksum differ within a block");
  }
  if (piece.offset != received_) {
    return Broken(piece, absl::StrCat("offset is ", piece.offset, ", expected ", received_));
  }
  if (piece.payload_bytes == 0 || piece.payload_bytes > current_.part_bytes - received_) {
    return Broken(piece, absl::StrCat("payload has ", piece.payload_bytes, " bytes, ",
                                      current_.part_bytes - received_, " are left"));
  }
  return absl::OkStatus();
}

void FetchAssembler::TakePayload(const wire::Piece& piece, wire::Slices payload) {
  for (std::string_view slice : payload) {
    const auto bytes = std::as_bytes(std::span(slice.data(), slice.size()));
    if (visit_ != nullptr) {
      (*visit_)(PieceView{piece.block, received_, current_.part_bytes, bytes});
      checksum_.Update(bytes);
    } else {
      // Checksum first: it reads the slice while the kernel's copy of it is still in the CPU's
      // cache. HashAndCopyPast is for memory that is not: here it costs a tenth of the rate.
      checksum_.Update(bytes);
      CopyPast(buffers_[piece.block - params_.first_block].data() + received_, bytes);
    }
    received_ += bytes.size();
  }
}

void FetchAssembler::CompleteBlock() {
  in_block_ = false;
  FetchedBlock& block = report_.blocks[current_.block - params_.first_block];
  if (checksum_.Value() != current_.checksum) {
    ++checksum_failures_;
    return;
  }
  block = FetchedBlock{FetchStatus::kOk, current_.part_bytes, current_.checksum};
}

absl::StatusOr<FetchReport> FetchAssembler::Finish() {
  if (in_block_) {
    return Broken(current_, absl::StrCat("the stream ended after ", received_, " of ",
                                         current_.part_bytes, " bytes"));
  }
  FinishCopies();
  CountLeading(&report_);
  return std::move(report_);
}

}  // namespace kvtier::client_internal
