// What a power cut can do to RocksDB's MANIFEST, undone.
//
// The last change may have been on its way to the medium: then some of it is there and some is not,
// which RocksDB takes for damage to the whole database. What it said was never promised.
#pragma once

#include <string>
#include <string_view>

#include "common/status.h"

namespace kvtier {

// The bytes of a manifest before a last change that is torn. All of them where none is torn, or
// where what is damaged is not the last: to leave out changes that were promised would bring back
// what they removed.
size_t BytesBeforeTornChange(std::string_view manifest);

// Cuts a torn last change off the MANIFEST that CURRENT names. NOT_FOUND when there is none;
// UNAVAILABLE when the files cannot be read or cut.
absl::Status CutTornChange(const std::string& directory);

}  // namespace kvtier
