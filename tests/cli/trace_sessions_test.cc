#include "cli/trace_sessions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>

#include "absl/container/flat_hash_map.h"
#include "tests/support/seed.h"

namespace kvtier::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr size_t kBlock = 512;

std::string Octal(uint64_t value, int digits) {
  std::string text(static_cast<size_t>(digits), '0');
  for (size_t i = text.size(); i-- > 0; value /= 8) text[i] = static_cast<char>('0' + value % 8);
  return text;
}

void Put(std::string* header, size_t at, std::string_view text) {
  header->replace(at, text.size(), text);
}

// One member in ustar's form, as POSIX has it.
std::string Member(const std::string& name, const std::string& contents, char type = '0') {
  std::string header(kBlock, '\0');
  Put(&header, 0, name);
  Put(&header, 100, "0000644");
  Put(&header, 124, Octal(contents.size(), 11));
  Put(&header, 148, "        ");
  header[156] = type;
  Put(&header, 257, std::string_view("ustar\00000", 8));
  uint64_t sum = 0;
  for (const char c : header) sum += static_cast<unsigned char>(c);
  Put(&header, 148, Octal(sum, 6) + std::string(1, '\0'));
  const size_t padding = (kBlock - contents.size() % kBlock) % kBlock;
  return header + contents + std::string(padding, '\0');
}

// As the header at `at` states it: the same number can be written in more than one way.
uint64_t Checksum(const std::string& archive, size_t at) {
  return std::strtoull(archive.substr(at + 148, 8).c_str(), nullptr, 8);
}

std::string End() { return std::string(2 * kBlock, '\0'); }

std::string Session(const std::string& requests, const std::string& scope = "local") {
  return absl::StrCat(R"({"block_size":64,"hash_id_scope":")", scope, R"(","requests":[)", requests,
                      "]}");
}

// A request of tokens / 64 ids: 1, 2, ...
std::string Request(double t, uint64_t tokens) {
  std::string ids;
  for (uint64_t i = 1; i <= tokens / 64; ++i) absl::StrAppend(&ids, i > 1 ? "," : "", i);
  return absl::StrCat(R"({"t":)", t, R"(,"type":"n","in":)", tokens, R"(,"out":7,"hash_ids":[)",
                      ids, "]}");
}

class SessionsTest : public ::testing::Test {
 protected:
  SessionsTest() : path_(::testing::TempDir() + "kvtier_sessions_" + std::to_string(::getpid())) {}
  ~SessionsTest() override { std::filesystem::remove(path_); }

  struct Result {
    std::vector<TraceRequest> requests;
    absl::Status status;
    uint64_t skipped = 0;
  };
  Result Read(const std::string& archive, TraceReaderOptions options = {}) {
    std::ofstream(path_, std::ios::binary) << archive;
    Result result;
    auto source = OpenTrace(path_, options);
    result.status = source.status();
    if (!source.ok()) return result;
    result.skipped = (*source)->skipped_lines();
    for (;;) {
      absl::StatusOr<std::optional<TraceRequest>> request = (*source)->Next();
      result.status = request.status();
      if (!request.ok() || !*request) return result;
      result.requests.push_back(**std::move(request));
    }
  }

  const std::string path_;
};

TEST_F(SessionsTest, EightIdsBecomeOneThatStandsForItsPrefix) {
  const Result result = Read(Member("a.json", Session(Request(0, 1100) + "," + Request(5, 2048))) +
                                 Member("b.json", Session(Request(0, 1024))) + End(),
                             {.spread_hours = 0});
  ASSERT_TRUE(result.status.ok()) << result.status;
  ASSERT_EQ(result.requests.size(), 3u);
  const auto& [first, other, second] =
      std::tie(result.requests[0], result.requests[1], result.requests[2]);
  EXPECT_EQ(first.hash_ids.size(), 2u);  // 17 ids: one more than two blocks
  EXPECT_EQ(first.input_length, 1100u);
  EXPECT_EQ(first.output_length, 7u);
  ASSERT_EQ(second.hash_ids.size(), 4u);
  EXPECT_EQ(second.timestamp_ms, 5000);
  EXPECT_EQ(second.hash_ids[0], first.hash_ids[0]);  // the same prefix of the same session
  EXPECT_EQ(second.hash_ids[1], first.hash_ids[1]);
  EXPECT_NE(other.hash_ids[0], first.hash_ids[0]);  // the same local ids of another session
}

TEST_F(SessionsTest, AnIdDependsOnEverythingBeforeIt) {
  const std::string same_tail = R"({"t":1,"in":128,"out":1,"hash_ids":[9,2]})";
  const Result result =
      Read(Member("a", Session(Request(0, 128) + "," + same_tail + "," + Request(2, 128))) + End(),
           {.block_tokens = 64});
  ASSERT_EQ(result.requests.size(), 3u) << result.status;
  EXPECT_NE(result.requests[0].hash_ids[1], result.requests[1].hash_ids[1]);
  EXPECT_EQ(result.requests[0].hash_ids, result.requests[2].hash_ids);
}

TEST_F(SessionsTest, ASubAgentSharesIdsAndCountsFromItsStart) {
  const std::string agent =
      R"({"t":10,"type":"subagent","requests":[)" + Request(1, 512) + "," + Request(5, 512) + "]}";
  const Result result =
      Read(Member("a", Session(Request(0, 512) + "," + agent + "," + Request(12, 512))) + End(),
           {.spread_hours = 0});
  ASSERT_EQ(result.requests.size(), 4u) << result.status;
  const double times[] = {0, 11000, 12000, 15000};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(result.requests[i].timestamp_ms, times[i]);
    EXPECT_EQ(result.requests[i].hash_ids, result.requests[0].hash_ids);
  }
}

TEST_F(SessionsTest, StartsAreThoseOfPython) {
  // import random; r = random.Random(1); r.uniform(0, 28800), r.uniform(0, 28800)
  const std::string archive =
      Member("a", Session(Request(0, 64))) + Member("b", Session(Request(0, 64))) + End();
  const Result one = Read(archive, {.block_tokens = 64});
  ASSERT_EQ(one.requests.size(), 2u) << one.status;
  EXPECT_EQ(one.requests[0].timestamp_ms, 3869690);
  EXPECT_EQ(one.requests[1].timestamp_ms, 24406092);
  const Result two = Read(archive, {.block_tokens = 64, .session_seed = 2});
  EXPECT_NE(two.requests[0].timestamp_ms, 3869690);
  const Result cut = Read(archive, {.block_tokens = 64, .cut_hours = 6});
  EXPECT_EQ(cut.requests.size(), 1u);
}

TEST_F(SessionsTest, ErrorsNameArchiveMemberAndReason) {
  const std::pair<std::string, const char*> cases[] = {
      {"nonsense", "not a JSON object"},
      {R"({"block_size":48,"hash_id_scope":"local","requests":[]})",
       "block-tokens is 512, no multiple of the session's block_size, 48"},
      {R"({"hash_id_scope":"local","requests":[]})", "block_size is missing"},
      {Session("", "global"), "hash_id_scope is \"global\""},
      {R"({"block_size":64,"hash_id_scope":"local"})", "requests is no list"},
      {Session("4"), "requests[0] is no object"},
      {Session(R"({"in":64,"out":1,"hash_ids":[1]})"), "requests[0]: t is missing"},
      {Session(R"({"t":0,"in":-1,"out":1,"hash_ids":[1]})"), "requests[0]: in is -1"},
      {Session(R"({"t":0,"in":64,"hash_ids":[1]})"), "requests[0]: out is missing"},
      {Session(R"({"t":0,"in":64,"out":1})"), "requests[0]: hash_ids is no list"},
      {Session(R"({"t":0,"in":64,"out":1,"hash_ids":[1,2]})"), "hash_ids has 2 ids, in is 64"},
      {Session(R"({"t":0,"in":64,"out":1,"hash_ids":[-1]})"), "hash_ids[0] is -1"},
      {Session(Request(4, 64) + "," + Request(3, 64)), "requests[1]: t is before"},
      {Session(R"({"t":0,"requests":[{"t":0}]})"), "requests[0].requests[0]: in is missing"},
  };
  for (const auto& [text, reason] : cases) {
    const std::string archive = Member("good.json", Session(Request(0, 512))) +
                                Member("bad.json", text) +
                                Member("last.json", Session(Request(0, 512))) + End();
    const Result result = Read(archive);
    EXPECT_EQ(result.status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(result.status.message()),
                AllOf(HasSubstr(path_ + ": member bad.json: "), HasSubstr(reason)));
    const Result skipping = Read(archive, {.skip_bad_lines = true});
    EXPECT_TRUE(skipping.status.ok()) << skipping.status;
    EXPECT_EQ(skipping.requests.size(), 2u);
    EXPECT_EQ(skipping.skipped, 1u);
  }
}

TEST_F(SessionsTest, LongNamesAreRead) {
  const std::string name(150, 'n');
  const std::string pax = absl::StrCat("9 a=bcde\n", name.size() + 10, " path=", name, "\n");
  for (const std::string& header :
       {Member("././@LongLink", name + '\0', 'L'), Member("PaxHeaders/n", pax, 'x')}) {
    const Result bad = Read(header + Member(name.substr(0, 100), "nonsense") + End());
    EXPECT_THAT(std::string(bad.status.message()), HasSubstr("member " + name + ": "));
  }
}

TEST_F(SessionsTest, WhatIsNoFileIsPassedOver) {
  const Result result = Read(Member("folder/", "", '5') + Member("g", "11 a=bcdef\n", 'g') +
                             Member("folder/a", Session(Request(0, 512))) + End());
  EXPECT_TRUE(result.status.ok()) << result.status;
  EXPECT_EQ(result.requests.size(), 1u);
}

TEST_F(SessionsTest, ACutArchiveIsTold) {
  const std::string archive =
      Member("a.json", Session(Request(0, 512))) + Member("b.json", Session(Request(0, 512)));
  ASSERT_TRUE(Read(archive).status.ok());  // without its end: GNU tar accepts that too
  for (size_t bytes = kBlock; bytes < archive.size(); bytes += 100) {
    const Result result = Read(archive.substr(0, bytes));
    if (bytes == archive.size() / 2) continue;  // exactly one whole member
    EXPECT_EQ(result.status.code(), absl::StatusCode::kDataLoss) << bytes;
    EXPECT_THAT(std::string(result.status.message()),
                HasSubstr(path_ + ": the archive is cut off"));
  }
}

// Whatever is damaged: an error or a trace, and never a crash. Headers are covered by a checksum.
TEST_F(SessionsTest, DamagedBytesAreAnErrorOrATrace) {
  const uint64_t seed = TestSeed();
  std::mt19937_64 random(seed);
  const std::string archive = Member("a.json", Session(Request(0, 512))) +
                              Member("b.json", Session(Request(0, 1024) + "," + Request(9, 1024))) +
                              End();
  int told = 0;
  for (int i = 0; i < 500; ++i) {
    std::string damaged = archive;
    const size_t at = random() % damaged.size();
    damaged[at] = static_cast<char>(random());
    const Result result = Read(damaged, {.block_tokens = 64});
    told += !result.status.ok();
    for (const TraceRequest& request : result.requests) {
      EXPECT_EQ(request.hash_ids.size(), request.input_length / 64);
    }
    const size_t header = archive.find("b.json");  // the second member's
    const bool same_checksum = Checksum(damaged, header) == Checksum(archive, header);
    const bool in_checksum = at >= header + 148 && at < header + 156;
    if (at >= header && at < header + kBlock && !(in_checksum && same_checksum) &&
        damaged != archive) {
      EXPECT_FALSE(result.status.ok()) << at;
    }
  }
  EXPECT_GT(told, 50);
}

// The merged trace was made from the archive: seed 1, 8 hours, cut at 12. So it comes out again,
// request by request, with other names for the same blocks.
TEST(RecordedSessions, GiveTheMergedTrace) {
  const char* folder = std::getenv("KVTIER_TRACES");
  const std::string traces = folder != nullptr ? folder : KVTIER_SOURCE_DIR "/../shared/traces";
  const std::string archive = traces + "/weka_A_sessions_b64.tar.zst";
  const std::string merged = traces + "/weka_A_merged_b512.jsonl.zst";
  if (!std::filesystem::exists(archive) || !std::filesystem::exists(merged)) {
    GTEST_SKIP() << "no recorded traces in " << traces;
  }
  auto sessions = OpenTrace(archive, {.cut_hours = 12}).value();
  auto expected = OpenTrace(merged, {}).value();
  absl::flat_hash_map<uint64_t, uint64_t> name_of;  // here, by the merged trace's
  std::set<uint64_t> names;
  uint64_t requests = 0, blocks = 0;
  for (;; ++requests) {
    const auto here = sessions->Next();
    const auto there = expected->Next();
    ASSERT_TRUE(here.ok() && there.ok()) << here.status() << there.status();
    ASSERT_EQ(here->has_value(), there->has_value()) << requests;
    if (!here->has_value()) break;
    ASSERT_EQ((*here)->timestamp_ms, (*there)->timestamp_ms) << requests;
    ASSERT_EQ((*here)->input_length, (*there)->input_length) << requests;
    ASSERT_EQ((*here)->hash_ids.size(), (*there)->hash_ids.size()) << requests;
    for (size_t i = 0; i < (*here)->hash_ids.size(); ++i) {
      const auto [known, added] = name_of.emplace((*there)->hash_ids[i], (*here)->hash_ids[i]);
      if (added) names.insert(known->second);
      ASSERT_EQ(known->second, (*here)->hash_ids[i]) << requests;
    }
    blocks += (*here)->hash_ids.size();
  }
  EXPECT_EQ(requests, 33826u);
  EXPECT_EQ(blocks, 7704278u);
  EXPECT_EQ(name_of.size(), 284358u);
  EXPECT_EQ(names.size(), 284358u);
}

}  // namespace
}  // namespace kvtier::cli
