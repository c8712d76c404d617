// Block contents that prove themselves: made from the block's key alone, so that whoever fetches a
// block can tell every byte of it without having kept a copy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/block_key.h"
#include "common/status.h"

namespace kvtier::cli {

// The header, 32 bytes: key (16 bytes, canonical), payload bytes (u64 LE), a fixed tag (8 bytes).
// Then a pseudo-random stream that the key starts. A block under the wrong key differs at once, and
// almost everywhere.
inline constexpr size_t kPayloadHeaderBytes = 32;

// INVALID_ARGUMENT naming block-bytes when a payload of so many has no room for the header.
absl::Status CheckPayloadBytes(uint64_t block_bytes);

// `out` is one whole payload; at least kPayloadHeaderBytes.
void FillPayload(const BlockKey& key, std::span<std::byte> out);

// Whether `piece` is what FillPayload puts at `offset` of a payload of `payload_bytes`. True for an
// empty piece within the payload, false beyond its end.
bool PayloadMatches(const BlockKey& key, uint64_t payload_bytes, uint64_t offset,
                    std::span<const std::byte> piece);

}  // namespace kvtier::cli
