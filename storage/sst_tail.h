// The end of a RocksDB table file, verified before RocksDB looks into it.
//
// RocksDB 7.8 believes the footer, which has no checksum, and parses the block of properties before
// it verifies that one. With Debian's build, which checks assertions, a single wrong bit there ends
// the process. Which bytes are where is said in docs/FORMATS.md.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "common/status.h"

namespace kvtier {

// Exactly these bytes of a file, all of which are within it.
using ReadBytes = std::function<absl::StatusOr<std::string>(uint64_t offset, uint64_t bytes)>;

// Verifies all that RocksDB looks into when it opens a table file of this length: index,
// properties, metaindex and footer, as the SSD tier has them written. They are in memory meanwhile,
// from one read, or two when they are longer than 64 KiB.
//
// DATA_LOSS: the file is damaged, or ends elsewhere than it should. UNIMPLEMENTED: by its footer it
// is a table of another format, whose end is not known here; it may be whole. Else an error of
// `read`.
absl::Status CheckSstTail(uint64_t file_bytes, const ReadBytes& read);

}  // namespace kvtier
