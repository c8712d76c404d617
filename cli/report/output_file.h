// A file that is there as a whole or not at all.
#pragma once

#include <string>
#include <string_view>

#include "common/status.h"

namespace kvtier::cli {

// Whether WriteWholeFile would find a place for `path`; leaves nothing behind. For use before long
// work. Errors name the path and the reason: INVALID_ARGUMENT (no regular file, such as a folder or
// a device), FAILED_PRECONDITION (the system's words).
absl::Status CheckWritable(const std::string& path);

// Replaces `path`, or the file that it links to, by writing beside it and renaming: readers see the
// old content or the new. Errors as above; then the old file is as it was.
absl::Status WriteWholeFile(const std::string& path, std::string_view content);

}  // namespace kvtier::cli
