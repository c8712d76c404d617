#include "storage/recency_stack.h"

#include <cstddef>
#include <numeric>

#include "common/check.h"

namespace kvtier {
namespace {

// Of the elements from `first` on, up to where the next level's element ends.
uint64_t SumToBoundary(const std::vector<uint64_t>& sums, size_t first, int shift) {
  const size_t end = std::min(((first >> shift) + 1) << shift, sums.size());
  return std::accumulate(sums.begin() + static_cast<std::ptrdiff_t>(std::min(first, end)),
                         sums.begin() + static_cast<std::ptrdiff_t>(end), uint64_t{0});
}

}  // namespace

RecencyStack::RecencyStack(uint32_t places)
    : ids_(places),
      bytes_(places),
      by_64_((places >> kShift) + 1),
      by_4096_((places >> (2 * kShift)) + 1) {}

// Wraps around for what is taken off: sums come out right.
void RecencyStack::Add(Place place, uint64_t bytes) {
  bytes_[place] += bytes;
  by_64_[place >> kShift] += bytes;
  by_4096_[place >> (2 * kShift)] += bytes;
  total_ += bytes;
}

RecencyStack::Place RecencyStack::Push(uint32_t id, uint64_t bytes) {
  KVTIER_CHECK(!full() && bytes > 0);
  ids_[end_] = id;
  Add(end_, bytes);
  return end_++;
}

void RecencyStack::Remove(Place place) {
  KVTIER_CHECK(bytes_[place] > 0);
  Add(place, ~bytes_[place] + 1);
}

uint64_t RecencyStack::BytesFrom(Place place) const {
  const size_t chunk = place >> kShift;
  const size_t super = chunk >> kShift;
  uint64_t sum = SumToBoundary(bytes_, place, kShift);
  if ((chunk + 1) >> kShift == super) sum += SumToBoundary(by_64_, chunk + 1, kShift);
  return std::accumulate(by_4096_.begin() + static_cast<std::ptrdiff_t>(super) + 1, by_4096_.end(),
                         sum);
}

uint64_t RecencyStack::BytesFrom(Place place, Place from, uint64_t bytes_from) const {
  if (place > from || from - place > (Place{1} << kShift)) return BytesFrom(place);
  for (; place < from; ++place) bytes_from += bytes_[place];
  return bytes_from;
}

void RecencyStack::ClearSums() {
  std::fill(by_64_.begin(), by_64_.end(), 0);
  std::fill(by_4096_.begin(), by_4096_.end(), 0);
  total_ = 0;
}

void RecencyStack::Clear() {
  std::fill(bytes_.begin(), bytes_.end(), 0);
  ClearSums();
  end_ = 0;
}

uint64_t RecencyStack::memory_bytes() const {
  return ids_.capacity() * sizeof(uint32_t) +
         (bytes_.capacity() + by_64_.capacity() + by_4096_.capacity()) * sizeof(uint64_t);
}

}  // namespace kvtier
