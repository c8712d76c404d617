// What a power cut can do to RocksDB's MANIFEST, undone.
//
// The last record may have been on its way to the medium: then its length is there and its content
// is not, which RocksDB takes for damage to the whole database. What it said was never promised.
#pragma once

#include <string>

#include "common/status.h"

namespace kvtier {

// Cuts the last record off the MANIFEST that CURRENT names. NOT_FOUND when there is nothing to cut;
// UNAVAILABLE when the files cannot be read or cut. Whether that was the record that is wrong is
// for RocksDB to say: if not, opening fails as before.
absl::Status CutLastManifestRecord(const std::string& directory);

}  // namespace kvtier
