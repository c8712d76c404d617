// Hashing payload at the speed of memory, and copying it in the same pass.
#pragma once

#include <cstddef>
#include <span>

#include "common/running_checksum.h"

namespace kvtier {

// CopyPast, and `checksum` goes on over the bytes. Costs hardly more than the copy: each piece is
// hashed while it is in the core's first cache, and the next is on its way there meanwhile.
// FinishCopies must follow, as with CopyPast.
void HashAndCopyPast(std::byte* to, std::span<const std::byte> from, RunningChecksum* checksum);

// The same, but what is copied stays in the cache, for somebody who reads it soon.
void HashAndCopy(std::byte* to, std::span<const std::byte> from, RunningChecksum* checksum);

// Hashes what lies in memory, not in the cache, where it is afterwards.
void HashFromMemory(std::span<const std::byte> bytes, RunningChecksum* checksum);

// HashAndCopyPast out of memory that others may change at any moment: each byte is read once, so
// what is hashed is what is copied.
void HashAndCopyPastOnce(std::byte* to, std::span<const std::byte> from, RunningChecksum* checksum);

}  // namespace kvtier
