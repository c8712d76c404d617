// What the SSD tier does to its directory as a whole.
#pragma once

#include <string>

#include "common/status.h"

namespace kvtier {

// Makes the directory, readable by its owner only, unless it is there, and tells whether files in
// it can be read and written past the page cache (O_DIRECT). RESOURCE_EXHAUSTED: its disk is full;
// FAILED_PRECONDITION: it cannot be written for another reason. Both name the path and what to do.
absl::StatusOr<bool> PrepareSsdDirectory(const std::string& directory);

// Moves a damaged directory out of the way, to DIRECTORY.damaged-N, and returns that path. Its
// payload files are removed, so that what is set aside takes no space to speak of; so is what was
// set aside before.
absl::StatusOr<std::string> SetSsdDirectoryAside(const std::string& directory);

// UNAVAILABLE when the filesystem has less than `bytes` left for this user.
absl::Status CheckFreeSpace(const std::string& directory, uint64_t bytes);

}  // namespace kvtier
