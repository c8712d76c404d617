// Parts for tests of tiers: identity and bytes follow from a tag.
#pragma once

#include <string>
#include <vector>

#include "common/status.h"
#include "storage/tier.h"
#include "tests/support/pool_owner.h"

namespace kvtier {

inline std::string IdentityOf(uint64_t tag) { return absl::StrCat("tokens of ", tag); }

// Every field differs between tags that are near each other, save for the model and the root.
// `identity` must outlive it.
inline PartIdentity PartOf(uint64_t tag, const std::string& identity) {
  PartIdentity id;
  id.model = Digest128::Of("model");
  id.root = FingerprintOf("root");
  id.key = Digest128::Of(absl::StrCat("key ", tag));
  id.parent = Digest128::Of(absl::StrCat("parent ", tag));
  id.identity = identity;
  id.depth = static_cast<uint32_t>(tag);
  id.part = static_cast<uint16_t>(tag % 3);
  id.part_count = 3;
  id.carried = static_cast<uint8_t>(tag % 5);
  return id;
}

inline std::vector<std::byte> ContentOf(uint64_t tag, uint64_t bytes) {
  std::vector<std::byte> content(bytes);
  FillContent(tag, content);
  return content;
}

inline bool IsMiss(const absl::Status& status) {
  return absl::IsNotFound(status) || absl::IsDataLoss(status);
}

}  // namespace kvtier
