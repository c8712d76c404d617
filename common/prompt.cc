#include "common/prompt.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "common/check.h"
#define XXH_STATIC_LINKING_ONLY  // for a state on the stack

// A prompt's keys are a chain: each waits for the one before it, and a call of the library for each
// block takes twice as long.
#define XXH_INLINE_ALL
#include "xxhash.h"

namespace kvtier {
namespace {

static_assert(std::endian::native == std::endian::little,
              "tokens are hashed as they lie in memory");

constexpr std::string_view kRootTag = "kvtier-root-1";  // the number is the key format's version

void AppendU32(std::string* out, uint32_t value) {
  for (int shift = 0; shift < 32; shift += 8) out->push_back(static_cast<char>(value >> shift));
}

void AppendField(std::string* out, std::string_view field) {
  AppendU32(out, static_cast<uint32_t>(field.size()));
  out->append(field);
}

absl::Status CheckLength(const char* field, size_t size, size_t limit) {
  if (size <= limit) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " has ", size, " bytes, the limit is ", limit));
}

BlockKey HashInParts(const BlockKey& parent, std::string_view identity) {
  XXH3_state_t state;
  XXH3_128bits_reset(&state);
  const std::string bytes = parent.ToBytes();
  XXH3_128bits_update(&state, bytes.data(), bytes.size());
  XXH3_128bits_update(&state, identity.data(), identity.size());
  const XXH128_hash_t hash = XXH3_128bits_digest(&state);
  return BlockKey{hash.high64, hash.low64};
}

// One-shot hashing of a small buffer is several times faster than the streaming state.
constexpr size_t kInlineIdentity = 4096;

// One hash over parent and identity. A constant size lets the compiler lay the whole hash out
// straight, which halves its time.
template <size_t kIdentityBytes>
BlockKey KeyOf(const BlockKey& parent, const char* identity, size_t bytes = kIdentityBytes) {
  char buffer[Digest128::kBytes + kIdentityBytes];
  const uint64_t high = __builtin_bswap64(parent.high);
  const uint64_t low = __builtin_bswap64(parent.low);
  std::memcpy(buffer, &high, 8);
  std::memcpy(buffer + 8, &low, 8);
  std::memcpy(buffer + 16, identity, bytes);
  const XXH128_hash_t hash = XXH3_128bits(buffer, 16 + bytes);
  return BlockKey{hash.high64, hash.low64};
}

}  // namespace

BlockKey ChildKey(const BlockKey& parent, std::string_view identity) {
  if (identity.size() == 64) return KeyOf<64>(parent, identity.data());  // 16 tokens
  if (identity.size() > kInlineIdentity) return HashInParts(parent, identity);
  return KeyOf<kInlineIdentity>(parent, identity.data(), identity.size());
}

absl::Status ValidateNamespace(const Namespace& name) {
  KVTIER_RETURN_IF_ERROR(CheckLength("namespace.tenant", name.tenant.size(), 128));
  KVTIER_RETURN_IF_ERROR(CheckLength("namespace.salt", name.salt.size(), 128));
  return CheckLength("namespace.adapter", name.adapter.size(), 256);
}

absl::Status ValidateMedia(std::span<const MediaSpan> media, uint64_t tokens) {
  uint64_t end = 0;
  for (size_t i = 0; i < media.size(); ++i) {
    const MediaSpan& span = media[i];
    const std::string field = absl::StrCat("media[", i, "]");
    if (span.digest.size() < 16 || span.digest.size() > 64) {
      return absl::InvalidArgumentError(absl::StrCat(field, ".digest has ", span.digest.size(),
                                                     " bytes, the limits are 16 and 64"));
    }
    if (span.token_count == 0) {
      return absl::InvalidArgumentError(absl::StrCat(field, ".token_count is 0, the least is 1"));
    }
    if (span.first_token < end) {
      return absl::InvalidArgumentError(absl::StrCat(field, ".first_token is ", span.first_token,
                                                     ", before the end of the span before it, ",
                                                     end));
    }
    end = uint64_t{span.first_token} + span.token_count;
    if (end > tokens) {
      return absl::InvalidArgumentError(
          absl::StrCat(field, " ends at token ", end, ", the prompt has ", tokens));
    }
  }
  return absl::OkStatus();
}

std::string CanonicalRoot(const ModelId& model, const Namespace& name, PromptKind kind,
                          uint32_t identity_bytes) {
  std::string out(kRootTag);
  AppendField(&out, model.ToBytes());
  out.push_back(static_cast<char>(kind));
  AppendU32(&out, identity_bytes);
  AppendField(&out, name.tenant);
  AppendField(&out, name.salt);
  AppendField(&out, name.adapter);
  return out;
}

PromptCursor::PromptCursor(BlockKey root, std::vector<std::string_view> slices,
                           uint32_t block_bytes, std::span<const MediaSpan> media)
    : block_bytes_(block_bytes),
      slices_(std::move(slices)),
      media_(media),
      root_(root),
      previous_(root) {
  KVTIER_CHECK(block_bytes > 0);
  uint64_t total = 0;
  for (std::string_view slice : slices_) total += slice.size();
  blocks_ = total / block_bytes_;
}

uint64_t PromptCursor::Next(uint64_t count, std::vector<BlockIdentity>* out) {
  const uint64_t taken = std::min(count, blocks_ - position_);
  for (uint64_t i = 0; i < taken; ++i) {
    const BlockKey parent = previous_;
    const std::string_view bytes = NextIdentity();
    previous_ = ChildKey(parent, bytes);
    out->push_back(BlockIdentity{previous_, parent, bytes});
  }
  return taken;
}

std::string_view PromptCursor::JoinIdentity() {
  std::string_view bytes = TakeBlockBytes();
  if (!media_.empty()) bytes = WithMedia(bytes);
  ++position_;
  return bytes;
}

std::string_view PromptCursor::TakeBlockBytes() {
  while (rest_.empty()) rest_ = slices_[next_slice_++];
  if (rest_.size() >= block_bytes_) {
    const std::string_view bytes = rest_.substr(0, block_bytes_);
    rest_.remove_prefix(block_bytes_);
    return bytes;
  }
  std::string& joined = scratch_.emplace_back();
  joined.reserve(block_bytes_);
  while (joined.size() < block_bytes_) {
    if (rest_.empty()) {
      rest_ = slices_[next_slice_++];
      continue;
    }
    const std::string_view piece = rest_.substr(0, block_bytes_ - joined.size());
    joined.append(piece);
    rest_.remove_prefix(piece.size());
  }
  return joined;
}

// Appends each span that touches the block, with the span's start relative to the block's, so that
// one image at another offset is another identity.
std::string_view PromptCursor::WithMedia(std::string_view bytes) {
  const uint64_t block_tokens = block_bytes_ / 4;
  const uint64_t begin = position_ * block_tokens;
  const uint64_t end = begin + block_tokens;
  const auto end_of = [](const MediaSpan& span) {
    return uint64_t{span.first_token} + span.token_count;
  };
  while (next_media_ < media_.size() && end_of(media_[next_media_]) <= begin) ++next_media_;
  std::string joined;
  for (const MediaSpan& span : media_.subspan(next_media_)) {
    if (span.first_token >= end) break;  // they are in order
    if (joined.empty()) joined.assign(bytes);
    const int64_t offset = static_cast<int64_t>(span.first_token) - static_cast<int64_t>(begin);
    AppendU32(&joined, static_cast<uint32_t>(offset));  // two's complement when it began earlier
    AppendU32(&joined, span.token_count);
    AppendField(&joined, span.digest);
  }
  if (joined.empty()) return bytes;
  return scratch_.emplace_back(std::move(joined));
}

std::vector<BlockKey> BlockKeys(BlockKey root, std::span<const uint32_t> tokens,
                                uint32_t block_tokens, std::span<const MediaSpan> media) {
  const std::string_view bytes(reinterpret_cast<const char*>(tokens.data()), tokens.size() * 4);
  PromptCursor cursor(root, {bytes}, block_tokens * 4, media);
  std::vector<BlockIdentity> identities;
  cursor.Next(cursor.blocks(), &identities);
  std::vector<BlockKey> keys;
  keys.reserve(identities.size());
  for (const BlockIdentity& identity : identities) keys.push_back(identity.key);
  return keys;
}

}  // namespace kvtier
