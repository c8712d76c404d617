// Turns the pieces of one Fetch stream into blocks that are whole and verified, or misses. No gRPC
// here.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/running_checksum.h"
#include "common/status.h"
#include "common/wire.h"
#include "kvtier/client.h"

namespace kvtier::client_internal {

// Sets `leading` from the blocks.
void CountLeading(FetchReport* report);

// Either copies into `buffers` (one per block of the range) or hands pieces to `visit`. Not
// thread-safe.
class FetchAssembler {
 public:
  // What the arguments point at must outlive the assembler. `visit` null: copy into `buffers`.
  FetchAssembler(const FetchParams& params, std::span<const std::span<std::byte>> buffers,
                 const PieceVisitor* visit);

  // The next message. INTERNAL when a piece is out of order, overlaps, does not fit, or contradicts
  // an earlier one of its block.
  absl::Status Add(const wire::PieceList& pieces);

  // After the stream's end. INTERNAL when a block was begun and not completed. Blocks the stream
  // did not name are misses.
  absl::StatusOr<FetchReport> Finish();

  uint64_t checksum_failures() const { return checksum_failures_; }

 private:
  absl::Status AddPiece(const wire::Piece& piece, wire::Slices payload);
  absl::Status BeginBlock(const wire::Piece& piece);
  absl::Status CheckContinues(const wire::Piece& piece) const;
  void TakePayload(const wire::Piece& piece, wire::Slices payload);
  void CompleteBlock();

  const FetchParams params_;
  const std::span<const std::span<std::byte>> buffers_;
  const PieceVisitor* const visit_;

  FetchReport report_;
  uint32_t next_block_;       // the first block of which nothing has come
  bool in_block_ = false;     // block next_block_ - 1 is incomplete
  wire::Piece current_;       // its first piece
  uint64_t received_ = 0;     // bytes of it so far
  RunningChecksum checksum_;  // over them
  uint64_t checksum_failures_ = 0;
};

}  // namespace kvtier::client_internal
