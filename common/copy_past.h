// Copying payload at the speed of memory.
#pragma once

#include <cstddef>
#include <span>

namespace kvtier {

// Copies past the CPU's cache: payload that has arrived is not read again by this core soon, and
// not loading the target's lines first saves a third of the memory traffic. FinishCopies must
// follow, on the same thread, before anybody else is told that the bytes are there.
void CopyPast(std::byte* to, std::span<const std::byte> from);
void FinishCopies();

// The same, and a copy that stays in the cache: `kept` has room for from.size() bytes. Each byte of
// `from` is read once, so the two are equal even if somebody changes it meanwhile.
void CopyPastAndKeep(std::byte* to, std::byte* kept, std::span<const std::byte> from);

}  // namespace kvtier
