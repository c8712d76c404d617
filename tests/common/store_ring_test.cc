#include "common/store_ring.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "common/executor.h"
#include "tests/support/seed.h"

namespace kvtier {
namespace {

// A region whose ring has so many lines.
class Region {
 public:
  explicit Region(uint64_t lines)
      : memory_(StoreRing::kRingOffset + (lines + 1) * StoreRing::kLine) {}
  std::span<std::byte> bytes() {
    void* at = memory_.data();
    size_t space = memory_.size();
    std::align(StoreRing::kLine, memory_.size() - StoreRing::kLine, at, space);
    return {static_cast<std::byte*>(at), memory_.size() - StoreRing::kLine};
  }
  SharedCounter filled() { return SharedCounter(bytes().data()); }
  SharedCounter taken() { return SharedCounter(bytes().data() + StoreRing::kLine); }

 private:
  std::vector<std::byte> memory_;
};

const std::atomic<bool> kGoOn{false};

void Write(const std::string& part, StoreRingWriter* ring) {
  std::span<const std::byte> rest = std::as_bytes(std::span(part));
  while (!rest.empty()) {
    const std::span<std::byte> room = ring->Room(rest.size(), kGoOn);
    ASSERT_GT(room.size(), 0u);
    std::memcpy(room.data(), rest.data(), room.size());
    ring->Fill(room.size());
    rest = rest.subspan(room.size());
  }
}

std::string Read(uint64_t bytes, StoreRingReader* ring) {
  std::string out;
  while (out.size() < bytes) {
    const auto piece = ring->Next(bytes - out.size(), kGoOn);
    EXPECT_TRUE(piece.ok()) << piece.status();
    if (!piece.ok()) break;
    out.append(reinterpret_cast<const char*>(piece->data()), piece->size());
    ring->Take(piece->size());
  }
  return out;
}

// Through rings that are smaller than a part, and larger than a piece.
TEST(StoreRing, GivesWhatWasFilledIn) {
  std::mt19937_64 random(TestSeed());
  for (const uint64_t lines : {1, 2, 7, 1000, 10'000}) {
    Region region(lines);
    std::vector<std::string> parts(40);
    for (std::string& part : parts) {
      part.resize(1 + random() % (lines * StoreRing::kLine * 2));
      for (char& c : part) c = static_cast<char>(random());
    }
    StoreRingWriter writer(region.bytes());
    ThreadPool other(1);
    other.Run([&] {
      for (const std::string& part : parts) Write(part, &writer);
      writer.Flush();
    });
    StoreRingReader reader(region.bytes());
    for (const std::string& part : parts) {
      ASSERT_TRUE(Read(part.size(), &reader) == part) << lines << " lines";
    }
    other.WaitIdle();
  }
}

TEST(StoreRing, PartsBeginOnLines) {
  Region region(4);
  StoreRingWriter writer(region.bytes());
  EXPECT_TRUE(writer.Holds(4 * StoreRing::kLine));
  EXPECT_FALSE(writer.Holds(4 * StoreRing::kLine + 1));
  Write("a", &writer);
  Write(std::string(65, 'b'), &writer);
  writer.Flush();
  EXPECT_EQ(region.filled().Get(), 3u);
  StoreRingReader reader(region.bytes());
  EXPECT_EQ(Read(1, &reader), "a");
  EXPECT_EQ(Read(65, &reader), std::string(65, 'b'));
  EXPECT_EQ(StoreRing::StreamBytes(65), 3 * StoreRing::kLine);
}

// Nothing is published below a piece, so that small parts cost no call of the kernel each.
TEST(StoreRing, TellsByPieces) {
  Region region(3 * StoreRing::kPiece / StoreRing::kLine);
  StoreRingWriter writer(region.bytes());
  Write(std::string(StoreRing::kPiece - 1000, 'x'), &writer);
  EXPECT_EQ(region.filled().Get(), 0u);
  Write(std::string(1000, 'x'), &writer);
  EXPECT_GE(region.filled().Get() * StoreRing::kLine, StoreRing::kPiece);
  StoreRingReader reader(region.bytes());
  Read(StoreRing::kPiece - 1000, &reader);
  EXPECT_EQ(region.taken().Get(), 0u);
  Read(1000, &reader);
  EXPECT_GE(region.taken().Get() * StoreRing::kLine, StoreRing::kPiece);
}

TEST(StoreRing, AWriterThatIsStoppedGetsNoRoom) {
  Region region(2);
  StoreRingWriter writer(region.bytes());
  Write(std::string(128, 'x'), &writer);
  std::atomic<bool> stop{false};
  bool got_room = true;
  ThreadPool other(1);
  other.Run([&] { got_room = !writer.Room(64, stop).empty(); });
  while (region.filled().Get() == 0)
    region.filled().Await(0);  // it waits, and has said what is there
  stop.store(true);
  writer.Wake();
  other.WaitIdle();
  EXPECT_FALSE(got_room);
  StoreRingReader reader(region.bytes());
  Read(64, &reader);
  region.taken().Set(1);
  EXPECT_EQ(writer.Room(128, stop).size(), 64u);
}

TEST(StoreRing, AReaderThatIsStoppedIsCancelled) {
  Region region(2);
  StoreRingWriter writer(region.bytes());
  StoreRingReader reader(region.bytes());
  const std::atomic<bool> stop{true};
  EXPECT_EQ(reader.Next(64, stop).status().code(), absl::StatusCode::kCancelled);
  Write("there", &writer);
  writer.Flush();
  EXPECT_EQ(reader.Next(5, stop)->size(), 5u);
}

TEST(StoreRing, MoreThanTheRingHasIsRefused) {
  Region region(2);
  for (const uint32_t lie : {3u, 1000u, UINT32_MAX, uint32_t{1} << 31}) {
    StoreRingWriter writer(region.bytes());
    StoreRingReader reader(region.bytes());
    region.filled().Set(lie);
    const absl::Status status = reader.Next(64, kGoOn).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                testing::HasSubstr("filled is " + std::to_string(lie) + " lines beyond taken"));
    region.filled().Set(2);
    EXPECT_EQ(reader.Next(128, kGoOn)->size(), 128u);
  }
}

}  // namespace
}  // namespace kvtier
