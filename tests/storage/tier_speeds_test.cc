#include "storage/tier_speeds.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/support/seed.h"

namespace kvtier {
namespace {

constexpr int kRam = static_cast<int>(TierKind::kRam);
constexpr int kSsd = static_cast<int>(TierKind::kSsd);
constexpr uint64_t kMiB = uint64_t{1} << 20;

Duration FromSeconds(double seconds) { return Duration(static_cast<Duration::rep>(seconds * 1e9)); }

// One message of a fetch: `wait` until it is ready, then `send`.
struct Message {
  BytesByTier bytes{};
  double wait = 0;
  double send = 0;
};

FetchMeter Fetch(const std::vector<Message>& messages) {
  TimePoint now{};
  FetchMeter meter(now);
  for (const Message& message : messages) {
    now += FromSeconds(message.wait);
    meter.WriteBegins(message.bytes, now);
    now += FromSeconds(message.send);
    meter.WriteEnds(now);
  }
  return meter;
}

Message From(int tier, uint64_t bytes, double wait, double send) {
  Message message{{}, wait, send};
  message.bytes[tier] = bytes;
  return message;
}

// Bytes of one tier that needs `fixed` once and `per_byte` for each, half of it sending.
FetchMeter Line(int tier, uint64_t bytes, double fixed, double per_byte) {
  std::vector<Message> messages;
  for (uint64_t sent = 0; sent < bytes; sent += kMiB) {
    const uint64_t size = std::min(kMiB, bytes - sent);
    const double half = per_byte * static_cast<double>(size) / 2;
    messages.push_back(From(tier, size, half + (sent == 0 ? fixed : 0), half));
  }
  return Fetch(messages);
}

// Shared memory: what clients tell is RAM's line, and a slower tier's has the reading on top.
TEST(TierSpeedsTest, ReadingAndWaitingAreTwoThings) {
  TierSpeeds speeds;
  speeds.RecordReading(0, 1);
  speeds.RecordReading(kMiB, 0);
  EXPECT_FALSE(speeds.speed(TierKind::kRam).measured());
  speeds.RecordReading(kMiB, kMiB * 1e-9);
  EXPECT_NEAR(speeds.speed(TierKind::kRam).LoadSeconds(2 * kMiB), 2 * kMiB * 1e-9, 1e-6);
  EXPECT_FALSE(speeds.speed(TierKind::kSsd).measured());
  speeds.RecordWaiting(TierKind::kSsd, kMiB, kMiB * 3e-9);
  EXPECT_NEAR(speeds.speed(TierKind::kSsd).LoadSeconds(2 * kMiB), 2 * kMiB * 4e-9, 1e-6);
  EXPECT_NEAR(speeds.speed(TierKind::kRam).LoadSeconds(2 * kMiB), 2 * kMiB * 1e-9, 1e-6);
  EXPECT_EQ(speeds.stalled_fetches(), 0u);
}

TEST(TierSpeedsTest, NothingIsMeasuredBeforeTheFirstFetch) {
  TierSpeeds speeds;
  EXPECT_FALSE(speeds.speed(TierKind::kRam).measured());
  EXPECT_EQ(speeds.speed(TierKind::kRam).LoadSeconds(kMiB), 0);
  speeds.Record(Line(kRam, kMiB, 0, 1e-9));
  EXPECT_TRUE(speeds.speed(TierKind::kRam).measured());
  EXPECT_FALSE(speeds.speed(TierKind::kSsd).measured());
}

TEST(TierSpeedsTest, FindsWhatIsFixedAndWhatGrowsWithBytes) {
  const uint64_t seed = TestSeed();
  std::mt19937_64 random(seed);
  TierSpeeds speeds;
  for (int i = 0; i < 200; ++i) {
    const uint64_t bytes = uint64_t{4096} << random() % 14;
    const double noise = 0.8 + 0.4 * static_cast<double>(random() % 1000) / 1000;
    speeds.Record(Line(kRam, bytes, 50e-6 * noise, 0.5e-9 * noise));
    speeds.Record(Line(kSsd, bytes, 400e-6 * noise, 1.5e-9 * noise));
  }
  EXPECT_NEAR(speeds.speed(TierKind::kRam).first_byte_seconds, 50e-6, 15e-6) << "seed " << seed;
  EXPECT_NEAR(speeds.speed(TierKind::kRam).seconds_per_byte, 0.5e-9, 0.15e-9) << "seed " << seed;
  EXPECT_NEAR(speeds.speed(TierKind::kSsd).first_byte_seconds, 400e-6, 120e-6) << "seed " << seed;
  EXPECT_NEAR(speeds.speed(TierKind::kSsd).seconds_per_byte, 1.5e-9, 0.45e-9) << "seed " << seed;
}

TEST(TierSpeedsTest, EqualSizesGiveTheirMeanPerByte) {
  TierSpeeds speeds;
  for (int i = 0; i < 100; ++i) speeds.Record(Line(kRam, kMiB, 100e-6, 1e-9));
  EXPECT_NEAR(speeds.speed(TierKind::kRam).LoadSeconds(kMiB), 100e-6 + kMiB * 1e-9, 1e-6);
}

TEST(TierSpeedsTest, APrefixInRamDoesNotMakeTheSsdFaster) {
  TierSpeeds speeds;
  for (int i = 0; i < 100; ++i) {
    speeds.Record(Fetch({From(kRam, kMiB, 0, 500e-6), From(kSsd, kMiB, 3e-3, 500e-6)}));
  }
  EXPECT_NEAR(speeds.speed(TierKind::kRam).LoadSeconds(kMiB), 500e-6, 10e-6);
  EXPECT_NEAR(speeds.speed(TierKind::kSsd).LoadSeconds(kMiB), 3.5e-3, 50e-6);
}

TEST(TierSpeedsTest, OneMessageFromTwoTiersIsSharedByBytes) {
  TierSpeeds speeds;
  Message both{{}, 0, 1e-3};
  both.bytes[kRam] = kMiB / 4;
  both.bytes[kSsd] = 3 * kMiB / 4;
  speeds.Record(Fetch({both}));
  EXPECT_NEAR(speeds.speed(TierKind::kRam).LoadSeconds(kMiB), 1e-3, 1e-9);
  EXPECT_NEAR(speeds.speed(TierKind::kSsd).LoadSeconds(kMiB), 1e-3, 1e-9);
}

TEST(TierSpeedsTest, AReaderThatDoesNotKeepUpDoesNotCount) {
  TierSpeeds speeds;
  for (int i = 0; i < 50; ++i) speeds.Record(Line(kRam, 4 * kMiB, 50e-6, 0.5e-9));
  const double before = speeds.speed(TierKind::kRam).LoadSeconds(kMiB);
  for (int i = 0; i < 40; ++i) {
    speeds.Record(Fetch({From(kRam, kMiB, 0, 250e-6), From(kRam, kMiB, 0, 300e-3)}));
  }
  EXPECT_EQ(speeds.stalled_fetches(), 40u);
  EXPECT_DOUBLE_EQ(speeds.speed(TierKind::kRam).LoadSeconds(kMiB), before);
  // A slow tier with a quick reader is another matter.
  for (int i = 0; i < 200; ++i) {
    speeds.Record(Fetch({From(kRam, kMiB, 300e-3, 250e-6)}));
  }
  EXPECT_EQ(speeds.stalled_fetches(), 40u);
  EXPECT_NEAR(speeds.speed(TierKind::kRam).LoadSeconds(kMiB), 300e-3, 30e-3);
}

TEST(TierSpeedsTest, ASlowReaderAtFirstIsForgottenWithTheFirstQuickOne) {
  TierSpeeds speeds;
  for (int i = 0; i < 50; ++i) speeds.Record(Fetch({From(kRam, kMiB, 0, 300e-3)}));
  EXPECT_GT(speeds.speed(TierKind::kRam).LoadSeconds(kMiB), 0.2);
  speeds.Record(Line(kRam, kMiB, 0, 1e-9));
  EXPECT_NEAR(speeds.speed(TierKind::kRam).LoadSeconds(kMiB), kMiB * 1e-9, 1e-5);
}

TEST(TierSpeedsTest, AConnectionThatStaysSlowCountsInTheEnd) {
  TierSpeeds speeds;
  for (int i = 0; i < 50; ++i) speeds.Record(Line(kRam, 4 * kMiB, 0, 0.5e-9));
  for (int i = 0; i < 400; ++i) speeds.Record(Line(kRam, 4 * kMiB, 0, 100e-9));
  EXPECT_GT(speeds.stalled_fetches(), 20u);
  EXPECT_LT(speeds.stalled_fetches(), 200u);
  EXPECT_NEAR(speeds.speed(TierKind::kRam).seconds_per_byte, 100e-9, 10e-9);
}

TEST(TierSpeedsTest, AHiccupMovesLittleALastingChangeMovesAll) {
  TierSpeeds speeds;
  for (int i = 0; i < 100; ++i) speeds.Record(Line(kSsd, kMiB, 0, 1e-9));
  speeds.Record(Line(kSsd, kMiB, 1.0, 1e-9));
  EXPECT_LT(speeds.speed(TierKind::kSsd).LoadSeconds(kMiB), 1.2 * kMiB * 1e-9);
  for (int i = 0; i < 200; ++i) speeds.Record(Fetch({From(kSsd, kMiB, 20e-3, 500e-6)}));
  EXPECT_NEAR(speeds.speed(TierKind::kSsd).LoadSeconds(kMiB), 20.5e-3, 1e-3);
}

TEST(TierSpeedsTest, MissesAndAClockThatStandsStillMeasureNothing) {
  TierSpeeds speeds;
  speeds.Record(Fetch({Message{{}, 1e-3, 1e-3}}));
  speeds.Record(Fetch({From(kRam, kMiB, 0, 0)}));
  EXPECT_FALSE(speeds.speed(TierKind::kRam).measured());
  speeds.Record(Fetch({From(kRam, kMiB, 0, 1e-3)}));
  EXPECT_TRUE(speeds.speed(TierKind::kRam).measured());
}

}  // namespace
}  // namespace kvtier
