#include "common/block_key.h"

#include <gtest/gtest.h>

namespace kvtier {
namespace {

TEST(Digest128, BytesAndHexAreBigEndianAndComeBack) {
  const Digest128 digest{0x0123456789abcdef, 0xfedcba9876543210};
  EXPECT_EQ(digest.ToHex(), "0123456789abcdeffedcba9876543210");
  EXPECT_EQ(digest.ToBytes().substr(0, 2), "\x01\x23");
  EXPECT_EQ(Digest128::FromBytes(digest.ToBytes()), digest);
  EXPECT_EQ(Digest128::FromHex(digest.ToHex()), digest);
}

TEST(Digest128, RejectsWhatIsNoDigest) {
  EXPECT_EQ(Digest128::FromBytes(std::string(15, 'a')), std::nullopt);
  EXPECT_EQ(Digest128::FromBytes(std::string(17, 'a')), std::nullopt);
  EXPECT_EQ(Digest128::FromHex(std::string(31, 'a')), std::nullopt);
  EXPECT_EQ(Digest128::FromHex(std::string(31, 'a') + "g"), std::nullopt);
  EXPECT_NE(Digest128::FromHex(std::string(32, 'a')), std::nullopt);
}

// XXH3-128 of nothing with seed 0, as published with the algorithm.
TEST(Digest128, IsXxh3) {
  EXPECT_EQ(Digest128::Of("").ToHex(), "99aa06d3014798d86001c324468d497f");
}

TEST(PayloadChecksum, IsXxh3AndSeesEveryBit) {
  EXPECT_EQ(PayloadChecksum("", 0), 0x2d06800538d394c2u);
  std::string payload(1000, 'x');
  const uint64_t checksum = PayloadChecksum(payload.data(), payload.size());
  for (size_t bit = 0; bit < payload.size() * 8; ++bit) {
    payload[bit / 8] = static_cast<char>(payload[bit / 8] ^ (1 << bit % 8));
    ASSERT_NE(PayloadChecksum(payload.data(), payload.size()), checksum) << bit;
    payload[bit / 8] = static_cast<char>(payload[bit / 8] ^ (1 << bit % 8));
  }
  EXPECT_EQ(PayloadChecksum(payload.data(), payload.size()), checksum);
}

}  // namespace
}  // namespace kvtier
