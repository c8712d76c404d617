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

}  // namespace kvtier
