// Seeds of random tests: printed, and taken back from KVTIER_SEED.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>

namespace kvtier {

inline uint64_t TestSeed() {
  const char* given = std::getenv("KVTIER_SEED");
  const uint64_t seed =
      given != nullptr ? std::strtoull(given, nullptr, 0) : uint64_t{std::random_device{}()};
  std::printf("KVTIER_SEED=%llu\n", static_cast<unsigned long long>(seed));
  std::fflush(stdout);
  return seed;
}

}  // namespace kvtier
