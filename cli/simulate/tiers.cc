#include "cli/simulate/tiers.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_join.h"
#include "cli/simulate/log_tiers.h"
#include "common/check.h"

namespace kvtier::cli {
namespace {

constexpr std::string_view kNames[] = {"exclusive", "inclusive", "lazy", "log"};
static_assert(std::size(kNames) == std::size(kTierModes));

struct ArrayLinks {
  std::vector<OrderLinks>* links;
  OrderLinks& operator()(EntryId id) const { return (*links)[id]; }
};

// The three references. One request:
//   1. The longest prefix that is in either tier is hit.
//   2. Its blocks, as many as RAM has room for, come into RAM, deepest first, so that heads end up
//      newest. A block that was on SSD is the most recent there too, or (exclusive) leaves it.
//   3. What is deeper than that is written to SSD.
//   4. What RAM has too many of leaves it, least recent first, and is written to SSD if it is not
//      there; if it is, it becomes the most recent there. The SSD drops its least recent.
// Inclusive: before all this every block of the request is written to SSD, or becomes the most
// recent there.
class BlockTiers final : public SimulatedTiers {
 public:
  BlockTiers(TierMode mode, const TierSizes& sizes)
      : mode_(mode), sizes_(sizes), ram_(ArrayLinks{&ram_links_}), ssd_(ArrayLinks{&ssd_links_}) {}

  void Grow(EntryId end) override {
    ram_links_.resize(end);
    ssd_links_.resize(end);
  }

  uint32_t Request(std::span<const EntryId> path) override {
    const uint32_t hits = CountHits(path);
    const auto in_ram = path.first(std::min<uint64_t>(path.size(), sizes_.ram));
    const auto deeper = path.subspan(in_ram.size());
    if (mode_ == TierMode::kInclusive) {
      for (size_t i = path.size(); i-- > 0;) UseOnSsd(path[i]);
    }
    for (size_t i = in_ram.size(); i-- > 0;) UseInRam(in_ram[i]);
    for (size_t i = deeper.size(); i-- > 0;) {
      if (!ssd_.listed(deeper[i])) UseOnSsd(deeper[i]);
    }
    while (ram_.size() > sizes_.ram) DropFromRam();
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

  void UseInRam(EntryId block) {
    const bool was_there = ram_.listed(block);
    ram_.Unlist(block);
    ram_.PushNewest(block);
    if (was_there || !ssd_.listed(block)) return;
    ssd_.Unlist(block);
    if (mode_ != TierMode::kExclusive) ssd_.PushNewest(block);
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
    ssd_.Unlist(block);
    ssd_.PushNewest(block);
  }

  const TierMode mode_;
  const TierSizes sizes_;
  std::vector<OrderLinks> ram_links_;
  std::vector<OrderLinks> ssd_links_;
  EvictionOrder<ArrayLinks> ram_;
  EvictionOrder<ArrayLinks> ssd_;
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
