#include "cli/simulate/tiers.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_join.h"
#include "cli/simulate/log_tiers.h"
#include "common/check.h"

namespace kvtier::cli {
namespace {

constexpr const char* kNames[] = {"exclusive", "inclusive", "lazy", "log"};
static_assert(std::size(kNames) == std::size(kTierModes));

struct ArrayLinks {
  std::vector<OrderLinks>* links;
  OrderLinks& operator()(EntryId id) const { return (*links)[id]; }
};

// One tier's blocks by their last use.
class Recency {
 public:
  Recency() : order_(ArrayLinks{&links_}, ProtectedPercent(Eviction::kLru)) {}
  void Grow(EntryId end) { links_.resize(end); }
  bool listed(EntryId block) const { return order_.listed(block); }
  uint64_t size() const { return order_.size(); }
  EntryId oldest() const { return order_.oldest(); }
  void Unlist(EntryId block) { order_.Unlist(block); }
  void MakeNewest(EntryId block) {
    order_.Unlist(block);
    order_.Place(block, kNoEntry);
  }

 private:
  std::vector<OrderLinks> links_;
  EvictionOrder<ArrayLinks> order_;
};

// The three references. One request:
//   1. The longest prefix that is in either tier is hit.
//   2. Its blocks, as many as RAM has room for, become RAM's most recent, deepest first, so that
//      heads are newest. Those that RAM has already come first: none of them makes room for
//      another. Then the others come in; one that is on SSD becomes the most recent there too, or
//      (exclusive) leaves it. For each that is too many the least recent of RAM leaves, and is
//      written to SSD if it is not there; if it is, it becomes the most recent there. The SSD drops
//      its least recent.
//   3. What is deeper than that is written to SSD.
// Inclusive: before all this every block of the request is written to SSD, or becomes the most
// recent there; what leaves RAM then changes nothing on SSD if it is there.
class BlockTiers final : public SimulatedTiers {
 public:
  BlockTiers(TierMode mode, const TierSizes& sizes) : mode_(mode), sizes_(sizes) {}

  void Grow(EntryId end) override {
    ram_.Grow(end);
    ssd_.Grow(end);
  }

  uint32_t Request(std::span<const EntryId> path) override {
    const uint32_t hits = CountHits(path);
    const auto in_ram = path.first(std::min<uint64_t>(path.size(), sizes_.ram));
    const auto deeper = path.subspan(in_ram.size());
    if (mode_ == TierMode::kInclusive) {
      for (size_t i = path.size(); i-- > 0;) UseOnSsd(path[i]);
    }
    for (size_t i = in_ram.size(); i-- > 0;) {
      if (ram_.listed(in_ram[i])) ram_.MakeNewest(in_ram[i]);
    }
    for (size_t i = in_ram.size(); i-- > 0;) {
      if (!ram_.listed(in_ram[i])) EnterRam(in_ram[i]);
    }
    for (size_t i = in_ram.size(); i-- > 0;) ram_.MakeNewest(in_ram[i]);
    for (size_t i = deeper.size(); i-- > 0;) {
      if (!ssd_.listed(deeper[i])) UseOnSsd(deeper[i]);
    }
    return hits;
  }

  TierCounts counts() const override { return counts_; }

 private:
  uint32_t CountHits(std::span<const EntryId> path) {
    uint32_t hits = 0;
    for (const EntryId block : path) {
      const bool in_ram = ram_.listed(block);
      if (!in_ram && !ssd_.listed(block)) break;
      ++(in_ram ? counts_.ram_hits : counts_.ssd_hits);
      ++hits;
    }
    return hits;
  }

  void EnterRam(EntryId block) {
    if (ssd_.listed(block)) {
      if (mode_ == TierMode::kExclusive) {
        ssd_.Unlist(block);
      } else {
        ssd_.MakeNewest(block);
      }
    }
    ram_.MakeNewest(block);
    if (ram_.size() > sizes_.ram) DropFromRam();
  }

  void DropFromRam() {
    const EntryId block = ram_.oldest();
    ram_.Unlist(block);
    if (mode_ == TierMode::kInclusive && ssd_.listed(block)) return;
    UseOnSsd(block);
  }

  void UseOnSsd(EntryId block) {
    if (!ssd_.listed(block)) {
      ++counts_.ssd_writes;
      if (ssd_.size() == sizes_.ssd) ssd_.Unlist(ssd_.oldest());
    }
    ssd_.MakeNewest(block);
  }

  const TierMode mode_;
  const TierSizes sizes_;
  Recency ram_, ssd_;
  TierCounts counts_;
};

}  // namespace

std::string_view TierModeName(TierMode mode) { return kNames[static_cast<int>(mode)]; }

absl::StatusOr<TierMode> ParseTierMode(const std::string& text) {
  for (const TierMode mode : kTierModes) {
    if (text == TierModeName(mode)) return mode;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("tiers is '", text, "', must be of: ", absl::StrJoin(kNames, ", ")));
}

std::unique_ptr<SimulatedTiers> MakeTiers(TierMode mode, const TierSizes& sizes) {
  KVTIER_CHECK(sizes.ram > 0 && sizes.ssd > 0);
  if (mode == TierMode::kLog) return std::make_unique<LogTiers>(sizes);
  return std::make_unique<BlockTiers>(mode, sizes);
}

}  // namespace kvtier::cli
