#include "service/tier_curves.h"

#include <cmath>

namespace kvtier {
namespace {

constexpr int kSmallest = -4;  // half octaves: a quarter
constexpr int kLargest = 8;    // 16 times

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
      const auto bytes =
          static_cast<uint64_t>(scale * static_cast<double>(tier.usage.capacity_bytes));
      points.points.push_back({i, scale, bytes, curve.HitRatio(above + bytes)});
    }
  }
  return out;
}

}  // namespace kvtier
