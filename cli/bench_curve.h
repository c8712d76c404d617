// What kvtierd's hit-ratio curve adds to a Lookup.
#pragma once

#include <cstdint>

namespace kvtier::cli {

// Microseconds that following a Lookup which finds `blocks` blocks takes, in this process: picking
// the blocks that are followed, and their places and distances among 64 Ki others. The median over
// some hundreds of calls, at the sampling rate that such lookups alone lead to.
double CurveMicroseconds(uint32_t blocks);

}  // namespace kvtier::cli
