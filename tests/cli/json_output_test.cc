#include "cli/json_output.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvtier::cli {
namespace {

using ::testing::HasSubstr;

struct Captured {
  std::string out;
  std::string err;
};
template <typename F>
Captured Capture(F&& run) {
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  run();
  Captured captured;
  captured.out = ::testing::internal::GetCapturedStdout();
  captured.err = ::testing::internal::GetCapturedStderr();
  return captured;
}

TEST(Output, PrintsTheTextOrTheDocument) {
  const Json document = {{"answer", 42}};
  const Captured text = Capture([&] {
    Output output(false);
    output.Print(document, "forty-two\n");
    EXPECT_EQ(output.Finish(absl::OkStatus()), 0);
  });
  EXPECT_EQ(text.out, "forty-two\n");
  const Captured json = Capture([&] {
    Output output(true);
    output.Progress("working");
    output.Print(document, "forty-two\n");
    EXPECT_EQ(output.Finish(absl::OkStatus()), 0);
  });
  EXPECT_EQ(Json::parse(json.out), document);
  EXPECT_EQ(json.err, "working\n");
}

TEST(Output, ErrorsAreADocumentToo) {
  const Captured captured = Capture([] {
    Output output(true);
    EXPECT_EQ(output.Finish(absl::NotFoundError("no such model")), 1);
  });
  EXPECT_EQ(Json::parse(captured.out),
            Json({{"error", {{"code", "NOT_FOUND"}, {"message", "no such model"}}}}));
  EXPECT_THAT(captured.err, HasSubstr("no such model"));
}

TEST(Output, AFailureAfterTheAnswerAddsNoSecondDocument) {
  const Captured captured = Capture([] {
    Output output(true);
    output.Print({{"wrong_blocks", 1}}, "");
    EXPECT_EQ(output.Finish(absl::DataLossError("a byte was wrong")), 1);
  });
  EXPECT_EQ(Json::parse(captured.out), Json({{"wrong_blocks", 1}}));
  EXPECT_THAT(captured.err, HasSubstr("a byte was wrong"));
}

TEST(Output, BytesThatAreNoTextDoNotStopIt) {
  const Captured captured = Capture([] {
    Output output(true);
    output.Print({{"name", "\xff\xfe"}}, "");
  });
  EXPECT_FALSE(Json::parse(captured.out, nullptr, false).is_discarded());
}

TEST(Table, AlignsColumns) {
  Table table;
  table.Row({"a", "1"}).Row({"long name", "1,000"}).Row({"alone"});
  EXPECT_EQ(table.ToString(), "a              1\nlong name  1,000\nalone\n");
}

TEST(Numbers, ReadWell) {
  EXPECT_EQ(WithCommas(0), "0");
  EXPECT_EQ(WithCommas(999), "999");
  EXPECT_EQ(WithCommas(1000), "1,000");
  EXPECT_EQ(WithCommas(1048576), "1,048,576");
  EXPECT_EQ(WithCommas(123456789), "123,456,789");
  EXPECT_EQ(Fixed(0.36642, 4), "0.3664");
}

}  // namespace
}  // namespace kvtier::cli
