// The calls of kvtier.v1.KvCache.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace kvtier {

enum class Rpc : uint8_t {
  kRegisterModel,
  kLookup,
  kFetch,
  kStore,
  kRelease,
  kRenew,
  kFetchShared,
  kStoreShared
};
inline constexpr int kRpcs = 8;
inline constexpr std::array<std::string_view, kRpcs> kRpcNames = {
    "RegisterModel", "Lookup", "Fetch", "Store", "Release", "Renew", "FetchShared", "StoreShared"};

}  // namespace kvtier
