// The messages of kvtier.v1 that carry tokens or payload, read and written by hand, so that neither
// is ever copied into a protobuf object. Plain protobuf on the wire: generated code reads what is
// written here and the other way round. No gRPC and no protobuf in this file, no I/O, no state.
//
// Reading takes a message as the slices it arrived in and leaves tokens and payload where they are:
// what is decoded holds views into those slices, which must outlive it. Everything is bounded by
// Limits before memory is taken for it. Unknown fields are skipped, a field given twice follows
// protobuf's rules (the last one wins; messages merge; lists go on).
//
// Writing makes heads: the bytes that come before tokens or payload. A message is
//   [head][tokens]                              LookupRequest, FetchRequest, StoreRequest with a
//   header [piece head][payload][piece head][payload]  FetchResponse, StoreRequest with pieces
#pragma once

#include <cstdint>
#include <forward_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/block_key.h"
#include "common/prompt.h"
#include "common/status.h"

namespace kvtier::wire {

struct Limits {
  uint64_t tokens = uint64_t{1} << 20;         // per message
  uint64_t engine_hashes = 65'536;             // per message
  uint64_t media_spans = 4'096;                // per message
  uint64_t payload_bytes = uint64_t{1} << 20;  // per message, over all pieces
  uint64_t pieces = 4'096;                     // per message
};

inline constexpr size_t kSessionIdBytes = 16;  // of shared memory

using Slices = std::span<const std::string_view>;

// ---------------------------------------------------------------------------------------------
// Reading. All return INVALID_ARGUMENT: what is not protobuf, or field, value and limit of what is
// over a limit. `out` is overwritten; after an error its contents are undefined.

struct Prompt {
  std::optional<ModelId> model_id;
  Namespace name;
  std::vector<std::string_view> tokens;  // end to end: u32 little endian; a token may straddle two
  uint64_t token_count = 0;
  std::string engine_hashes;       // end to end
  uint32_t engine_hash_bytes = 0;  // of each
  uint64_t engine_hash_count = 0;
  std::vector<MediaSpan> media;  // not validated
  // Tokens that came one by one have nothing to point at in the message: they lie here. Private to
  // the decoder.
  std::forward_list<std::string> unpacked;
};

struct Part {
  uint32_t layer_group = 0;
  uint32_t rank = 0;
};

struct LookupRequest {
  Prompt prompt;
  uint32_t lease_ms = 0;
  uint32_t promote_to = 0;  // kvtier.v1.Tier, not validated
  bool before_store = false;
  double prefill_tokens_per_second = 0;  // not validated
};

struct FetchRequest {
  bool has_prompt = false;
  Prompt prompt;
  uint64_t lease_id = 0;
  uint32_t first_block = 0;
  uint32_t last_block = 0;
  Part part;
  bool allow_gaps = false;
};

struct StoreHeader {
  Prompt prompt;
  uint32_t first_block = 0;
  uint32_t block_count = 0;
  Part part;
  uint32_t durability = 0;  // kvtier.v1.Durability, not validated
};

inline constexpr uint32_t kBlockStatusOk = 1;  // kvtier.v1.BlockStatus
inline constexpr uint32_t kBlockStatusMiss = 2;
inline constexpr uint32_t kBlockStatusNotShared = 3;

struct Piece {
  uint32_t block = 0;
  uint32_t status = 0;
  uint64_t offset = 0;
  uint64_t part_bytes = 0;
  uint64_t checksum = 0;
  uint64_t payload_bytes = 0;
};

// The pieces of one message, each with the slices of its payload.
class PieceList {
 public:
  size_t size() const { return pieces_.size(); }
  const Piece& operator[](size_t i) const { return pieces_[i].piece; }
  // End to end payload_bytes.
  Slices payload(size_t i) const {
    return Slices(slices_).subspan(pieces_[i].first_slice, pieces_[i].slice_count);
  }

 private:
  friend class MessageDecoder;
  struct Entry {
    Piece piece;
    size_t first_slice = 0;
    size_t slice_count = 0;
  };
  std::vector<Entry> pieces_;
  std::vector<std::string_view> slices_;
};

struct StoreRequest {
  bool has_header = false;
  StoreHeader header;
  PieceList pieces;
};

struct FetchSharedRequest {
  std::string session_id;  // empty, or of kSessionIdBytes
  uint64_t lease_id = 0;
  uint32_t first_block = 0;
  uint32_t last_block = 0;
  Part part;
  bool allow_gaps = false;
};

struct StoreSharedRequest {
  std::string session_id;  // as above
  bool has_header = false;
  StoreHeader header;
  bool unverified = false;
};

// Of a FetchSharedResponse.
struct SharedBlock {
  uint32_t block = 0;
  uint32_t status = 0;
  uint64_t checksum = 0;
  uint64_t region = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

struct TierRun {
  uint32_t tier = 0;  // kvtier.v1.Tier
  uint32_t blocks = 0;
  double load_seconds = 0;
};

struct LookupResponse {
  uint32_t blocks = 0;
  uint32_t tokens = 0;
  std::vector<TierRun> runs;
  uint64_t lease_id = 0;
  std::vector<uint32_t> group_blocks;
};

absl::Status DecodeLookupRequest(Slices slices, const Limits& limits, LookupRequest* out);
absl::Status DecodeFetchRequest(Slices slices, const Limits& limits, FetchRequest* out);
absl::Status DecodeStoreRequest(Slices slices, const Limits& limits, StoreRequest* out);
absl::Status DecodeFetchResponse(Slices slices, const Limits& limits, PieceList* out);
absl::Status DecodeLookupResponse(Slices slices, LookupResponse* out);
absl::Status DecodeFetchSharedRequest(Slices slices, const Limits& limits, FetchSharedRequest* out);
absl::Status DecodeStoreSharedRequest(Slices slices, const Limits& limits, StoreSharedRequest* out);

// ---------------------------------------------------------------------------------------------
// Writing. Values are written as given: validation is the reader's.

// A prompt to write. With tokens, token_count * 4 bytes of them (u32 little endian) must follow the
// head; with engine hashes (engine_hash_bytes > 0) the head is the whole message.
struct PromptHead {
  ModelId model_id;
  const Namespace* name = nullptr;  // may be null: the empty namespace
  uint64_t token_count = 0;
  std::string_view engine_hashes;  // end to end
  uint32_t engine_hash_bytes = 0;
  std::span<const MediaSpan> media;
};

struct LookupHead {
  uint32_t lease_ms = 0;
  uint32_t promote_to = 0;  // kvtier.v1.Tier
  bool before_store = false;
  double prefill_tokens_per_second = 0;
};

struct FetchHead {
  const PromptHead* prompt = nullptr;  // may be null with a lease
  uint64_t lease_id = 0;
  uint32_t first_block = 0;
  uint32_t last_block = 0;
  Part part;
  bool allow_gaps = false;
};

std::string EncodeLookupHead(const PromptHead& prompt, const LookupHead& lookup);
std::string EncodeFetchHead(const FetchHead& fetch);
// The field of a StoreHeader in its message.
enum class HeaderField : uint8_t { kStoreRequest = 1, kStoreSharedRequest = 2 };
// A header, with no pieces: a whole StoreRequest, or the end of a StoreSharedRequest.
std::string EncodeStoreHead(const PromptHead& prompt, uint32_t first_block, uint32_t block_count,
                            Part part, uint32_t durability,
                            HeaderField field = HeaderField::kStoreRequest);

// The list that a piece stands in: its field number there.
enum class PieceField : uint8_t { kFetchResponse = 1, kStoreRequest = 2 };
inline constexpr size_t kMaxPieceHead = 64;
// Writes the bytes before piece.payload_bytes of payload to `out`, at most kMaxPieceHead of them,
// and returns their number. REQUIRES: payload_bytes < 2^31 - kMaxPieceHead.
size_t EncodePieceHead(PieceField field, const Piece& piece, char* out);

std::string EncodeLookupResponse(const LookupResponse& response);
std::string EncodeFetchSharedResponse(std::span<const SharedBlock> blocks);

}  // namespace kvtier::wire
