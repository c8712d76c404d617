// From a prompt to the keys and identities of its blocks. Client and server share this file; the
// golden vectors in tests/common/testdata/keys.golden pin it.
//
//   root   = XXH3-128(canonical encoding of format version, model, prompt kind, namespace)
//   key(i) = XXH3-128(key(i-1) in its 16 canonical bytes || identity(i)),   key(-1) = root
//   identity(i) = the block's tokens as u32 little endian, then its media; or the engine's hash
//
// XXH3 is not collision resistant, so a hit also compares identity(i) and the parent key, and a
// root's canonical encoding.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/block_key.h"
#include "common/status.h"

namespace kvtier {

struct Namespace {
  std::string tenant;   // up to 128 bytes
  std::string salt;     // secret, up to 128 bytes
  std::string adapter;  // up to 256 bytes
};
absl::Status ValidateNamespace(const Namespace& name);

// A span of tokens that stand for other content. `digest`: 16 to 64 bytes.
struct MediaSpan {
  uint32_t first_token = 0;
  uint32_t token_count = 0;
  std::string digest;
};
// Spans must be non-empty, ascending, apart, and end within `tokens`.
absl::Status ValidateMedia(std::span<const MediaSpan> media, uint64_t tokens);

enum class PromptKind : uint8_t { kTokens = 1, kEngineHashes = 2 };

// Length-prefixed and typed, so that no two different inputs have one encoding. Contains the salt:
// keep it in memory only.
std::string CanonicalRoot(const ModelId& model, const Namespace& name, PromptKind kind,
                          uint32_t identity_bytes);

// key(i) of a block from key(i-1) and identity(i).
BlockKey ChildKey(const BlockKey& parent, std::string_view identity);

struct BlockIdentity {
  BlockKey key;
  BlockKey parent;         // the key before it; the root for block 0
  std::string_view bytes;  // owned by the cursor
};

// Walks a prompt's full blocks from the first, hashing only as far as it is asked to, over memory
// that need not be contiguous (a gRPC message). Not thread-safe. `slices` and `media` must outlive
// it.
class PromptCursor {
 public:
  // `slices`, end to end, are tokens (u32 LE) or engine hashes; each block takes `block_bytes` of
  // them (block_tokens * 4, or the length of one hash). A remainder at the end is no full block.
  // Media spans are only for tokens and must be valid.
  PromptCursor(BlockKey root, std::vector<std::string_view> slices, uint32_t block_bytes,
               std::span<const MediaSpan> media = {});
  PromptCursor(PromptCursor&&) = default;
  PromptCursor& operator=(PromptCursor&&) = default;

  uint64_t blocks() const { return blocks_; }      // full blocks in the prompt
  uint64_t position() const { return position_; }  // blocks handed out so far
  BlockKey root() const { return root_; }
  // The next block's identity, without the cost of its key. REQUIRES: position() < blocks().
  std::string_view NextIdentity() {
    if (rest_.size() < block_bytes_ || !media_.empty()) return JoinIdentity();
    const std::string_view bytes = rest_.substr(0, block_bytes_);
    rest_.remove_prefix(block_bytes_);
    ++position_;
    return bytes;
  }
  // The identities that lie end to end from position() on, not handed out yet; none where blocks
  // carry media.
  std::string_view Ahead() const { return media_.empty() ? rest_ : std::string_view(); }
  // Hands out `blocks` of those. REQUIRES: so many are Ahead().
  void Skip(uint64_t blocks) {
    rest_.remove_prefix(blocks * block_bytes_);
    position_ += blocks;
  }
  // With keys, for who asks for all blocks from the first in this way: appends the next identities,
  // at most `count`; returns how many. They stay valid while the cursor lives.
  uint64_t Next(uint64_t count, std::vector<BlockIdentity>* out);

 private:
  std::string_view JoinIdentity();  // the general case
  std::string_view TakeBlockBytes();
  std::string_view WithMedia(std::string_view bytes);

  uint32_t block_bytes_;
  uint64_t blocks_;
  std::vector<std::string_view> slices_;
  std::span<const MediaSpan> media_;
  size_t next_media_ = 0;  // the first that ends after the blocks handed out
  BlockKey root_;
  BlockKey previous_;  // of Next
  uint64_t position_ = 0;
  size_t next_slice_ = 0;
  std::string_view rest_;            // of the slice before it
  std::deque<std::string> scratch_;  // blocks that straddle slices or carry media
};

// Convenience for tests, the client and tools: all block keys of a token prompt.
std::vector<BlockKey> BlockKeys(BlockKey root, std::span<const uint32_t> tokens,
                                uint32_t block_tokens, std::span<const MediaSpan> media = {});

}  // namespace kvtier
