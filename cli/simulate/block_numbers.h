// The blocks of a trace, numbered once for all simulated caches: found in a BlockIndex as a daemon
// finds them, so that what runs for each reference and capacity is only the policy.
#pragma once

#include <cstdint>
#include <vector>

#include "cli/trace.h"
#include "storage/block_index.h"

namespace kvtier::cli {

// Not thread-safe.
class BlockNumbers {
 public:
  // Appends the number of each block of the request, root first. An id is a block under the ids
  // before it: below another parent it would be another block.
  void Append(const TraceRequest& request, std::vector<EntryId>* blocks);
  // Every number is below: how many distinct blocks there were.
  EntryId end() const { return index_.end(); }
  uint64_t memory_bytes() const { return index_.memory_bytes(); }

 private:
  BlockIndex index_;
};

}  // namespace kvtier::cli
