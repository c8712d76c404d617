// The estimated hit ratio of each tier at other sizes, as the operators' API and the metrics show
// it.
#pragma once

#include <cstdint>
#include <vector>

#include "storage/hit_curve.h"
#include "storage/tier_manager.h"

namespace kvtier {

struct CurvePoint {
  int half_octaves = 0;  // the scale is 2^(half_octaves / 2)
  double scale = 1;      // times the tier's capacity now
  uint64_t capacity_bytes = 0;
  double hit_ratio = 0;
};
struct TierCurve {
  TierKind tier = TierKind::kRam;
  uint64_t capacity_bytes = 0;
  std::vector<CurvePoint> points;  // 0.25x to 16x, ascending
};

// Of the tiers that are on. What is assumed is said at GetHitCurve in admin.proto.
std::vector<TierCurve> TierCurves(const HitRatioCurve& curve, const ManagerStats& stats);

}  // namespace kvtier
