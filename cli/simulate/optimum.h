// MIN: the most hits any cache of a size could have had, knowing the future.
//
// Belady's rule for prefixes: of what is there and what the request brings, those stay that are
// used again soonest; of those used by the same request, the ones nearest the root. A block that is
// used no more, or later than all that is kept, is not stored at all. Whoever uses a block uses its
// ancestors, so an ancestor's next use is never later, what is kept is closed under ancestors, and
// the rule is exact for blocks of one size.
#pragma once

#include <cstdint>

#include "cli/simulate/references.h"

namespace kvtier::cli {

// Hits of a cache of `capacity` blocks; block numbers are below `end`.
uint64_t OptimumHits(const References& references, Convention convention, uint64_t capacity,
                     EntryId end);

// What OptimumHits takes, with the references themselves, at most.
uint64_t OptimumMemoryBytes(uint64_t blocks, uint64_t requests, uint64_t distinct,
                            uint64_t capacity);

}  // namespace kvtier::cli
