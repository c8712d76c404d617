#include "cli/replay_slices.h"

#include <algorithm>
#include <utility>

namespace kvtier::cli {
namespace {

void AddTo(ReplaySlice* sum, const ReplaySlice& one) {
  sum->requests += one.requests;
  sum->blocks += one.blocks;
  for (size_t i = 0; i < one.hit_blocks_by_tier.size(); ++i) {
    sum->hit_blocks_by_tier[i] += one.hit_blocks_by_tier[i];
  }
  sum->fetched_bytes += one.fetched_bytes;
  sum->stored_bytes += one.stored_bytes;
  sum->end_seconds = std::max(sum->end_seconds, one.end_seconds);
  sum->ssd_written = std::max(sum->ssd_written, one.ssd_written);  // known is more than unknown
}

ReplaySlice Between(const ReplaySlice& before, ReplaySlice after) {
  after.requests -= before.requests;
  after.blocks -= before.blocks;
  for (size_t i = 0; i < before.hit_blocks_by_tier.size(); ++i) {
    after.hit_blocks_by_tier[i] -= before.hit_blocks_by_tier[i];
  }
  after.fetched_bytes -= before.fetched_bytes;
  after.stored_bytes -= before.stored_bytes;
  return after;
}

}  // namespace

void ReplaySlices::Add(uint64_t number, const ReplaySlice& before, const ReplaySlice& after) {
  if (!Count(number, Between(before, after)) || !ssd_written_) return;
  const std::optional<uint64_t> written = ssd_written_();
  MutexLock lock(mutex_);
  ReplaySlice& slice = slices_[(number - 1) / requests_per_slice_];
  slice.ssd_written = std::max(slice.ssd_written, written);
}

bool ReplaySlices::Count(uint64_t number, const ReplaySlice& one) {
  MutexLock lock(mutex_);
  while ((number - 1) / requests_per_slice_ >= kMost) Halve();
  const uint64_t slice = (number - 1) / requests_per_slice_;
  if (slices_.size() <= slice) slices_.resize(slice + 1);
  AddTo(&slices_[slice], one);
  return number % requests_per_slice_ == 0;
}

std::vector<ReplaySlice> ReplaySlices::Take() {
  MutexLock lock(mutex_);
  return std::move(slices_);
}

void ReplaySlices::Halve() {
  requests_per_slice_ *= 2;
  for (size_t i = 0; i < slices_.size(); ++i) {
    if (i % 2 == 1) AddTo(&slices_[i / 2], slices_[i]);
    if (i % 2 == 0) slices_[i / 2] = slices_[i];
  }
  slices_.resize((slices_.size() + 1) / 2);
}

}  // namespace kvtier::cli
