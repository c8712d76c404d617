#include "client/requests.h"

#include <algorithm>

#include "common/channel_args.h"
#include "common/check.h"
#include "common/hashed_copy.h"

namespace kvtier::client_internal {
namespace {

constexpr uint64_t kMessagePayload = uint64_t{1} << 20;
constexpr size_t kMessagePieces = 256;
constexpr size_t kLeastHash = 8;
constexpr size_t kLongestHash = 64;

std::string StoreHeader(const EncodedPrompt& prompt, const StoreParams& params, uint32_t skip,
                        size_t payloads) {
  return wire::EncodeStoreHead(prompt.head(), params.first_block + skip,
                               static_cast<uint32_t>(payloads) - skip,
                               wire::Part{params.part.layer_group, params.part.rank},
                               static_cast<uint32_t>(params.durability));
}

absl::Status JoinHashes(std::span<const std::string> hashes, std::string* joined) {
  const size_t length = hashes.front().size();
  joined->reserve(length * hashes.size());
  for (size_t i = 0; i < hashes.size(); ++i) {
    const std::string& hash = hashes[i];
    if (hash.size() != length || length < kLeastHash || length > kLongestHash) {
      return absl::InvalidArgumentError(
          absl::StrCat("engine_hashes[", i, "] has ", hash.size(), " bytes, the first has ", length,
                       ", the limits are ", kLeastHash, " and ", kLongestHash));
    }
    joined->append(hash);
  }
  return absl::OkStatus();
}

absl::Status CheckSize(const Prompt& prompt, uint64_t token_and_hash_bytes) {
  uint64_t bytes = token_and_hash_bytes;
  for (const MediaSpan& span : prompt.media) bytes += sizeof(span) + span.digest.size();
  if (bytes <= kMaxPromptBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("prompt has ", prompt.tokens.size(), " tokens, ", prompt.engine_hashes.size(),
                   " engine_hashes and ", prompt.media.size(), " media spans, ", bytes,
                   " bytes in a message, the limit is ", kMaxPromptBytes));
}

}  // namespace

absl::StatusOr<EncodedPrompt> EncodedPrompt::Make(const Prompt& prompt) {
  if (prompt.tokens.empty() == prompt.engine_hashes.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("prompt has ", prompt.tokens.size(),
                                                   " tokens and ", prompt.engine_hashes.size(),
                                                   " engine_hashes, it must have one of the two"));
  }
  EncodedPrompt encoded;
  encoded.prompt_ = &prompt;
  encoded.tokens_ = std::string_view(reinterpret_cast<const char*>(prompt.tokens.data()),
                                     prompt.tokens.size_bytes());
  if (!prompt.engine_hashes.empty()) {
    KVTIER_RETURN_IF_ERROR(JoinHashes(prompt.engine_hashes, &encoded.hashes_));
    encoded.hash_bytes_ = static_cast<uint32_t>(prompt.engine_hashes.front().size());
  }
  KVTIER_RETURN_IF_ERROR(CheckSize(prompt, encoded.tokens_.size() + encoded.hashes_.size()));
  return encoded;
}

wire::PromptHead EncodedPrompt::head() const {
  wire::PromptHead head;
  head.model_id = prompt_->model;
  head.name = &prompt_->name;
  head.token_count = prompt_->tokens.size();
  head.engine_hashes = hashes_;
  head.engine_hash_bytes = hash_bytes_;
  head.media = prompt_->media;
  return head;
}

absl::StatusOr<uint32_t> LeaseMilliseconds(Duration lease) {
  using Milliseconds = std::chrono::milliseconds;
  if (lease == Duration::zero()) return 0;
  if (lease < Milliseconds(1) || lease > std::chrono::minutes(10)) {
    const double milliseconds = std::chrono::duration<double, std::milli>(lease).count();
    return absl::InvalidArgumentError(
        absl::StrCat("lease is ", milliseconds, " ms, the limits are 1 ms and 10 min"));
  }
  return static_cast<uint32_t>(std::chrono::ceil<Milliseconds>(lease).count());
}

absl::Status CheckFetchRange(const FetchParams& params) {
  if (params.first_block < params.last_block) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "first_block is ", params.first_block, ", it must be below last_block, ", params.last_block));
}

absl::Status CheckBuffers(const FetchParams& params, size_t buffers) {
  KVTIER_RETURN_IF_ERROR(CheckFetchRange(params));
  const uint32_t blocks = params.last_block - params.first_block;
  if (buffers == blocks) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("buffers has ", buffers, " elements for ", blocks, " blocks"));
}

StoreMessages::StoreMessages(const EncodedPrompt& prompt, const StoreParams& params,
                             std::span<const std::span<const std::byte>> payloads, uint32_t skip)
    : tokens_(prompt.tokens()),
      payloads_(payloads),
      first_block_(params.first_block),
      skip_(skip),
      header_(StoreHeader(prompt, params, skip, payloads.size())),
      next_(skip),
      heads_(kMessagePieces * wire::kMaxPieceHead) {
  KVTIER_CHECK(skip < payloads.size());
}

void StoreMessages::Restart() {
  header_sent_ = false;
  next_ = skip_;
  offset_ = 0;
}

bool StoreMessages::Next(std::vector<std::string_view>* out) {
  if (!header_sent_) {
    header_sent_ = true;
    out->push_back(header_);
    if (!tokens_.empty()) out->push_back(tokens_);
    return true;
  }
  if (next_ == payloads_.size()) return false;
  uint64_t room = kMessagePayload;
  for (size_t piece = 0; piece < kMessagePieces && room > 0 && next_ < payloads_.size(); ++piece) {
    room -= AddPiece(room, heads_.data() + piece * wire::kMaxPieceHead, out);
  }
  return true;
}

uint64_t StoreMessages::AddPiece(uint64_t room, char* head, std::vector<std::string_view>* out) {
  const std::span<const std::byte> part = payloads_[next_];
  const auto bytes = part.subspan(offset_, std::min<uint64_t>(room, part.size() - offset_));
  // Hashed just before they are sent, so that sending finds them in the CPU's cache.
  if (offset_ == 0) sent_.Restart();
  HashFromMemory(bytes, &sent_);
  wire::Piece piece;
  piece.block = first_block_ + static_cast<uint32_t>(next_);
  piece.offset = offset_;
  piece.part_bytes = part.size();
  piece.payload_bytes = bytes.size();
  offset_ += bytes.size();
  if (offset_ == part.size()) {
    piece.checksum = sent_.Value();
    ++next_;
    offset_ = 0;
  }
  out->emplace_back(head, wire::EncodePieceHead(wire::PieceField::kStoreRequest, piece, head));
  out->emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return piece.payload_bytes;
}

}  // namespace kvtier::client_internal
