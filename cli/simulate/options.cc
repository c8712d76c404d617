#include "cli/simulate/options.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "absl/strings/str_join.h"
#include "common/bytes.h"

namespace kvtier::cli {
namespace {

// Block numbers have 32 bits.
constexpr double kMostBlocks = 4e9;
// Of one file on SSD; what it is carried over through is real memory, 64 KiB for each.
constexpr uint64_t kMostSegmentBlocks = 1 << 16;

absl::Status BadCapacity(const std::string& text) {
  return absl::InvalidArgumentError(absl::StrCat(
      "capacity is '", text, "', must be blocks (1828), a share of the trace's distinct blocks ",
      "above 0% (5%), or bytes (64MiB), 1 to ", static_cast<uint64_t>(kMostBlocks), " blocks"));
}

absl::Status CheckTiers(const SimulateOptions& options) {
  if (options.tiers.empty() != options.ssd_capacities.empty()) {
    return absl::InvalidArgumentError(
        options.tiers.empty() ? "ssd-capacity is given, tiers is not: they need each other"
                              : "tiers is given, ssd-capacity is not: they need each other");
  }
  if (!options.tiers.empty() && options.policies != std::vector<std::string>{"lru"}) {
    return absl::InvalidArgumentError(absl::StrCat("policy is '",
                                                   absl::StrJoin(options.policies, ","),
                                                   "', with tiers only lru is simulated"));
  }
  const auto log = std::find(options.tiers.begin(), options.tiers.end(), TierMode::kLog);
  if (options.segment_blocks > 0 && log == options.tiers.end()) {
    return absl::InvalidArgumentError(absl::StrCat("segment-blocks is ", options.segment_blocks,
                                                   ", which is for tiers log only"));
  }
  if (options.segment_blocks > kMostSegmentBlocks) {
    return absl::InvalidArgumentError(absl::StrCat("segment-blocks is ", options.segment_blocks,
                                                   ", the limit is ", kMostSegmentBlocks));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<CapacitySpec> ParseCapacity(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  const std::string_view rest(end);
  const bool number = end != text.c_str() && std::isfinite(value) && value > 0;
  if (number && rest == "%") return CapacitySpec{CapacitySpec::Unit::kPercent, value};
  const bool digits = text.find_first_not_of("0123456789") == std::string::npos;
  if (number && digits) {
    if (value > kMostBlocks) return BadCapacity(text);
    return CapacitySpec{CapacitySpec::Unit::kBlocks, value};
  }
  const absl::StatusOr<uint64_t> bytes = ParseBytes(text);
  if (digits || !bytes.ok() || *bytes == 0) return BadCapacity(text);
  return CapacitySpec{CapacitySpec::Unit::kBytes, static_cast<double>(*bytes)};
}

std::span<const PolicyName> PolicyNames() {
  static constexpr PolicyName kNames[] = {
      {"lru", "kvtierd's default: least recently used, leaves first"},
      {"protected", "kvtierd's other one: 30 % kept for blocks that were used again"},
      {"slru", "the same with 50 %"},
      {"lru-root", "least recently used, heads before their tails"},
      {"arc", "ARC"},
      {"s3fifo", "S3-FIFO"},
      {"min", "the optimum: knows the future"},
  };
  return kNames;
}

absl::Status CheckOptions(const SimulateOptions& options) {
  if (options.reader.block_tokens == 0) {
    return absl::InvalidArgumentError("block-tokens is 0, the least is 1");
  }
  KVTIER_RETURN_IF_ERROR(CheckTiers(options));
  if (options.capacities.empty() && !options.curve) {
    return absl::InvalidArgumentError("capacity is not given, nor is curve: one of them must be");
  }
  std::vector<std::string> known;
  for (const PolicyName& policy : PolicyNames()) known.emplace_back(policy.name);
  for (const std::string& policy : options.policies) {
    if (std::find(known.begin(), known.end(), policy) != known.end()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("policy is '", policy, "', must be of: ", absl::StrJoin(known, ", ")));
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> CapacityBlocks(const CapacitySpec& capacity, uint64_t distinct,
                                        uint64_t block_bytes) {
  double blocks = capacity.value;
  if (capacity.unit == CapacitySpec::Unit::kPercent) {
    blocks = std::round(capacity.value / 100 * static_cast<double>(distinct));
  } else if (capacity.unit == CapacitySpec::Unit::kBytes) {
    if (block_bytes == 0) {
      return absl::InvalidArgumentError(
          "capacity is in bytes, block-bytes is not given: it says how many blocks that is");
    }
    blocks = std::floor(capacity.value / static_cast<double>(block_bytes));
  }
  if (blocks >= 1 && blocks <= kMostBlocks) return static_cast<uint64_t>(blocks);
  return absl::InvalidArgumentError(absl::StrCat("capacity is ", blocks,
                                                 " blocks, the least is 1, the most ",
                                                 static_cast<uint64_t>(kMostBlocks)));
}

}  // namespace kvtier::cli
