// What every Tier promises, as one suite. A program that tests some tiers links tier_contract.cc
// and instantiates TierContractTest with a TierFactory for each.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "storage/tier.h"
#include "tests/support/test_parts.h"

namespace kvtier {

struct TierUnderTest {
  std::shared_ptr<void> backing;  // what must outlive the tier
  std::unique_ptr<Tier> tier;
  // A LogTier over the same medium, after the one before has gone. Empty for a Tier that is no log.
  std::function<absl::StatusOr<std::unique_ptr<LogTier>>()> restart;
};

struct TierFactory {
  std::string name;
  TierKind kind;
  // UNAVAILABLE when there is no such medium on this machine: then the suite is skipped.
  std::function<absl::StatusOr<TierUnderTest>(uint64_t capacity_bytes)> make;
};

inline void PrintTo(const TierFactory& factory, std::ostream* out) { *out << factory.name; }
inline std::string TierFactoryName(const testing::TestParamInfo<TierFactory>& info) {
  return info.param.name;
}

inline constexpr uint64_t kContractCapacity = uint64_t{8} << 20;

// A part as the suite writes it: what it was, and where it is.
struct WrittenPart {
  uint64_t tag = 0;  // says its identity and its bytes
  uint64_t bytes = 0;
  uint64_t checksum = 0;
  Location location = 0;
};

TimePoint Later();

class TierContractTest : public testing::TestWithParam<TierFactory> {
 protected:
  void SetUp() override;
  void TearDown() override;

  // Writes one batch of new parts of these sizes; statuses per item. Those that went well are in
  // `stored_`, in order.
  std::vector<absl::Status> Write(const std::vector<uint64_t>& sizes);
  // One part per batch until the tier is full; how many there were.
  uint64_t FillUp(uint64_t bytes);
  // OK: the part's bytes, each checked.
  absl::Status Read(const WrittenPart& part);
  void Erase(size_t index);  // of stored_
  // What `capacity_bytes` may come to with parts of `bytes`, one in each segment of a log.
  uint64_t MostUsed(uint64_t capacity_bytes, uint64_t bytes) const;

  TierUnderTest under_test_;
  Tier* tier_ = nullptr;
  LogTier* log_ = nullptr;  // the tier, when it is one
  std::vector<WrittenPart> stored_;
  uint64_t next_tag_ = 0;
};

// What a LogTier promises on top. A program that tests one links log_tier_contract.cc too.
class LogTierContractTest : public TierContractTest {
 protected:
  // What a restart finds of a part; the identity is copied.
  struct Found {
    PartIdentity id;
    std::string identity;
    Location location;
    uint64_t bytes;
    uint64_t checksum;
  };
  using FoundSegments = std::vector<std::vector<Found>>;

  // Ends the tier and starts another over what it left.
  FoundSegments Restart();
  // One segment of one part under this model and root; its tag.
  uint64_t WriteUnder(const ModelId& model, const RootFingerprint& root);
};

}  // namespace kvtier
