#include "cli/bench_curve.h"

#include <chrono>
#include <vector>

#include "cli/bench_report.h"
#include "storage/hit_curve.h"

namespace kvtier::cli {
namespace {

constexpr uint64_t kBlockBytes = 4096;
constexpr uint32_t kPrompts = 16;      // in turns, so that their places change
constexpr uint32_t kOthers = 1 << 16;  // blocks that are remembered besides
constexpr int kWarmUp = 20'000;
constexpr int kCalls = 400;

std::vector<BlockKey> Keys(uint32_t prompt, uint32_t blocks) {
  std::vector<BlockKey> keys;
  for (uint32_t i = 0; i < blocks; ++i) {
    const uint32_t pair[] = {prompt, i};
    keys.push_back(BlockKey::Of({reinterpret_cast<const char*>(pair), sizeof(pair)}));
  }
  return keys;
}

// As the manager's walk, which pauses only where the sampler wants a key.
void Follow(const std::vector<BlockKey>& keys, HitCurve* curve) {
  PathSampler sampler = curve->Sampler();
  while (sampler.next() < keys.size()) sampler.TakeNext(keys[sampler.next()]);
  curve->AddLookup({0, kBlockBytes, sampler.sampled()}, keys.size(), keys.size());
}

}  // namespace

double CurveMicroseconds(uint32_t blocks) {
  HitCurve curve;
  std::vector<std::vector<BlockKey>> prompts;
  for (uint32_t i = 0; i < kPrompts; ++i) prompts.push_back(Keys(i, blocks));
  for (uint32_t i = 0; i < kOthers; ++i) Follow(Keys(kPrompts + i, 1), &curve);
  for (int i = 0; i < kWarmUp; ++i) Follow(prompts[i % kPrompts], &curve);  // the rate settles
  std::vector<double> times;
  for (int i = 0; i < kCalls; ++i) {
    const auto start = std::chrono::steady_clock::now();
    Follow(prompts[i % kPrompts], &curve);
    times.push_back(
        std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
            .count());
  }
  return Median(std::move(times));
}

}  // namespace kvtier::cli
