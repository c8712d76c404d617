#include "cli/simulate/block_numbers.h"

#include "common/prompt.h"

namespace kvtier::cli {
namespace {

constexpr SpaceId kSpace = 1;
constexpr uint32_t kModel = 0;
constexpr uint16_t kParts = 1;

}  // namespace

void BlockNumbers::Append(const TraceRequest& request, std::vector<EntryId>* blocks) {
  BlockKey parent;
  EntryId previous = kNoEntry;
  uint32_t depth = 0;
  for (const uint64_t& id : request.hash_ids) {
    const std::string_view identity(reinterpret_cast<const char*>(&id), sizeof(id));
    EntryId block = index_.FindChild(previous, parent, identity, kSpace);
    if (block == kNoEntry) {
      const BlockIdentity born{ChildKey(parent, identity), parent, identity};
      block = index_.Insert(born, kSpace, kModel, depth, kParts, previous);
    }
    blocks->push_back(block);
    parent = index_.entry(block).key;
    previous = block;
    ++depth;
  }
}

}  // namespace kvtier::cli
