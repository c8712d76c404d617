// What share of the blocks looked up would be found if a tier had another size: estimated while
// the daemon runs, from a sample of the blocks that it sees.
//
// Method. Leaf-first LRU is a stack algorithm: what a cache of C bytes holds are the C most
// recently used bytes, whatever C is. So each reference to a block has one distance: the bytes of
// all blocks used since that block was, itself included. It is found in every cache at least that
// large, and a histogram of distances is the hit ratio at every size. Of the blocks a sample is
// followed, all references to a block or none, and distances among them are scaled by the sampling
// rate (SHARDS, Waldspurger et al., FAST 2015). Blocks that left all tiers are remembered too, by 8
// bytes of their keys: the ghost.
//
// Sample. Of each aligned run of 2^level blocks of a prompt one is followed, chosen by the keys
// (PathSampler). Every block has the same chance, 2^-level, and of a long prompt the share that is
// followed is nearly exact. So bytes between two uses are known better than with blocks drawn each
// for itself: on WEKA's agent sessions, at one block in 32, the largest error over some salts is
// .018 for .037.
//
// References. A Lookup refers to the blocks that it found. Those that it missed have no key yet, as
// nothing is hashed past the first miss: they are referred to by the Store that follows. The
// distances of a request are those before it; then its blocks are the most recent, heads newest.
//
// Ratios are over the blocks looked up (but before a Store). A block that was missed and is never
// stored is a miss at every size. A Store without a Lookup before counts as if there had been one.
// A reset is not seen: what is stored again after it counts as found in larger caches.
//
// Window. Counts are kept since the start, and for the last 7 to 8 epochs of 4,096 lookups: 32,768
// lookups after a change of workload nothing of the old one is in it. Advice is for the traffic of
// now, and what an epoch of last week would have wanted says nothing about it: so use the window.
//
// Cost. The sampling rate starts at 1. It is halved, never raised, when the ghost is full of what
// the largest size asked about would hold, and when more was sampled than a hundredth of a Lookup's
// time pays for: kFreePerLookup blocks for each, and one in kFreePerBlock of its blocks.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/block_key.h"
#include "common/mutex.h"
#include "storage/recency_stack.h"

namespace kvtier {

// The hit ratio at any size, and what it rests on.
class HitRatioCurve {
 public:
  uint64_t lookups = 0;
  uint64_t blocks = 0;        // looked up
  uint64_t hits = 0;          // of which found: all, not a sample
  uint64_t stored = 0;        // blocks that a Store referred to: all
  uint64_t sampled_refs = 0;  // references followed; below 1,000 the estimate is a guess

  // The estimated share of the blocks looked up that a leaf-first LRU cache of so many bytes would
  // have; 0 when nothing was looked up. Never falls as `bytes` grows.
  double HitRatio(uint64_t bytes) const;

 private:
  friend class HitCurve;
  static constexpr int kPerOctave = 16;  // buckets for each power of two
  static constexpr int kBuckets = 64 * kPerOctave;
  static constexpr int kNever = kBuckets;  // a block that is not remembered

  static int Bucket(uint64_t distance);
  static double BucketStart(int bucket);
  void Add(const HitRatioCurve& other);

  // Sampled references by distance, each with the weight 1 / rate.
  using Weights = std::array<double, kBuckets + 1>;
  Weights found_at_{};   // by lookups
  Weights stored_at_{};  // by stores
};

struct HitCurveStats {
  double rate = 1;            // the share of keys that is sampled
  uint64_t ghost_blocks = 0;  // sampled blocks that are remembered
  uint64_t memory_bytes = 0;
};

struct HitCurveOptions {
  uint32_t most_samples = uint32_t{1} << 17;
  uint64_t salt = 0;  // other blocks are followed with another. For tests
};

// A block that is followed.
struct SampledBlock {
  uint64_t key = 0;    // half of the block's
  uint32_t depth = 0;  // index from the prompt's first block
  uint8_t level = 0;   // followed at rates down to 2^-level
};

// Picks the blocks of one prompt that are followed at a rate of 2^-level. In a run of 2^level
// blocks, one bit of the first block's key says in which half the one is; in that half, one bit of
// its first block's key says in which quarter, and so on. The first 2^level blocks are in shorter
// runs, of 1, 1, 2, 4 and so on: prompts that share their first block must not all have the same
// one followed. Of such a run the block's own key says whether it is followed. So all that matters
// is in the keys of the block and its ancestors, and the sample at a lower rate is part of that at
// a higher one.
class PathSampler {
 public:
  static constexpr int kMostLevel = 24;

  PathSampler(int level, uint64_t salt) : level_(level), salt_(salt) {}

  // Depth of the next block whose key matters: those before it may be passed over.
  uint32_t next() const { return next_; }
  // The block at depth next().
  void TakeNext(const BlockKey& key) { Decide(key.high); }
  // For who goes through all of the prompt's blocks, `depth` from 0.
  void Take(uint32_t depth, const BlockKey& key) {
    if (depth == next_) Decide(key.high);
  }
  // So far, head first.
  const std::vector<SampledBlock>& sampled() const { return sampled_; }

 private:
  void Decide(uint64_t key);
  void NoteRuns(uint64_t bits);
  int LevelOf(uint64_t bits) const;

  const int level_;
  const uint64_t salt_;
  uint32_t next_ = 0;                                // depth of the next block that matters
  int run_ = 0;                                      // it is in a run of 2^run_ blocks
  int left_ = 0;                                     // halvings of it to come
  std::array<uint64_t, kMostLevel + 1> run_bits_{};  // of the longer runs that it is in
  std::vector<SampledBlock> sampled_;
};

// Thread-safe.
class HitCurve {
 public:
  static constexpr uint64_t kEpochLookups = 4096;
  static constexpr int kEpochs = 8;
  static constexpr uint64_t kWindowLookups = kEpochLookups * kEpochs;
  // So many models, the first, have a curve of their own; the total is of all.
  static constexpr size_t kMostModels = 64;
  // Sizes up to so many times the present capacity are asked about.
  static constexpr uint64_t kHorizon = 16;
  // A sampled block costs 50 to 150 ns; a Lookup takes 50 us and up, and about 30 ns for each of
  // its blocks.
  static constexpr int64_t kFreePerLookup = 8;
  static constexpr int64_t kFreePerBlock = 1024;

  explicit HitCurve(HitCurveOptions options = {});

  // For the walk down one prompt.
  PathSampler Sampler() const { return {level_.load(std::memory_order_relaxed), salt_}; }
  // Of all tiers together, now.
  void SetCapacity(uint64_t bytes) { capacity_.store(bytes, std::memory_order_relaxed); }

  struct Request {
    uint32_t model = 0;  // the manager's number for it
    uint64_t block_bytes = 0;
    std::span<const SampledBlock> sampled;  // of the blocks referred to, head first
  };
  // Of the `blocks` looked up the first `hits` were found; the sampled ones are of these.
  void AddLookup(const Request& request, uint64_t blocks, uint64_t hits) KVTIER_EXCLUDES(mutex_);
  // A Store found `stored` blocks absent; the sampled ones are of these. `before` are the sampled
  // ones of the same prompt that come before them, head first.
  void AddStore(const Request& request, uint64_t stored, std::span<const SampledBlock> before)
      KVTIER_EXCLUDES(mutex_);

  // Of one model or of all together; of the window or since the start.
  HitRatioCurve Curve(std::optional<uint32_t> model, bool since_start) const
      KVTIER_EXCLUDES(mutex_);
  HitCurveStats stats() const KVTIER_EXCLUDES(mutex_);

 private:
  struct Sample {
    uint64_t key = 0;
    RecencyStack::Place place = 0;
    uint8_t level = 0;
  };
  // What one model's requests came to.
  struct History {
    HitRatioCurve before;  // what is out of the window
    std::array<HitRatioCurve, kEpochs> epochs;
  };

  double RateLocked() const KVTIER_REQUIRES(mutex_);
  HitRatioCurve* CountsLocked(uint32_t model) KVTIER_REQUIRES(mutex_);
  void BeginLookupLocked() KVTIER_REQUIRES(mutex_);
  void ReferLocked(const Request& request, std::span<const SampledBlock> before, bool found,
                   HitRatioCurve* counts) KVTIER_REQUIRES(mutex_);
  // Adds the sampled ones to the path, and calls `count` for each with the bucket of its distance.
  template <typename Count>
  void WalkLocked(std::span<const SampledBlock> keys, uint64_t block_bytes, Count count)
      KVTIER_REQUIRES(mutex_);
  void UsePathLocked(uint64_t block_bytes) KVTIER_REQUIRES(mutex_);
  void MakeRoomLocked(size_t blocks) KVTIER_REQUIRES(mutex_);
  void LowerRateLocked() KVTIER_REQUIRES(mutex_);
  void RebuildLocked() KVTIER_REQUIRES(mutex_);
  void PayLocked(uint64_t blocks, size_t sampled) KVTIER_REQUIRES(mutex_);

  const uint32_t most_samples_;
  const uint64_t salt_;
  std::atomic<int> level_{0};  // the rate is 2^-level. Written under mutex_
  std::atomic<uint64_t> capacity_{0};

  // Apart from what walks read.
  alignas(64) mutable Mutex mutex_;
  absl::flat_hash_map<uint64_t, uint32_t> ids_ KVTIER_GUARDED_BY(mutex_);  // index in samples_
  std::vector<Sample> samples_ KVTIER_GUARDED_BY(mutex_);
  RecencyStack stack_ KVTIER_GUARDED_BY(mutex_);
  // By model; the last is of all that have none of their own.
  std::array<std::unique_ptr<History>, kMostModels + 1> histories_ KVTIER_GUARDED_BY(mutex_);
  int epoch_ KVTIER_GUARDED_BY(mutex_) = 0;
  uint64_t epoch_lookups_ KVTIER_GUARDED_BY(mutex_) = 0;
  int64_t credit_ KVTIER_GUARDED_BY(mutex_) = 0;          // samples that lookups have paid for
  std::vector<uint32_t> path_ KVTIER_GUARDED_BY(mutex_);  // of the request at hand, head first
};

}  // namespace kvtier
