#include "tests/fuzz/wire_fuzz.h"

#include <algorithm>
#include <bit>
#include <string>
#include <string_view>
#include <vector>

#include "common/check.h"
#include "common/wire.h"

namespace kvtier {
namespace {

constexpr wire::Limits kLimits{
    .tokens = 64, .engine_hashes = 8, .media_spans = 4, .payload_bytes = 256, .pieces = 8};

std::vector<std::string_view> Cut(std::string_view bytes, uint32_t seed) {
  std::vector<std::string_view> slices;
  while (!bytes.empty()) {
    seed = seed * 1664525 + 1013904223;
    const size_t step = (seed >> 24) % 17;  // empty slices too
    slices.push_back(bytes.substr(0, step));
    bytes.remove_prefix(std::min(step, bytes.size()));
  }
  return slices;
}

std::string Join(wire::Slices slices) {
  std::string out;
  for (std::string_view slice : slices) out.append(slice);
  return out;
}

std::string Show(const wire::Prompt& prompt) {
  const std::string tokens = Join(prompt.tokens);
  KVTIER_CHECK(tokens.size() == prompt.token_count * 4);
  KVTIER_CHECK(prompt.token_count <= kLimits.tokens);
  KVTIER_CHECK(prompt.engine_hash_count <= kLimits.engine_hashes);
  KVTIER_CHECK(prompt.engine_hashes.size() == prompt.engine_hash_count * prompt.engine_hash_bytes);
  KVTIER_CHECK(prompt.media.size() <= kLimits.media_spans);
  KVTIER_CHECK(ValidateNamespace(prompt.name).ok());
  std::string out = absl::StrCat(prompt.model_id ? prompt.model_id->ToHex() : "none", ",",
                                 prompt.name.tenant, ",", prompt.name.salt, ",",
                                 prompt.name.adapter, ",", tokens, ",", prompt.engine_hashes);
  for (const MediaSpan& span : prompt.media) {
    absl::StrAppend(&out, ",", span.first_token, "+", span.token_count, span.digest);
  }
  return out;
}

std::string Show(const wire::PieceList& pieces) {
  KVTIER_CHECK(pieces.size() <= kLimits.pieces);
  std::string out;
  uint64_t payload_bytes = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const wire::Piece& piece = pieces[i];
    const std::string payload = Join(pieces.payload(i));
    KVTIER_CHECK(payload.size() == piece.payload_bytes);
    payload_bytes += payload.size();
    absl::StrAppend(&out, ";", piece.block, ",", piece.status, ",", piece.offset, ",",
                    piece.part_bytes, ",", piece.checksum, ",", payload);
  }
  KVTIER_CHECK(payload_bytes <= kLimits.payload_bytes);
  return out;
}

std::string Show(const wire::LookupRequest& m) {
  return absl::StrCat(Show(m.prompt), "|", m.lease_ms, "|", m.promote_to, "|", m.before_store, "|",
                      std::bit_cast<uint64_t>(m.prefill_tokens_per_second));
}

std::string Show(const wire::FetchRequest& m) {
  return absl::StrCat(m.has_prompt, Show(m.prompt), "|", m.lease_id, "|", m.first_block, "|",
                      m.last_block, "|", m.part.layer_group, "|", m.part.rank, "|", m.allow_gaps);
}

std::string Show(const wire::StoreRequest& m) {
  return absl::StrCat(m.has_header, Show(m.header.prompt), "|", m.header.first_block, "|",
                      m.header.block_count, "|", m.header.part.layer_group, "|", m.header.part.rank,
                      "|", m.header.durability, Show(m.pieces));
}

std::string Show(const wire::FetchSharedRequest& m) {
  KVTIER_CHECK(m.session_id.empty() || m.session_id.size() == wire::kSessionIdBytes);
  return absl::StrCat(m.session_id, "|", m.lease_id, "|", m.first_block, "|", m.last_block, "|",
                      m.part.layer_group, "|", m.part.rank, "|", m.allow_gaps);
}

std::string Show(const wire::StoreSharedRequest& m) {
  KVTIER_CHECK(m.session_id.empty() || m.session_id.size() == wire::kSessionIdBytes);
  return absl::StrCat(m.session_id, "|", m.has_header, Show(m.header.prompt), "|",
                      m.header.first_block, "|", m.header.block_count, "|",
                      m.header.part.layer_group, "|", m.header.part.rank, "|", m.header.durability,
                      "|", m.unverified);
}

std::string Show(const wire::LookupResponse& m) {
  std::string out = absl::StrCat(m.blocks, "|", m.tokens, "|", m.lease_id);
  for (const wire::TierRun& run : m.runs) {
    absl::StrAppend(&out, ",", run.tier, ":", run.blocks, ":",
                    std::bit_cast<uint64_t>(run.load_seconds));
  }
  for (uint32_t blocks : m.group_blocks) absl::StrAppend(&out, ";", blocks);
  return out;
}

template <typename Message, typename Decode>
void Check(std::string_view bytes, const std::vector<std::string_view>& cut, Decode decode) {
  Message whole;
  Message pieces;
  const absl::Status whole_status = decode(wire::Slices(&bytes, 1), &whole);
  const absl::Status pieces_status = decode(wire::Slices(cut), &pieces);
  KVTIER_CHECK(whole_status == pieces_status);
  if (!whole_status.ok()) {
    KVTIER_CHECK(whole_status.code() == absl::StatusCode::kInvalidArgument);
    return;
  }
  KVTIER_CHECK(Show(whole) == Show(pieces));
}

}  // namespace

void FuzzWire(std::span<const uint8_t> input) {
  if (input.size() < 2) return;
  const uint32_t seed = input[0] | uint32_t{input[1]} << 8;
  // A copy of its own, so that a sanitizer sees any step beyond the end.
  const std::vector<char> copy(input.begin() + 2, input.end());
  const std::string_view bytes(copy.data(), copy.size());
  const std::vector<std::string_view> cut = Cut(bytes, seed);
  Check<wire::LookupRequest>(bytes, cut, [](wire::Slices slices, auto* out) {
    return wire::DecodeLookupRequest(slices, kLimits, out);
  });
  Check<wire::FetchRequest>(bytes, cut, [](wire::Slices slices, auto* out) {
    return wire::DecodeFetchRequest(slices, kLimits, out);
  });
  Check<wire::StoreRequest>(bytes, cut, [](wire::Slices slices, auto* out) {
    return wire::DecodeStoreRequest(slices, kLimits, out);
  });
  Check<wire::PieceList>(bytes, cut, [](wire::Slices slices, auto* out) {
    return wire::DecodeFetchResponse(slices, kLimits, out);
  });
  Check<wire::FetchSharedRequest>(bytes, cut, [](wire::Slices slices, auto* out) {
    return wire::DecodeFetchSharedRequest(slices, kLimits, out);
  });
  Check<wire::StoreSharedRequest>(bytes, cut, [](wire::Slices slices, auto* out) {
    return wire::DecodeStoreSharedRequest(slices, kLimits, out);
  });
  Check<wire::LookupResponse>(bytes, cut, [](wire::Slices slices, auto* out) {
    return wire::DecodeLookupResponse(slices, out);
  });
}

}  // namespace kvtier
