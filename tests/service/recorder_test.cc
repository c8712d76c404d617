// Recordings of the daemon's traffic: what is in the files, and that they stay whole and bounded.
#include "service/recorder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <sstream>

#include "cli/trace.h"
#include "tests/support/temp_folder.h"

namespace kvtier {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Lt;
using ::testing::Not;

constexpr uint32_t kTokens = 4;
const ModelId kModel{1, 2};

std::vector<uint32_t> Tokens(uint32_t first, uint32_t count) {
  std::vector<uint32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

RecordedLookup LookupOf(std::vector<uint32_t> tokens, ModelId model = kModel, uint64_t bytes = 64,
                        uint32_t block_tokens = kTokens) {
  auto kept = std::make_shared<const std::vector<uint32_t>>(std::move(tokens));
  const std::string_view all(reinterpret_cast<const char*>(kept->data()), kept->size() * 4);
  return {.model = model,
          .block_tokens = block_tokens,
          .input_tokens = kept->size(),
          .prompt = PromptCursor(BlockKey{}, {all}, block_tokens * 4),
          .bytes = bytes,
          .memory = kept};
}

std::string ReadAll(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

std::vector<cli::TraceRequest> ReadTrace(const std::string& path,
                                         cli::TraceReaderOptions options = {
                                             .block_tokens = kTokens}) {
  std::vector<cli::TraceRequest> requests;
  absl::StatusOr<std::unique_ptr<cli::TraceSource>> source = cli::OpenTrace(path, options);
  EXPECT_TRUE(source.ok()) << source.status();
  while (source.ok()) {
    absl::StatusOr<std::optional<cli::TraceRequest>> request = (*source)->Next();
    EXPECT_TRUE(request.ok()) << request.status();
    if (!request.ok() || !*request) break;
    requests.push_back(**std::move(request));
  }
  return requests;
}

class RecorderTest : public ::testing::Test {
 protected:
  std::string Begin(RecordingOptions options = {}) {
    const absl::StatusOr<RecordingStatus> started = recorder_.Start(options);
    EXPECT_TRUE(started.ok()) << started.status();
    return started.ok() ? started->files.back() : "";
  }
  RecordingStatus End() {
    const absl::StatusOr<RecordingStatus> ended = recorder_.Stop();
    EXPECT_TRUE(ended.ok()) << ended.status();
    return ended.ok() ? *ended : RecordingStatus();
  }

  TempFolder folder_;
  ManualClock clock_;
  ManualExecutor executor_;
  Recorder recorder_{folder_ / "recordings", &executor_, &clock_};
};

TEST_F(RecorderTest, ALineSaysWhatWasAskedAndNothingElse) {
  const std::string file = Begin();
  clock_.Advance(std::chrono::microseconds(7600));
  recorder_.Record(LookupOf(Tokens(1000, 14)));
  clock_.Advance(std::chrono::milliseconds(3));
  std::vector<uint32_t> other = Tokens(1000, 16);
  other[5] = 77;  // in block 1
  recorder_.Record(LookupOf(other));
  recorder_.Record(LookupOf(Tokens(1000, 3)));
  recorder_.Record(LookupOf(Tokens(1000, 8), ModelId{3, 4}));
  EXPECT_EQ(ReadAll(file), "");  // written by the executor, not by who asks
  const RecordingStatus ended = End();
  EXPECT_EQ(ended.requests, 4u);
  EXPECT_EQ(ended.models, 2u);
  EXPECT_EQ(ended.bytes, ReadAll(file).size());

  const std::vector<cli::TraceRequest> requests = ReadTrace(file);
  ASSERT_EQ(requests.size(), 4u);
  EXPECT_EQ(requests[0].timestamp_ms, 7);
  EXPECT_EQ(requests[1].timestamp_ms, 10);
  EXPECT_EQ(requests[0].input_length, 14u);
  ASSERT_EQ(requests[0].hash_ids.size(), 3u);
  ASSERT_EQ(requests[1].hash_ids.size(), 4u);
  EXPECT_EQ(requests[0].hash_ids[0], requests[1].hash_ids[0]);
  EXPECT_NE(requests[0].hash_ids[1], requests[1].hash_ids[1]);
  EXPECT_NE(requests[0].hash_ids[2], requests[1].hash_ids[2]);  // its own tokens are the same
  EXPECT_THAT(requests[1].hash_ids, Each(Lt(uint64_t{1} << 53)));
  EXPECT_TRUE(requests[2].hash_ids.empty());
  EXPECT_EQ(requests[0].model, 1u);
  EXPECT_EQ(requests[3].model, 2u);
  EXPECT_THAT(ReadAll(file), Not(HasSubstr("dropped")));
}

TEST_F(RecorderTest, IdsSayNothingOutsideOfTheirRecording) {
  std::vector<std::vector<uint64_t>> ids;
  for (int recording = 0; recording < 2; ++recording) {
    const std::string file = Begin();
    recorder_.Record(LookupOf(Tokens(5, 8)));
    recorder_.Record(LookupOf(Tokens(5, 8)));
    End();
    const std::vector<cli::TraceRequest> requests = ReadTrace(file);
    ASSERT_EQ(requests.size(), 2u);
    EXPECT_EQ(requests[0].hash_ids, requests[1].hash_ids);
    ids.push_back(requests[0].hash_ids);
  }
  const std::vector<BlockKey> keys = BlockKeys(BlockKey{}, Tokens(5, 8), kTokens);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_NE(ids[0][i], ids[1][i]);
    EXPECT_NE(ids[0][i], keys[i].low & ((uint64_t{1} << 53) - 1));
    EXPECT_NE(ids[0][i], keys[i].high & ((uint64_t{1} << 53) - 1));
  }
}

TEST_F(RecorderTest, FilesAreBoundedWholeAndTheOldestLeave) {
  Begin();
  End();  // leaves a file of an earlier recording
  Begin({.max_file_bytes = 64 << 10, .max_files = 3});
  constexpr int kRequests = 300;
  for (int i = 0; i < kRequests; ++i) {
    clock_.Advance(std::chrono::milliseconds(1));
    recorder_.Record(LookupOf(Tokens(i, 400)));
    executor_.RunAll();
  }
  const RecordingStatus ended = End();
  EXPECT_EQ(ended.requests, uint64_t{kRequests});
  EXPECT_GT(ended.bytes, 5u * (64 << 10));
  ASSERT_EQ(ended.files.size(), 3u);
  double next = 0;
  for (const std::string& file : ended.files) {
    const std::string text = ReadAll(file);
    EXPECT_LE(text.size(), 64u << 10);
    EXPECT_EQ(text.back(), '\n');
    struct stat info = {};
    ASSERT_EQ(stat(file.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 07777, 0600u);
    for (const cli::TraceRequest& request : ReadTrace(file)) {
      EXPECT_TRUE(next == 0 || request.timestamp_ms == next) << request.timestamp_ms;
      next = request.timestamp_ms + 1;
    }
  }
  EXPECT_EQ(next, kRequests + 1);  // the newest are those that stay
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder_ / "recordings")) {
    files += entry.is_regular_file();
  }
  EXPECT_EQ(files, 3u);
}

TEST_F(RecorderTest, WhatTheQueueDoesNotHoldIsCountedWhereItIsMissing) {
  const std::string file = Begin();
  for (int i = 0; i < 20; ++i) recorder_.Record(LookupOf(Tokens(i, 8), kModel, 1 << 20));
  executor_.RunAll();
  recorder_.Record(LookupOf(Tokens(50, 8)));
  const RecordingStatus ended = End();
  EXPECT_EQ(ended.requests + ended.dropped, 21u);
  EXPECT_EQ(ended.dropped, 5u);
  EXPECT_EQ(recorder_.dropped_total(), 5u);
  EXPECT_EQ(recorder_.recorded_total(), 16u);
  EXPECT_EQ(ReadTrace(file).size(), 16u);
  const std::string text = ReadAll(file);
  const std::string last = text.substr(text.rfind('\n', text.size() - 2) + 1);
  EXPECT_THAT(last, HasSubstr("\"dropped\":5,"));
  EXPECT_THAT(text.substr(0, text.size() - last.size()), Not(HasSubstr("dropped")));
}

TEST_F(RecorderTest, ARequestLongerThanAFileIsCounted) {
  const std::string file = Begin({.max_file_bytes = 64 << 10, .max_files = 2});
  recorder_.Record(LookupOf(Tokens(0, 40'000)));
  recorder_.Record(LookupOf(Tokens(0, 400)));
  const RecordingStatus ended = End();
  EXPECT_EQ(ended.requests, 1u);
  EXPECT_EQ(ended.dropped, 1u);
  EXPECT_EQ(ReadTrace(file).size(), 1u);
  EXPECT_THAT(ReadAll(file), HasSubstr("\"dropped\":1,"));
}

// A limit on files' size stands in for a full disk: a write is cut short, then it fails.
TEST_F(RecorderTest, AFullDiskEndsTheRecordingWithWholeLines) {
  const std::string file = Begin();
  recorder_.Record(LookupOf(Tokens(0, 4000)));
  executor_.RunAll();
  const uint64_t whole = ReadAll(file).size();
  ASSERT_GT(whole, 0u);
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit tight = {whole + 1000, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &tight), 0);
  for (int i = 0; i < 3; ++i) recorder_.Record(LookupOf(Tokens(0, 4000)));
  executor_.RunAll();
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);

  EXPECT_FALSE(recorder_.on());
  const RecordingStatus status = recorder_.status();
  EXPECT_FALSE(status.on);
  EXPECT_THAT(status.why, AllOf(HasSubstr("cannot write"), HasSubstr(file)));
  EXPECT_EQ(status.requests, 1u);
  EXPECT_EQ(status.dropped, 3u);
  EXPECT_EQ(ReadAll(file).size(), whole);
  EXPECT_EQ(ReadTrace(file).size(), 1u);
  recorder_.Record(LookupOf(Tokens(0, 8)));  // no harm
  const absl::Status stopped = recorder_.Stop().status();
  EXPECT_EQ(stopped.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(stopped.message()), HasSubstr("cannot write"));
  const std::string next = Begin();  // and on again
  recorder_.Record(LookupOf(Tokens(0, 8)));
  EXPECT_EQ(End().requests, 1u);
  EXPECT_EQ(ReadTrace(next).size(), 1u);
}

TEST_F(RecorderTest, AFileThatIsGoneEndsTheRecording) {
  const std::string file = Begin();
  recorder_.Record(LookupOf(Tokens(0, 8)));
  executor_.RunAll();
  std::filesystem::remove_all(folder_ / "recordings");
  EXPECT_TRUE(recorder_.on());
  recorder_.Record(LookupOf(Tokens(0, 8)));
  executor_.RunAll();
  EXPECT_FALSE(recorder_.on());
  EXPECT_THAT(recorder_.status().why, HasSubstr(file + " was removed while it was written"));
  EXPECT_EQ(recorder_.status().requests, 1u);
  EXPECT_EQ(recorder_.status().dropped, 1u);

  const std::string next = Begin();  // makes the directory again
  std::filesystem::rename(next, next + ".mine");
  EXPECT_THAT(std::string(recorder_.Stop().status().message()),
              HasSubstr(next + " was removed while it was written"));
  EXPECT_FALSE(recorder_.on());
  Begin();
  End();
}

TEST_F(RecorderTest, OneRecordingAtATimeWithinLimits) {
  EXPECT_FALSE(recorder_.on());
  recorder_.Record(LookupOf(Tokens(0, 8)));
  EXPECT_EQ(recorder_.recorded_total(), 0u);
  EXPECT_EQ(recorder_.Stop().status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(
      std::string(recorder_.Start({.max_file_bytes = 1000, .max_files = 4}).status().message()),
      HasSubstr("max_file_bytes is 1000, the limits are 65536 and 1099511627776"));
  EXPECT_THAT(
      std::string(recorder_.Start({.max_file_bytes = 1 << 20, .max_files = 0}).status().message()),
      HasSubstr("max_files is 0, the limits are 1 and 10000"));
  Begin();
  EXPECT_TRUE(recorder_.on());
  EXPECT_EQ(recorder_.Start({}).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(recorder_.on());
  End();
  EXPECT_FALSE(recorder_.on());
}

// A recording of models with blocks of two sizes is read one model at a time.
TEST_F(RecorderTest, ModelsAreToldApart) {
  const std::string file = Begin();
  recorder_.Record(LookupOf(Tokens(0, 8)));
  recorder_.Record(LookupOf(Tokens(0, 8), ModelId{3, 4}, 64, 8));
  recorder_.Record(LookupOf(Tokens(0, 8)));
  End();
  EXPECT_EQ(ReadTrace(file, {.block_tokens = 4, .model = 1}).size(), 2u);
  EXPECT_EQ(ReadTrace(file, {.block_tokens = 8, .model = 2}).size(), 1u);
  auto source = cli::OpenTrace(file, {.block_tokens = 4});
  ASSERT_TRUE(source.ok());
  EXPECT_TRUE((*source)->Next().ok());
  EXPECT_THAT(std::string((*source)->Next().status().message()),
              AllOf(HasSubstr(file + ":2: block_tokens is 8 of model 2"), HasSubstr("blocks of 4"),
                    HasSubstr("--model")));
}

TEST(RecorderThreads, NothingIsLostOrOutOfOrder) {
  TempFolder folder;
  const SteadyClock clock{};
  ThreadPool writer(1);
  Recorder recorder(folder / "recordings", &writer, &clock);
  const absl::StatusOr<RecordingStatus> started = recorder.Start({});
  ASSERT_TRUE(started.ok()) << started.status();
  constexpr int kThreads = 4;
  constexpr int kEach = 500;
  {
    ThreadPool callers(kThreads);
    for (int t = 0; t < kThreads; ++t) {
      callers.Run([&recorder, t] {
        for (int i = 0; i < kEach; ++i) recorder.Record(LookupOf(Tokens(t * kEach + i, 40)));
      });
    }
  }
  const absl::StatusOr<RecordingStatus> ended = recorder.Stop();
  ASSERT_TRUE(ended.ok()) << ended.status();
  EXPECT_EQ(ended->requests + ended->dropped, uint64_t{kThreads} * kEach);
  EXPECT_EQ(ReadTrace(ended->files.back()).size(), ended->requests);  // checks the order of times
  writer.WaitIdle();
}

}  // namespace
}  // namespace kvtier
