// The name of a namespace on media that outlive the process.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace kvtier {

// SHA-256 of a root's canonical encoding. The encoding holds the salt, which must not be written
// anywhere; and unlike the root's XXH3 digest, nobody can make two namespaces share this one.
using RootFingerprint = std::array<uint8_t, 32>;

RootFingerprint FingerprintOf(std::string_view canonical_root);

}  // namespace kvtier
