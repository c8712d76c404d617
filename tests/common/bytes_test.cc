#include "common/bytes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvtier {
namespace {

TEST(ParseBytes, ReadsNumbersWithAndWithoutUnit) {
  const std::pair<const char*, uint64_t> cases[] = {
      {"0", 0},
      {"65536", 65536},
      {"1B", 1},
      {"4GiB", uint64_t{4} << 30},
      {"512 MiB", uint64_t{512} << 20},
      {" 2KiB ", 2048},
      {"1.5GB", 1500000000},
      {"1.5gib", 1610612736},
      {"640GB", 640000000000},
      {"26.8TB", 26800000000000},
      {"9223372036854775808", uint64_t{1} << 63},
  };
  for (const auto& [text, bytes] : cases) {
    const absl::StatusOr<uint64_t> parsed = ParseBytes(text);
    ASSERT_TRUE(parsed.ok()) << text << ": " << parsed.status();
    EXPECT_EQ(*parsed, bytes) << text;
  }
}

TEST(ParseBytes, RefusesTheRestAndNamesIt) {
  for (const char* text : {"", " ", "GiB", "-1", "-1GiB", "1.5.5GiB", ".", "1e9", "0x10", "12 XB",
                           "4 Gi B", "9223372036854775809", "8388609TiB", "nan", "inf", "1,5GiB"}) {
    const absl::StatusOr<uint64_t> parsed = ParseBytes(text);
    ASSERT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(parsed.status().message()),
                ::testing::HasSubstr(absl::StrCat("'", text, "'")));
  }
}

TEST(FormatBytes, IsExactWhereAUnitDivides) {
  EXPECT_EQ(FormatBytes(0), "0B");
  EXPECT_EQ(FormatBytes(1023), "1023B");
  EXPECT_EQ(FormatBytes(1024), "1KiB");
  EXPECT_EQ(FormatBytes(uint64_t{4} << 30), "4GiB");
  EXPECT_EQ(FormatBytes(uint64_t{1000} << 20), "1000MiB");
}

TEST(FormatBytes, RoundsTheRestWithoutExponents) {
  EXPECT_EQ(FormatBytes(70272), "68.6 KiB");
  EXPECT_EQ(FormatBytes(1500000000), "1.4 GiB");
  EXPECT_EQ(FormatBytes((uint64_t{1023} << 10) + 1), "1023 KiB");
  EXPECT_EQ(FormatBytes((uint64_t{1000} << 10) - 100), "1000 KiB");
}

TEST(FormatBytes, ExactFormsCanBeRead) {
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{3} << 10, uint64_t{7} << 40, uint64_t{999}}) {
    EXPECT_EQ(ParseBytes(FormatBytes(bytes)).value(), bytes);
  }
}

}  // namespace
}  // namespace kvtier
