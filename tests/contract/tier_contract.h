// What every Tier promises, as one suite. A program that tests some tiers links tier_contract.cc
// and instantiates TierContractTest with a TierFactory for each.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "storage/tier.h"

namespace kvtier {

struct TierUnderTest {
  std::shared_ptr<void> backing;  // what must outlive the tier
  std::unique_ptr<Tier> tier;
};

struct TierFactory {
  std::string name;
  TierKind kind;
  // UNAVAILABLE when there is no such medium on this machine: then the suite is skipped.
  std::function<absl::StatusOr<TierUnderTest>(uint64_t capacity_bytes)> make;
};

inline std::string TierFactoryName(const testing::TestParamInfo<TierFactory>& info) {
  return info.param.name;
}

// A part as the suite writes it: what it was, and where it is.
struct StoredPart {
  uint64_t tag = 0;  // says its key and its bytes
  uint64_t bytes = 0;
  uint64_t checksum = 0;
  Location location = 0;
};

class TierContractTest : public testing::TestWithParam<TierFactory> {
 protected:
  void SetUp() override;
  void TearDown() override;

  // Writes one batch of new parts of these sizes; statuses per item. Those that went well are in
  // `stored_`, in order.
  std::vector<absl::Status> Write(const std::vector<uint64_t>& sizes);
  // Until the tier is full; how many there were.
  uint64_t FillUp(uint64_t bytes);
  // OK: the part's bytes, each checked.
  absl::Status Read(const StoredPart& part);
  void Erase(size_t index);  // of stored_

  TierUnderTest under_test_;
  Tier* tier_ = nullptr;
  std::vector<StoredPart> stored_;
  uint64_t next_tag_ = 0;
};

}  // namespace kvtier
