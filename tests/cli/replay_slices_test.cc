#include "cli/replay_slices.h"

#include <gtest/gtest.h>

#include <numeric>

namespace kvtier::cli {
namespace {

// Request `number` has as many blocks as its number and ends so many seconds after the start.
void AddRequests(uint64_t count, ReplaySlices* slices) {
  ReplaySlice before;
  for (uint64_t number = 1; number <= count; ++number) {
    ReplaySlice after = before;
    ++after.requests;
    after.blocks += number;
    after.hit_blocks_by_tier[2] += 1;
    after.fetched_bytes += 10;
    after.stored_bytes += 20;
    after.end_seconds = static_cast<double>(number);
    slices->Add(number, before, after);
    before = after;
  }
}

TEST(ReplaySlices, OneForEachRequestAtFirst) {
  ReplaySlices slices(nullptr);
  AddRequests(3, &slices);
  const std::vector<ReplaySlice> taken = slices.Take();
  ASSERT_EQ(taken.size(), 3u);
  EXPECT_EQ(taken[2].requests, 1u);
  EXPECT_EQ(taken[2].blocks, 3u);
  EXPECT_EQ(taken[2].end_seconds, 3);
  EXPECT_FALSE(taken[2].ssd_written);  // nobody was asked
}

TEST(ReplaySlices, StayFewAndLoseNothing) {
  for (const uint64_t count : {1, 127, 128, 129, 1000, 12031}) {
    uint64_t asked = 0;
    ReplaySlices slices([&]() -> std::optional<uint64_t> { return ++asked; });
    AddRequests(count, &slices);
    const std::vector<ReplaySlice> taken = slices.Take();
    EXPECT_LE(taken.size(), ReplaySlices::kMost);
    EXPECT_GE(taken.size(), std::min(count, ReplaySlices::kMost / 2));
    uint64_t requests = 0;
    for (const ReplaySlice& slice : taken) {
      const uint64_t first = requests + 1;
      requests += slice.requests;
      EXPECT_EQ(slice.requests, requests < count ? taken[0].requests : slice.requests);
      EXPECT_EQ(slice.blocks, (first + requests) * slice.requests / 2);  // first to requests
      EXPECT_EQ(slice.hit_blocks_by_tier[2], slice.requests);
      EXPECT_EQ(slice.fetched_bytes, 10 * slice.requests);
      EXPECT_EQ(slice.stored_bytes, 20 * slice.requests);
      EXPECT_EQ(slice.end_seconds, static_cast<double>(requests));
      const bool whole = requests % taken[0].requests == 0;
      EXPECT_EQ(slice.ssd_written.has_value(), whole);
    }
    EXPECT_EQ(requests, count);
    EXPECT_LE(asked, 128 + 64 * 7);  // not at each request
  }
}

TEST(ReplaySlices, TakeRequestsInAnyOrder) {
  ReplaySlices slices(nullptr);
  const auto add = [&](uint64_t number) {
    slices.Add(number, {},
               {.requests = 1,
                .blocks = number,
                .hit_blocks_by_tier = {},
                .fetched_bytes = 0,
                .stored_bytes = 0,
                .end_seconds = 1,
                .ssd_written = {}});
  };
  add(ReplaySlices::kMost + 1);  // halves before there is anything to halve
  add(2);
  add(1);
  const std::vector<ReplaySlice> taken = slices.Take();
  EXPECT_EQ(taken[0].blocks, 3u);
  EXPECT_EQ(taken[ReplaySlices::kMost / 2].blocks, ReplaySlices::kMost + 1);
}

}  // namespace
}  // namespace kvtier::cli
