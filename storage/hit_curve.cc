#include "storage/hit_curve.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <utility>

#include "common/check.h"

namespace kvtier {
namespace {

// How far sampling may run ahead of what lookups pay for, and how much they may save up.
constexpr int64_t kMostCredit = 4096;
constexpr double kFarthest = 0x1p62;  // bytes
constexpr RecencyStack::Place kNowhere = UINT32_MAX;

}  // namespace

// --- HitRatioCurve

int HitRatioCurve::Bucket(uint64_t distance) {
  distance = std::max<uint64_t>(distance, kPerOctave);
  const int octave = std::bit_width(distance) - 1;
  const auto within = static_cast<int>(distance >> (octave - 4)) - kPerOctave;
  return octave * kPerOctave + within;
}

double HitRatioCurve::BucketStart(int bucket) {
  const double within = 1 + static_cast<double>(bucket % kPerOctave) / kPerOctave;
  return std::ldexp(within, bucket / kPerOctave);
}

void HitRatioCurve::Add(const HitRatioCurve& other) {
  lookups += other.lookups;
  blocks += other.blocks;
  hits += other.hits;
  stored += other.stored;
  sampled_refs += other.sampled_refs;
  for (int i = 0; i <= kBuckets; ++i) {
    found_at_[i] += other.found_at_[i];
    stored_at_[i] += other.stored_at_[i];
  }
}

// Hits are known in full: those that the sample lacks, or has too many of, are most likely of the
// blocks that nearly every request has, found in any cache (SHARDS-adj). Of what stores refer to
// the sample gives the share that is remembered.
double HitRatioCurve::HitRatio(uint64_t bytes) const {
  if (blocks == 0) return 0;
  const int bucket = Bucket(bytes);
  const double start = BucketStart(bucket);
  const double into = (static_cast<double>(bytes) - start) / (BucketStart(bucket + 1) - start);
  const auto within = [&](const Weights& at) {
    return std::accumulate(at.begin(), at.begin() + bucket, 0.) +
           std::clamp(into, 0., 1.) * at[bucket];
  };
  const double found = std::accumulate(found_at_.begin(), found_at_.end(), 0.);
  const double sampled_stores = std::accumulate(stored_at_.begin(), stored_at_.end(), 0.);
  double expected = within(found_at_) + static_cast<double>(hits) - found;
  if (sampled_stores > 0) {
    expected += within(stored_at_) / sampled_stores * static_cast<double>(stored);
  }
  return std::clamp(expected / static_cast<double>(blocks), 0., 1.);
}

// --- PathSampler

void PathSampler::Decide(uint64_t key) {
  const uint64_t bits = key ^ salt_;
  if (left_ == level_) NoteRuns(bits);
  while (left_ > 0) {
    const bool second_half = (bits >> left_ & 1) != 0;
    --left_;
    if (second_half) {
      next_ += uint32_t{1} << left_;
      return;
    }
  }
  const int level = LevelOf(bits);
  if (level >= level_) sampled_.push_back({key, next_, static_cast<uint8_t>(level)});
  next_ = ((next_ >> run_) + 1) << run_;
  run_ = std::min(level_, static_cast<int>(std::bit_width(next_)) - 1);
  left_ = run_;
}

// A run of 2^level blocks starts here, and maybe longer ones.
void PathSampler::NoteRuns(uint64_t bits) {
  const int most = next_ == 0 ? 0 : std::min(std::countr_zero(next_), kMostLevel);
  for (int i = level_ + 1; i <= most; ++i) run_bits_[i] = bits;
}

// Of the block at next_, the one of its run.
int PathSampler::LevelOf(uint64_t bits) const {
  int level = run_;
  while (level < kMostLevel) {
    const int i = level + 1;
    const bool first_run = next_ >> i == 0;
    const bool goes_on =
        first_run ? (bits >> i & 1) == 0 : (run_bits_[i] >> i & 1) == (next_ >> level & 1);
    if (!goes_on) break;
    ++level;
  }
  return level;
}

// --- HitCurve

HitCurve::HitCurve(HitCurveOptions options)
    : most_samples_(options.most_samples), salt_(options.salt), stack_(options.most_samples * 2) {}

double HitCurve::RateLocked() const {
  return std::ldexp(1, -level_.load(std::memory_order_relaxed));
}

HitRatioCurve* HitCurve::CountsLocked(uint32_t model) {
  std::unique_ptr<History>& history = histories_[std::min<size_t>(model, kMostModels)];
  if (history == nullptr) history = std::make_unique<History>();
  return &history->epochs[epoch_];
}

void HitCurve::BeginLookupLocked() {
  if (epoch_lookups_++ < kEpochLookups) return;
  epoch_lookups_ = 1;
  epoch_ = (epoch_ + 1) % kEpochs;
  for (const auto& history : histories_) {
    if (history != nullptr) history->before.Add(std::exchange(history->epochs[epoch_], {}));
  }
}

void HitCurve::AddLookup(const Request& request, uint64_t blocks, uint64_t hits) {
  MutexLock lock(mutex_);
  BeginLookupLocked();
  HitRatioCurve* counts = CountsLocked(request.model);
  ++counts->lookups;
  counts->blocks += blocks;
  counts->hits += hits;
  ReferLocked(request, {}, /*found=*/true, counts);
  PayLocked(blocks, request.sampled.size());
}

void HitCurve::AddStore(const Request& request, uint64_t stored,
                        std::span<const SampledBlock> before) {
  MutexLock lock(mutex_);
  HitRatioCurve* counts = CountsLocked(request.model);
  counts->stored += stored;
  ReferLocked(request, before, /*found=*/false, counts);
}

// Distances are those before the request, so all are taken before anything moves.
void HitCurve::ReferLocked(const Request& request, std::span<const SampledBlock> before, bool found,
                           HitRatioCurve* counts) {
  if (request.sampled.empty() || request.block_bytes == 0) return;
  // Of what is longer than that the rest is left out; the rate will soon be lower.
  const size_t most = most_samples_ / 4;
  before = before.first(std::min(before.size(), most));
  const auto sampled = request.sampled.first(std::min(request.sampled.size(), most));
  MakeRoomLocked(before.size() + sampled.size());
  path_.clear();
  WalkLocked(before, request.block_bytes, [](int) {});
  auto& at = found ? counts->found_at_ : counts->stored_at_;
  // Found, though not remembered: it was here before the start. It is as old as can be.
  const int unknown = found ? HitRatioCurve::Bucket(capacity_.load(std::memory_order_relaxed))
                            : HitRatioCurve::kNever;
  const double weight = 1 / RateLocked();
  WalkLocked(sampled, request.block_bytes, [&](int bucket) {
    at[bucket < 0 ? unknown : bucket] += weight;
    ++counts->sampled_refs;
  });
  UsePathLocked(request.block_bytes);
}

template <typename Count>
void HitCurve::WalkLocked(std::span<const SampledBlock> blocks, uint64_t block_bytes, Count count) {
  const int level = level_.load(std::memory_order_relaxed);
  const double scale = 1 / RateLocked();
  RecencyStack::Place last = stack_.end();
  uint64_t newer = 0;  // bytes from `last` on
  for (const SampledBlock& block : blocks) {
    if (block.level < level) continue;  // the rate has fallen since
    const auto [it, added] = ids_.try_emplace(block.key, static_cast<uint32_t>(samples_.size()));
    path_.push_back(it->second);
    if (added) {
      samples_.push_back({block.key, kNowhere, block.level});
      count(-1);
      continue;
    }
    const RecencyStack::Place place = samples_[it->second].place;
    if (place == kNowhere) continue;  // twice in one prompt: two keys that share their half
    newer = stack_.BytesFrom(place, last, newer);
    last = place;
    const double others = static_cast<double>(newer - std::min(newer, block_bytes)) * scale;
    count(HitRatioCurve::Bucket(static_cast<uint64_t>(std::min(others, kFarthest)) + block_bytes));
  }
}

// Makes the path the most recent, its head last.
void HitCurve::UsePathLocked(uint64_t block_bytes) {
  bool there = true;
  for (size_t i = 0; i < path_.size() && there; ++i) {
    there = samples_[path_[i]].place == stack_.end() - i - 1;
  }
  if (there) return;
  for (const uint32_t id : path_) {
    const RecencyStack::Place place = std::exchange(samples_[id].place, kNowhere);
    if (place != kNowhere) stack_.Remove(place);
  }
  for (size_t i = path_.size(); i-- > 0;) {
    Sample& sample = samples_[path_[i]];
    if (sample.place == kNowhere) sample.place = stack_.Push(path_[i], block_bytes);
  }
}

void HitCurve::MakeRoomLocked(size_t blocks) {
  if (samples_.size() + blocks > most_samples_) {
    RebuildLocked();
    // A quarter is to be free, not to be here again soon.
    while (samples_.size() + std::max<size_t>(blocks, most_samples_ / 4) > most_samples_ &&
           level_ < PathSampler::kMostLevel) {
      LowerRateLocked();
    }
  }
  if (stack_.end() + blocks > most_samples_ * 2) {
    Sample* const samples = samples_.data();
    stack_.Compact(
        [samples](uint32_t id, RecencyStack::Place place) { samples[id].place = place; });
  }
}

void HitCurve::LowerRateLocked() {
  level_ = level_ + 1;
  RebuildLocked();
}

// Leaves out what is no longer followed, or too old to be in any cache that is asked about.
void HitCurve::RebuildLocked() {
  const uint64_t capacity = capacity_.load(std::memory_order_relaxed);
  const double most = static_cast<double>(capacity) * kHorizon * RateLocked();
  std::vector<std::pair<Sample, uint64_t>> kept;
  uint64_t distance = stack_.total_bytes();
  const Sample* const samples = samples_.data();
  stack_.ForEach([&](uint32_t id, uint64_t bytes) {
    const bool near = capacity == 0 || static_cast<double>(distance) <= most;
    distance -= bytes;
    if (near && samples[id].level >= level_) kept.emplace_back(samples[id], bytes);
  });
  ids_.clear();
  samples_.clear();
  stack_.Clear();
  for (auto& [sample, bytes] : kept) {
    const auto id = static_cast<uint32_t>(samples_.size());
    ids_[sample.key] = id;
    sample.place = stack_.Push(id, bytes);
    samples_.push_back(sample);
  }
}

void HitCurve::PayLocked(uint64_t blocks, size_t sampled) {
  credit_ +=
      kFreePerLookup + static_cast<int64_t>(blocks) / kFreePerBlock - static_cast<int64_t>(sampled);
  credit_ = std::min(credit_, kMostCredit);
  if (credit_ >= -kMostCredit || level_ == PathSampler::kMostLevel) return;
  credit_ = 0;
  LowerRateLocked();
}

HitRatioCurve HitCurve::Curve(std::optional<uint32_t> model, bool since_start) const {
  MutexLock lock(mutex_);
  HitRatioCurve curve;
  for (size_t i = 0; i < histories_.size(); ++i) {
    if (histories_[i] == nullptr) continue;
    if (model.has_value() && (*model != i || i == kMostModels)) continue;
    for (const HitRatioCurve& epoch : histories_[i]->epochs) curve.Add(epoch);
    if (since_start) curve.Add(histories_[i]->before);
  }
  return curve;
}

HitCurveStats HitCurve::stats() const {
  MutexLock lock(mutex_);
  HitCurveStats stats;
  stats.rate = RateLocked();
  stats.ghost_blocks = samples_.size();
  stats.memory_bytes = stack_.memory_bytes() + samples_.capacity() * sizeof(Sample) +
                       ids_.capacity() * (sizeof(std::pair<uint64_t, uint32_t>) + 1) +
                       path_.capacity() * sizeof(uint32_t);
  for (const auto& history : histories_)
    stats.memory_bytes += history == nullptr ? 0 : sizeof(History);
  return stats;
}

}  // namespace kvtier
