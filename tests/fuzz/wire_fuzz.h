// What must hold for the wire decoders on any bytes at all.
#pragma once

#include <cstdint>
#include <span>

namespace kvtier {

// Reads `input` as each message of common/wire.h, whole and cut into slices (where to cut is taken
// from the first two bytes): same verdict, same contents, every view inside the input, nothing over
// the limits. Aborts when something does not hold.
void FuzzWire(std::span<const uint8_t> input);

}  // namespace kvtier
