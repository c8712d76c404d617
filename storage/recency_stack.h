// Things in the order of their last use, with the bytes of each: how many bytes were used since?
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace kvtier {

// The most recent is at the end of a row of places. A place that was left stays empty until
// Compact. Sums of bytes are kept for 64 places and for 64 times 64, so that a change costs three
// additions and a question some tens, of neighbours in memory. Not thread-safe.
class RecencyStack {
 public:
  using Place = uint32_t;

  explicit RecencyStack(uint32_t places);

  // REQUIRES: !full(), bytes > 0.
  Place Push(uint32_t id, uint64_t bytes);
  // REQUIRES: the place is taken.
  void Remove(Place place);
  bool full() const { return end_ == ids_.size(); }
  Place end() const { return end_; }  // every taken place is below
  uint64_t total_bytes() const { return total_; }
  // Bytes in all places from this one on.
  uint64_t BytesFrom(Place place) const;
  // The same; faster when it is known already for `from`, which lies not far after the place.
  uint64_t BytesFrom(Place place, Place from, uint64_t bytes_from) const;

  // Calls `visit(id, bytes)` for each, oldest first.
  template <typename Visit>
  void ForEach(Visit visit) const {
    for (Place place = 0; place < end_; ++place) {
      if (bytes_[place] > 0) visit(ids_[place], bytes_[place]);
    }
  }
  // Closes up the empty places. `moved(id, place)` tells for each where it is now.
  template <typename Moved>
  void Compact(Moved moved) {
    const Place end = std::exchange(end_, 0);
    ClearSums();
    for (Place place = 0; place < end; ++place) {
      const uint64_t bytes = std::exchange(bytes_[place], 0);
      if (bytes == 0) continue;
      const uint32_t id = ids_[place];
      moved(id, Push(id, bytes));
    }
  }
  void Clear();
  uint64_t memory_bytes() const;

 private:
  static constexpr int kShift = 6;

  void Add(Place place, uint64_t bytes);
  void ClearSums();

  std::vector<uint32_t> ids_;
  std::vector<uint64_t> bytes_;  // 0: empty
  std::vector<uint64_t> by_64_;  // sums
  std::vector<uint64_t> by_4096_;
  uint64_t total_ = 0;
  Place end_ = 0;
};

}  // namespace kvtier
