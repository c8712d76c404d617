// Sizes as operators write them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/status.h"

namespace kvtier {

// "4GiB", "512 MiB", "1.5GB", "65536": a number and an optional unit (B, KiB, MiB, GiB, TiB, or the
// decimal kB, MB, GB, TB; case of the letters does not matter). INVALID_ARGUMENT naming the text
// when it is neither, negative or beyond 2^63.
absl::StatusOr<uint64_t> ParseBytes(std::string_view text);

// The same; the error begins with the name of the field that has the text.
absl::StatusOr<uint64_t> ParseBytes(const std::string& field, std::string_view text);

// Exact where a binary unit divides it ("4GiB"), else rounded to three digits ("1.46 GiB").
std::string FormatBytes(uint64_t bytes);

}  // namespace kvtier
