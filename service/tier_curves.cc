#include "service/tier_curves.h"

#include <algorithm>
#include <cmath>

namespace kvtier {
namespace {

constexpr int kSmallest = -4;  // half octaves: a quarter
constexpr int kLargest = 8;    // 16 times

// Bytes of blocks per byte of capacity. On SSD headers, tokens and dead records take room too; what
// they take now tells what they will.
double PayloadShare(TierKind kind, const TierStats& tier) {
  if (kind != TierKind::kSsd || tier.usage.used_bytes == 0) return 1;
  return std::min(
      1., static_cast<double>(tier.payload_bytes) / static_cast<double>(tier.usage.used_bytes));
}

}  // namespace

std::vector<TierCurve> TierCurves(const HitRatioCurve& curve, const ManagerStats& stats) {
  std::vector<TierCurve> out;
  for (const TierKind kind : kAllTiers) {
    const TierStats& tier = stats.tiers[static_cast<size_t>(kind)];
    if (!tier.on) continue;
    const uint64_t above =
        kind == TierKind::kSsd
            ? stats.tiers[static_cast<size_t>(TierKind::kRam)].usage.capacity_bytes
            : 0;
    TierCurve& points = out.emplace_back();
    points.tier = kind;
    points.capacity_bytes = tier.usage.capacity_bytes;
    for (int i = kSmallest; i <= kLargest; ++i) {
      const double scale = std::exp2(i / 2.);
      const double bytes = scale * static_cast<double>(tier.usage.capacity_bytes);
      const auto payload = static_cast<uint64_t>(bytes * PayloadShare(kind, tier));
      points.points.push_back(
          {i, scale, static_cast<uint64_t>(bytes), curve.HitRatio(above + payload)});
    }
  }
  return out;
}

}  // namespace kvtier
