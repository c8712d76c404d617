#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "common/block_key.h"
#include "common/copy_past.h"
#include "common/hashed_copy.h"
#include "common/running_checksum.h"

namespace kvtier {
namespace {

std::vector<std::byte> RandomBytes(std::mt19937_64& random, size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

TEST(RunningChecksumTest, EqualsTheChecksumOfTheWholeHoweverItIsCut) {
  std::mt19937_64 random(1);
  for (size_t size : {1u, 16u, 17u, 128u, 240u, 241u, 256u, 1000u, 4096u, 100'001u}) {
    const std::vector<std::byte> bytes = RandomBytes(random, size);
    RunningChecksum checksum;
    checksum.Update(bytes);  // of an earlier block
    checksum.Restart();
    for (size_t at = 0; at < size;) {
      const size_t step = std::min<size_t>(size - at, 1 + random() % (size / 3 + 1));
      checksum.Update(std::span(bytes).subspan(at, step));
      at += step;
    }
    EXPECT_EQ(checksum.Value(), PayloadChecksum(bytes.data(), size)) << size;
    checksum.Update(std::span(bytes).first(1));
    EXPECT_NE(checksum.Value(), PayloadChecksum(bytes.data(), size)) << size;
  }
}

TEST(CopyPastTest, CopiesExactlyTheBytesAtAnyAlignment) {
  std::mt19937_64 random(2);
  const std::vector<std::byte> from = RandomBytes(random, 2000);
  for (size_t size : {0u, 1u, 63u, 64u, 255u, 256u, 257u, 511u, 1024u, 1900u}) {
    for (size_t shift : {0u, 1u, 8u, 15u, 31u, 63u}) {
      std::vector<std::byte> to(2100, std::byte{0xee});
      CopyPast(to.data() + shift, std::span(from).subspan(shift, size));
      FinishCopies();
      ASSERT_EQ(std::memcmp(to.data() + shift, from.data() + shift, size), 0) << size << shift;
      for (size_t i = 0; i < to.size(); ++i) {
        const bool outside = i < shift || i >= shift + size;
        ASSERT_TRUE(!outside || to[i] == std::byte{0xee}) << size << " " << shift << " " << i;
      }
    }
  }
}

TEST(HashedCopyTest, CopiesAndHashesExactlyTheBytes) {
  std::mt19937_64 random(3);
  const std::vector<std::byte> from = RandomBytes(random, 20'000);
  for (const auto copy : {&HashAndCopyPast, &HashAndCopy, &HashAndCopyPastOnce}) {
    for (size_t size : {0u, 1u, 255u, 2047u, 2048u, 2049u, 4096u, 6144u, 6145u, 19'000u}) {
      for (size_t shift : {0u, 1u, 40u, 64u}) {
        std::vector<std::byte> to(20'000, std::byte{0xee});
        RunningChecksum checksum;
        copy(to.data() + shift, std::span(from).subspan(shift, size), &checksum);
        FinishCopies();
        EXPECT_EQ(checksum.Value(), PayloadChecksum(from.data() + shift, size));
        ASSERT_EQ(std::memcmp(to.data() + shift, from.data() + shift, size), 0) << size << shift;
        for (size_t i = 0; i < to.size(); ++i) {
          const bool outside = i < shift || i >= shift + size;
          ASSERT_TRUE(!outside || to[i] == std::byte{0xee}) << size << " " << shift << " " << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvtier
