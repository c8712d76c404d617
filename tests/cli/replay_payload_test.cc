#include "cli/replay_payload.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace kvtier::cli {
namespace {

const BlockKey kKey{0x0123456789abcdef, 0x1122334455667788};

std::vector<std::byte> Payload(const BlockKey& key, size_t bytes) {
  std::vector<std::byte> payload(bytes);
  FillPayload(key, payload);
  return payload;
}

TEST(ReplayPayload, BeginsWithItsKey) {
  const std::vector<std::byte> payload = Payload(kKey, 100);
  EXPECT_EQ(std::memcmp(payload.data(), kKey.ToBytes().data(), 16), 0);
}

TEST(ReplayPayload, MatchesItselfAtAnySizeAndCut) {
  for (size_t bytes = kPayloadHeaderBytes; bytes < 120; ++bytes) {
    const std::vector<std::byte> payload = Payload(kKey, bytes);
    for (size_t begin = 0; begin <= bytes; ++begin) {
      for (size_t end = begin; end <= bytes; ++end) {
        ASSERT_TRUE(
            PayloadMatches(kKey, bytes, begin, std::span(payload).subspan(begin, end - begin)))
            << bytes << " " << begin << " " << end;
      }
    }
  }
}

TEST(ReplayPayload, SeesEveryFlippedBit) {
  for (const size_t bytes : {32, 33, 40, 77, 4096}) {
    std::vector<std::byte> payload = Payload(kKey, bytes);
    for (size_t i = 0; i < bytes; ++i) {
      payload[i] ^= std::byte{1} << static_cast<int>(i % 8);
      ASSERT_FALSE(PayloadMatches(kKey, bytes, 0, payload)) << bytes << " " << i;
      ASSERT_FALSE(PayloadMatches(kKey, bytes, i, std::span(payload).subspan(i)));
      ASSERT_TRUE(PayloadMatches(kKey, bytes, 0, std::span(payload).first(i)));
      payload[i] ^= std::byte{1} << static_cast<int>(i % 8);
    }
    ASSERT_TRUE(PayloadMatches(kKey, bytes, 0, payload));
  }
}

TEST(ReplayPayload, IsAnotherBlocksNowhere) {
  const BlockKey other{kKey.high, kKey.low ^ 1};
  const std::vector<std::byte> mine = Payload(kKey, 8192);
  const std::vector<std::byte> theirs = Payload(other, 8192);
  EXPECT_FALSE(PayloadMatches(other, 8192, 0, mine));
  // Any aligned 8 bytes of the stream are of one block only.
  for (size_t i = kPayloadHeaderBytes; i < mine.size(); i += 8) {
    ASSERT_FALSE(PayloadMatches(other, 8192, i, std::span(mine).subspan(i, 8))) << i;
    ASSERT_NE(std::memcmp(&mine[i], &theirs[i], 8), 0) << i;
  }
}

TEST(ReplayPayload, RefusesPiecesMovedOrBeyondTheEnd) {
  const std::vector<std::byte> payload = Payload(kKey, 4096);
  EXPECT_TRUE(PayloadMatches(kKey, 4096, 1024, std::span(payload).subspan(1024, 64)));
  EXPECT_FALSE(PayloadMatches(kKey, 4096, 1032, std::span(payload).subspan(1024, 64)));
  EXPECT_FALSE(PayloadMatches(kKey, 4096, 4090, std::span(payload).subspan(4032, 64)));
  EXPECT_FALSE(PayloadMatches(kKey, 4096, 5000, std::span(payload).first(0)));
  EXPECT_FALSE(PayloadMatches(kKey, 8192, 0, payload));  // another payload size
  EXPECT_FALSE(PayloadMatches(kKey, 31, 0, std::span(payload).first(0)));
}

}  // namespace
}  // namespace kvtier::cli
