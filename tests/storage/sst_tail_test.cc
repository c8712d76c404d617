// What CheckSstTail says of a file as RocksDB has written it, and of one that differs from it.
#include "storage/sst_tail.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <random>

#include "tests/support/seed.h"
#include "tests/support/ssd_fixture.h"

namespace kvtier {
namespace {

constexpr size_t kFooterBytes = 53;
constexpr size_t kHandlesAt = 1;  // in the footer
constexpr size_t kFormatVersionAt = 41;
constexpr size_t kMagicAt = 45;

class SstTailTest : public SsdFixture {
 protected:
  // One file of the tier.
  std::string Table(int parts) {
    EXPECT_EQ(Open(), absl::OkStatus());
    EXPECT_EQ(Write(parts), absl::OkStatus());
    std::ifstream in(PayloadFiles().back(), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
};

// What is read is checked to be within the file.
absl::Status Check(const std::string& bytes, int* reads = nullptr) {
  return CheckSstTail(bytes.size(),
                      [&](uint64_t offset, uint64_t count) -> absl::StatusOr<std::string> {
                        KVTIER_CHECK(count <= bytes.size() && offset <= bytes.size() - count);
                        if (reads != nullptr) ++*reads;
                        return bytes.substr(offset, count);
                      });
}

absl::Status CheckWithBitTurned(std::string* bytes, size_t at, int bit) {
  char& byte = (*bytes)[at];
  byte = static_cast<char>(byte ^ (1 << bit));
  const absl::Status status = Check(*bytes);
  byte = static_cast<char>(byte ^ (1 << bit));
  return status;
}

TEST_F(SstTailTest, FindsEveryWrongBit) {
  part_bytes_ = 200;
  std::string bytes = Table(3);
  int reads = 0;
  ASSERT_EQ(Check(bytes, &reads), absl::OkStatus());
  EXPECT_EQ(reads, 1);
  const size_t footer_at = bytes.size() - kFooterBytes;
  size_t first_found = bytes.size();
  for (size_t at = 0; at < bytes.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      SCOPED_TRACE(absl::StrCat("bit ", bit, " of byte ", at));
      const absl::Status status = CheckWithBitTurned(&bytes, at, bit);
      if (!status.ok()) first_found = std::min(first_found, at);
      if (at < first_found) continue;
      const bool of_handles = at >= footer_at + kHandlesAt && at < footer_at + kFormatVersionAt;
      EXPECT_TRUE(!status.ok() || of_handles);  // or of the padding that follows them
      const bool of_format =
          at == footer_at || (at >= footer_at + kFormatVersionAt && at < footer_at + kMagicAt);
      EXPECT_EQ(absl::IsUnimplemented(status), of_format) << status;
    }
  }
  EXPECT_LT(first_found, bytes.find("kvtier.list"));
  EXPECT_GT(first_found, bytes.rfind("KVTR"));  // what RocksDB verifies itself
}

TEST_F(SstTailTest, FindsWrongHandles) {
  part_bytes_ = 200;
  const std::string right = Table(3);
  std::mt19937_64 random(TestSeed());
  ASSERT_EQ(Check(right), absl::OkStatus());
  for (int round = 0; round < 10000; ++round) {
    std::string wrong = right;
    const size_t handles = right.size() - kFooterBytes + kHandlesAt;
    for (size_t i = 0; i < 8; ++i)
      wrong[handles + i] = static_cast<char>(random() | 0x80 * (i % 3));
    EXPECT_TRUE(absl::IsDataLoss(Check(wrong)));
  }
}

TEST_F(SstTailTest, FindsThatBytesAreMissingOrTooMany) {
  part_bytes_ = 200;
  const std::string right = Table(3);
  ASSERT_EQ(Check(right), absl::OkStatus());
  for (size_t bytes = 0; bytes < right.size(); ++bytes) {
    EXPECT_TRUE(absl::IsDataLoss(Check(right.substr(0, bytes)))) << bytes;
  }
  EXPECT_TRUE(absl::IsDataLoss(Check(right + '\0')));
  EXPECT_TRUE(absl::IsDataLoss(Check(std::string(right.size(), '\0'))));
  EXPECT_TRUE(absl::IsDataLoss(Check(std::string(right.size(), '\xFF'))));
}

// Then it is read in two.
TEST_F(SstTailTest, VerifiesATailLongerThanTheFirstRead) {
  constexpr size_t kFirstRead = 64 << 10;
  part_bytes_ = 10;
  std::string bytes = Table(2000);
  int reads = 0;
  ASSERT_EQ(Check(bytes, &reads), absl::OkStatus());
  EXPECT_EQ(reads, 2);
  const size_t list = bytes.find("kvtier.list");
  ASSERT_LT(list, bytes.size() - kFirstRead);
  for (const size_t at : {list - 100, list, bytes.size() - kFirstRead - 1,
                          bytes.size() - kFirstRead, bytes.size() - kFooterBytes - 1}) {
    EXPECT_TRUE(absl::IsDataLoss(CheckWithBitTurned(&bytes, at, 3))) << at;
  }
  EXPECT_EQ(CheckWithBitTurned(&bytes, 100, 3), absl::OkStatus());
}

TEST_F(SstTailTest, SaysWhatTheFileSays) {
  part_bytes_ = 200;
  const std::string bytes = Table(3);
  const absl::Status status = CheckSstTail(
      bytes.size(), [](uint64_t, uint64_t) { return absl::UnavailableError("no power"); });
  EXPECT_EQ(status, absl::UnavailableError("no power"));
}

}  // namespace
}  // namespace kvtier
