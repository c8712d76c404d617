#include "common/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace kvtier {
namespace {

using ::testing::EndsWith;
using ::testing::MatchesRegex;

class LogTest : public ::testing::Test {
 protected:
  void TearDown() override { SetLogLevel(level_); }

  template <typename F>
  std::string Captured(F&& log) {
    ::testing::internal::CaptureStderr();
    log();
    return ::testing::internal::GetCapturedStderr();
  }

 private:
  const LogLevel level_ = GetLogLevel();
};

TEST_F(LogTest, WritesOneLineWithFields) {
  const std::string line = Captured([] {
    Log(LogLevel::kWarning, "tier is full", {{"tier", "ram"}, {"blocks", uint64_t{7}}});
  });
  EXPECT_THAT(line, MatchesRegex("[0-9-]+T[0-9:.]+Z warning tier is full tier=ram blocks=7\n"));
}

TEST_F(LogTest, QuotesWhatWouldBreakALineApart) {
  const std::string line = Captured([] {
    Log(LogLevel::kError, "bad", {{"a", "two words"}, {"b", "x=1"}, {"c", "l1\nl2"}, {"d", ""}});
  });
  EXPECT_THAT(line, EndsWith("a=\"two words\" b=\"x=1\" c=\"l1\\nl2\" d=\"\"\n"));
}

TEST_F(LogTest, LevelDecidesWhatIsWritten) {
  SetLogLevel(LogLevel::kWarning);
  EXPECT_EQ(Captured([] { Log(LogLevel::kInfo, "quiet"); }), "");
  EXPECT_NE(Captured([] { Log(LogLevel::kWarning, "loud"); }), "");
}

TEST_F(LogTest, LevelsHaveNames) {
  LogLevel level = LogLevel::kInfo;
  EXPECT_TRUE(ParseLogLevel("debug", &level));
  EXPECT_EQ(level, LogLevel::kDebug);
  EXPECT_TRUE(ParseLogLevel("error", &level));
  EXPECT_EQ(level, LogLevel::kError);
  EXPECT_FALSE(ParseLogLevel("loud", &level));
  EXPECT_EQ(level, LogLevel::kError);
}

}  // namespace
}  // namespace kvtier
