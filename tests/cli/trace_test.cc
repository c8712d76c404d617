#include "cli/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zstd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <set>

#include "common/prompt.h"
#include "tests/support/seed.h"

namespace kvtier::cli {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kGood[] =
    R"({"timestamp": 5, "input_length": 1000, "output_length": 3, "hash_ids": [7, 8]})"
    "\n";

class TraceFile : public ::testing::Test {
 protected:
  TraceFile() : path_(::testing::TempDir() + "kvtier_trace_" + std::to_string(::getpid())) {}
  ~TraceFile() override { std::filesystem::remove(path_); }

  void Write(const std::string& text) { std::ofstream(path_, std::ios::binary) << text; }

  static std::string Compressed(const std::string& text) {
    std::string out(ZSTD_compressBound(text.size()), '\0');
    out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 1));
    return out;
  }

  struct Result {
    std::vector<TraceRequest> requests;
    absl::Status status;
    uint64_t skipped = 0;
  };
  Result ReadAll(bool skip_bad_lines = false, uint32_t block_tokens = 512) {
    Result result;
    auto source =
        OpenTrace(path_, {.block_tokens = block_tokens, .skip_bad_lines = skip_bad_lines});
    if (!source.ok()) return {{}, source.status(), 0};
    while (true) {
      absl::StatusOr<std::optional<TraceRequest>> request = (*source)->Next();
      result.status = request.status();
      result.skipped = (*source)->skipped_lines();
      if (!request.ok() || !*request) return result;
      result.requests.push_back(**std::move(request));
    }
  }

  const std::string path_;
};

TEST_F(TraceFile, ReadsRequestsInOrder) {
  Write(
      std::string(kGood) +
      "\n"
      R"({"timestamp": 6.5, "input_length": 1024, "output_length": 1, "hash_ids": [7, 9], "session": 3})");
  const Result result = ReadAll();
  ASSERT_TRUE(result.status.ok()) << result.status;
  ASSERT_EQ(result.requests.size(), 2u);
  EXPECT_EQ(result.requests[0].timestamp_ms, 5);
  EXPECT_EQ(result.requests[0].input_length, 1000u);
  EXPECT_EQ(result.requests[0].output_length, 3u);
  EXPECT_THAT(result.requests[0].hash_ids, ElementsAre(7, 8));
  EXPECT_THAT(result.requests[1].hash_ids, ElementsAre(7, 9));
}

TEST_F(TraceFile, ReadsZstdOfManyFrames) {
  std::string big;
  for (int i = 0; i < 20000; ++i) big += kGood;
  Write(Compressed(big) + Compressed(kGood));
  const Result result = ReadAll();
  ASSERT_TRUE(result.status.ok()) << result.status;
  EXPECT_EQ(result.requests.size(), 20001u);
}

TEST_F(TraceFile, TellsDamagedAndCutZstd) {
  std::string big;
  for (int i = 0; i < 20000; ++i) big += kGood;
  const std::string compressed = Compressed(big);
  Write(compressed.substr(0, compressed.size() - 1));
  EXPECT_EQ(ReadAll().status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(ReadAll().status.message()), HasSubstr("cut off"));
  Write(compressed.substr(0, 4) + "garbage garbage garbage");
  EXPECT_EQ(ReadAll().status.code(), absl::StatusCode::kDataLoss);
}

TEST_F(TraceFile, EmptyFilesHoldNothing) {
  Write("");
  EXPECT_TRUE(ReadAll().status.ok());
  EXPECT_TRUE(ReadAll().requests.empty());
  Write("\n\n  \n");
  EXPECT_TRUE(ReadAll().status.ok());
  Write(Compressed(""));
  EXPECT_TRUE(ReadAll().status.ok());
}

TEST_F(TraceFile, ErrorsNameFileLineAndReason) {
  const std::pair<const char*, const char*> cases[] = {
      {"{", "not a JSON object"},
      {"[1]", "not a JSON object"},
      {R"({"input_length":512,"output_length":1,"hash_ids":[1]})", "timestamp is missing"},
      {R"({"timestamp":-1,"input_length":512,"output_length":1,"hash_ids":[1]})",
       "timestamp is -1"},
      {R"({"timestamp":0,"input_length":512,"output_length":1,"hash_ids":[1]})",
       "timestamp is 0, before the line before it, 5"},
      {R"({"timestamp":9,"output_length":1,"hash_ids":[1]})", "input_length is missing"},
      {R"({"timestamp":9,"input_length":"x","output_length":1,"hash_ids":[1]})",
       "input_length is \"x\""},
      {R"({"timestamp":9,"input_length":512,"output_length":1})", "hash_ids is missing"},
      {R"({"timestamp":9,"input_length":512,"output_length":1,"hash_ids":4})",
       "hash_ids is no list"},
      {R"({"timestamp":9,"input_length":512,"output_length":1,"hash_ids":[-4]})",
       "hash_ids[0] is -4"},
      {R"({"timestamp":9,"input_length":513,"output_length":1,"hash_ids":[1,2,3]})",
       "hash_ids has 3 ids, input_length is 513, in blocks of 512 tokens it needs 1 or 2"},
  };
  for (const auto& [line, reason] : cases) {
    Write(kGood + std::string(line) + "\n" + kGood);
    const Result result = ReadAll();
    EXPECT_EQ(result.requests.size(), 1u);
    EXPECT_EQ(result.status.code(), absl::StatusCode::kInvalidArgument) << line;
    EXPECT_THAT(std::string(result.status.message()),
                AllOf(HasSubstr(path_ + ":2: "), HasSubstr(reason)));

    const Result skipping = ReadAll(true);
    EXPECT_TRUE(skipping.status.ok()) << skipping.status;
    EXPECT_EQ(skipping.requests.size(), 2u);
    EXPECT_EQ(skipping.skipped, 1u);
  }
}

TEST_F(TraceFile, TokensAreCutIntoChainedBlocks) {
  Write(R"({"timestamp": 1, "tokens": [1, 2, 3, 4, 5]})"
        "\n"
        R"({"timestamp": 2, "tokens": [1, 2, 3, 4], "output_length": 9})"
        "\n"
        R"({"timestamp": 3, "tokens": [3, 4, 3, 4]})"
        "\n"
        R"({"timestamp": 4, "tokens": []})"
        "\n");
  const Result result = ReadAll(false, 2);
  ASSERT_TRUE(result.status.ok()) << result.status;
  ASSERT_EQ(result.requests.size(), 4u);
  const TraceRequest& first = result.requests[0];
  const BlockKey one = ChildKey(BlockKey(), std::string_view("\1\0\0\0\2\0\0\0", 8));
  const BlockKey two = ChildKey(one, std::string_view("\3\0\0\0\4\0\0\0", 8));
  const BlockKey partial = ChildKey(two, std::string_view("\5\0\0\0", 4));
  EXPECT_THAT(first.hash_ids, ElementsAre(one.low, two.low, partial.low));
  EXPECT_EQ(first.input_length, 5u);
  EXPECT_EQ(UsedBlocks(first, 2, true), 2u);
  EXPECT_THAT(result.requests[1].hash_ids, ElementsAre(one.low, two.low));
  EXPECT_EQ(result.requests[1].output_length, 9u);
  // The second block's tokens are the same, what comes before it is not.
  ASSERT_EQ(result.requests[2].hash_ids.size(), 2u);
  EXPECT_NE(result.requests[2].hash_ids[1], two.low);
  EXPECT_TRUE(result.requests[3].hash_ids.empty());
}

TEST_F(TraceFile, ErrorsInTokensNameTheToken) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"tokens":[1]})", "timestamp is missing"},
      {R"({"timestamp":0,"tokens":4})", "tokens is no list"},
      {R"({"timestamp":0,"tokens":[1,-2]})", "tokens[1] is -2"},
      {R"({"timestamp":0,"tokens":[1,2,4294967296]})", "tokens[2] is 4294967296"},
      {R"({"timestamp":0,"tokens":["a"]})", "tokens[0] is \"a\""},
      {R"({"timestamp":0,"tokens":[1],"output_length":-1})", "output_length is -1"},
  };
  for (const auto& [line, reason] : cases) {
    Write(std::string(line) + "\n");
    EXPECT_THAT(std::string(ReadAll().status.message()),
                AllOf(HasSubstr(path_ + ":1: "), HasSubstr(reason)));
  }
}

// Cut anywhere, the whole lines are read and the rest of one is told.
TEST_F(TraceFile, ACutFileIsToldWhereItIsCut) {
  const std::string text = std::string(kGood) + kGood;
  const size_t line = std::string(kGood).size();
  for (size_t bytes = 1; bytes < text.size(); ++bytes) {
    Write(text.substr(0, bytes));
    const Result result = ReadAll();
    const size_t rest = bytes % line;
    const bool whole = rest == 0 || rest == line - 1;  // but for the line's end
    EXPECT_EQ(result.status.ok(), whole) << bytes;
    EXPECT_EQ(result.requests.size(), bytes / line + (rest == line - 1)) << bytes;
    if (whole) continue;
    EXPECT_THAT(std::string(result.status.message()),
                HasSubstr(path_ + ":" + std::to_string(bytes / line + 1) + ": "));
  }
}

// Whatever is damaged: an error that names the line, or requests that hold together.
TEST_F(TraceFile, DamagedBytesAreAnErrorOrATrace) {
  std::mt19937_64 random(TestSeed());
  const std::string text = std::string(kGood) + kGood + kGood;
  int told = 0;
  for (int i = 0; i < 500; ++i) {
    std::string damaged = text;
    // Half of the time a digit: any other byte breaks nearly every line that it lands in.
    damaged[random() % damaged.size()] =
        static_cast<char>(random() % 2 == 0 ? '0' + random() % 10 : random());
    Write(damaged);
    const Result result = ReadAll();
    told += !result.status.ok();
    if (!result.status.ok()) {
      EXPECT_EQ(result.status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(result.status.message()), HasSubstr(path_ + ":"));
    }
    for (const TraceRequest& request : result.requests) {
      EXPECT_LE(request.hash_ids.size(), request.input_length / 512 + 1);
    }
  }
  EXPECT_GT(told, 100);
  EXPECT_LT(told, 500);
}

TEST_F(TraceFile, RefusesEndlessLines) {
  Write(std::string((16 << 20) + 1000000, ' '));
  EXPECT_EQ(ReadAll().status.code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(TraceFile, SkipsALineHoweverLong) {
  for (const std::string end : {"", "\n", "   \n"}) {
    Write(std::string(kGood) + std::string(40 << 20, 'x') + end);
    TraceReaderOptions options;
    options.skip_bad_lines = true;
    const auto source = OpenTrace(path_, options);
    ASSERT_TRUE(source.ok()) << source.status();
    EXPECT_TRUE((*source)->Next()->has_value());
    EXPECT_FALSE((*source)->Next()->has_value());
    EXPECT_EQ((*source)->skipped_lines(), 1u);
  }
  Write(std::string(17 << 20, ' ') + "\n" + kGood + "no request\n" + kGood);
  TraceReaderOptions options;
  options.skip_bad_lines = true;
  const auto source = OpenTrace(path_, options);
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_TRUE((*source)->Next()->has_value());
  EXPECT_TRUE((*source)->Next()->has_value());
  EXPECT_EQ((*source)->skipped_lines(), 2u);
}

TEST_F(TraceFile, RefusesOptionsOutOfRange) {
  Write(kGood);
  EXPECT_TRUE(OpenTrace(path_, {}).ok());
  const std::pair<TraceReaderOptions, const char*> cases[] = {
      {{.block_tokens = 0}, "block-tokens is 0, the least is 1"},
      {{.spread_hours = -1}, "session-spread-hours is -1, the limits are 0 and 1e+06"},
      {{.cut_hours = 2e6}, "session-cut-hours is 2e+06"}};
  for (const auto& [options, reason] : cases) {
    const absl::Status status = OpenTrace(path_, options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(reason));
  }
}

TEST_F(TraceFile, TellsAMissingFile) {
  const absl::Status status = OpenTrace("/no/such/trace", {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("/no/such/trace"));
}

TEST(UsedBlocks, DropsOnlyAPartialLastBlock) {
  TraceRequest request;
  request.hash_ids = {1, 2, 3};
  request.input_length = 1500;  // the third is partial
  EXPECT_EQ(UsedBlocks(request, 512, false), 3u);
  EXPECT_EQ(UsedBlocks(request, 512, true), 2u);
  request.input_length = 1536;
  EXPECT_EQ(UsedBlocks(request, 512, true), 3u);
  request.input_length = 1600;  // a trace that lists full blocks only
  EXPECT_EQ(UsedBlocks(request, 512, true), 3u);
}

std::vector<TraceRequest> Generate(const GeneratorOptions& options) {
  std::vector<TraceRequest> requests;
  const auto source = MakeGenerator(options);
  while (true) {
    std::optional<TraceRequest> request = source->Next().value();
    if (!request) return requests;
    requests.push_back(*std::move(request));
  }
}

TEST(Generator, GivesTheSameRequestsAgain) {
  const std::vector<TraceRequest> a = Generate({});
  const std::vector<TraceRequest> b = Generate({});
  GeneratorOptions other;
  other.seed = 2;
  const std::vector<TraceRequest> c = Generate(other);
  ASSERT_EQ(a.size(), GeneratorOptions().requests);
  ASSERT_EQ(a.size(), b.size());
  bool differs = false;
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].hash_ids, b[i].hash_ids);
    EXPECT_EQ(a[i].input_length, b[i].input_length);
    EXPECT_EQ(a[i].timestamp_ms, b[i].timestamp_ms);
    differs |= a[i].hash_ids != c[i].hash_ids;
  }
  EXPECT_TRUE(differs);
}

TEST(Generator, IsPinned) {  // on every machine and in every version
  uint64_t sum = 0;
  for (const TraceRequest& request : Generate({})) {
    for (const uint64_t id : request.hash_ids) sum = sum * 31 + id;
    sum = sum * 31 + request.input_length;
  }
  EXPECT_EQ(sum, 1710730489927467116u);
}

TEST(Generator, IsAValidTraceOfPrefixes) {
  std::map<uint64_t, uint64_t> parent_of;  // an id stands for its whole prefix
  std::set<uint64_t> distinct;
  uint64_t blocks = 0;
  double last = 0;
  for (const TraceRequest& request : Generate({})) {
    EXPECT_EQ(request.hash_ids.size(), (request.input_length + 511) / 512);
    EXPECT_GE(request.timestamp_ms, last);
    last = request.timestamp_ms;
    uint64_t parent = UINT64_MAX;
    for (const uint64_t id : request.hash_ids) {
      const auto [known, is_new] = parent_of.emplace(id, parent);
      ASSERT_EQ(known->second, parent);
      parent = id;
    }
    blocks += request.hash_ids.size();
    distinct.insert(request.hash_ids.begin(), request.hash_ids.end());
  }
  const double reusable = 1 - static_cast<double>(distinct.size()) / static_cast<double>(blocks);
  EXPECT_GT(reusable, 0.4);  // several turns: most of a prompt was there before
  EXPECT_LT(reusable, 0.9);
}

// The recorded traces, when they are at hand: counts as their origin states them.
TEST(RecordedTraces, HoldWhatTheyShould) {
  const char* folder = std::getenv("KVTIER_TRACES");
  const std::string traces = folder != nullptr ? folder : KVTIER_SOURCE_DIR "/../shared/traces";
  const std::string path = traces + "/mooncake_conversation.jsonl.zst";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "no recorded traces in " << traces;
  auto source = OpenTrace(path, {}).value();
  uint64_t requests = 0;
  uint64_t blocks = 0;
  std::set<uint64_t> distinct;
  while (true) {
    const absl::StatusOr<std::optional<TraceRequest>> request = source->Next();
    ASSERT_TRUE(request.ok()) << request.status();
    if (!*request) break;
    ++requests;
    blocks += (*request)->hash_ids.size();
    distinct.insert((*request)->hash_ids.begin(), (*request)->hash_ids.end());
  }
  EXPECT_EQ(requests, 12031u);
  EXPECT_EQ(blocks, 288500u);
  EXPECT_EQ(distinct.size(), 182790u);
}

}  // namespace
}  // namespace kvtier::cli
