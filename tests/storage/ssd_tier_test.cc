#include "storage/ssd_tier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>

#include "common/executor.h"
#include "storage/record_codec.h"
#include "storage/ssd_inspect.h"
#include "tests/support/pool_owner.h"

namespace kvtier {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kKiB = 1024;
constexpr uint64_t kMiB = 1024 * kKiB;

// A part with everything that a Write needs; its content follows from `tag`.
struct Part {
  Part(uint64_t tag, uint64_t bytes, const std::string& model = "model",
       const std::string& root = "root")
      : identity(absl::StrCat("tokens of ", tag)), content(bytes) {
    FillContent(tag, content);
    op.id.model = Digest128::Of(model);
    op.id.root = FingerprintOf(root);
    op.id.key = Digest128::Of(absl::StrCat("key ", tag));
    op.id.parent = Digest128::Of(absl::StrCat("parent ", tag));
    op.id.depth = static_cast<uint32_t>(tag);
    op.id.part = static_cast<uint16_t>(tag % 3);
    op.id.part_count = 3;
    op.checksum = PayloadChecksum(content.data(), content.size());
  }

  std::string identity;
  std::vector<std::byte> content;
  WriteOp op;
};

class SsdTierTest : public testing::Test {
 protected:
  SsdTierTest() {
    std::string pattern = testing::TempDir() + "ssd_tier_XXXXXX";
    KVTIER_CHECK(::mkdtemp(pattern.data()) != nullptr);
    parent_ = pattern;
    options_ = {parent_ + "/ssd", 256 * kMiB, 64 * kMiB, &clock_, nullptr};
  }
  ~SsdTierTest() override {
    tier_.reset();
    fs::remove_all(parent_);
  }

  using Depths = std::vector<std::vector<uint64_t>>;

  // Opens, or closes and opens again; what came back, by segment, as depths.
  Depths Start() {
    tier_.reset();
    absl::StatusOr<std::unique_ptr<SsdTier>> opened = SsdTier::Open(options_);
    EXPECT_EQ(opened.status(), absl::OkStatus());
    tier_ = std::move(*opened);
    Depths found;
    tier_->Recover([&found](std::span<const StoredPart> parts) {
      found.emplace_back();
      for (const StoredPart& part : parts) found.back().push_back(part.id.depth);
    });
    return found;
  }

  // As one segment.
  absl::Status Write(std::span<Part* const> parts) {
    std::vector<WriteOp> ops;
    for (Part* part : parts) {
      ops.push_back(part->op);
      ops.back().id.identity = part->identity;
      ops.back().from = part->content;
    }
    tier_->Write(ops, TimePoint());
    absl::Status status;
    for (size_t i = 0; i < ops.size(); ++i) {
      parts[i]->op.location = ops[i].location;
      status.Update(ops[i].status);
    }
    return status;
  }
  absl::Status Write(Part& part) {
    Part* const one = &part;
    return Write({&one, 1});
  }

  absl::Status Read(const Part& part) { return ReadAs(part, part.op.id); }
  absl::Status ReadAs(const Part& part, PartIdentity id) {
    std::vector<std::byte> out(part.content.size());
    if (id.identity.empty()) id.identity = part.identity;
    ReadOp op{id, part.op.location, part.op.checksum, out, absl::UnknownError("not set")};
    tier_->Read({&op, 1}, TimePoint());
    if (op.status.ok()) {
      EXPECT_TRUE(out == part.content);
    }
    return op.status;
  }
  // A part by itself in a new segment.
  std::unique_ptr<Part> Written(uint64_t tag, uint64_t bytes, const std::string& model = "model",
                                const std::string& root = "root") {
    auto part = std::make_unique<Part>(tag, bytes, model, root);
    EXPECT_EQ(Write(*part), absl::OkStatus());
    return part;
  }
  void Erase(const Part& part) { tier_->Erase({&part.op.location, 1}); }

  std::vector<fs::path> PayloadFiles() const {
    std::vector<fs::path> files;
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(parent_)) {
      if (entry.path().extension() == ".sst") files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());
    return files;
  }
  // What du shows.
  uint64_t PayloadBytesOnDisk() const {
    uint64_t bytes = 0;
    for (const fs::path& file : PayloadFiles()) {
      struct stat status = {};
      KVTIER_CHECK(::stat(file.c_str(), &status) == 0);
      bytes += static_cast<uint64_t>(status.st_blocks) * 512;
    }
    return bytes;
  }

  // Of the file that was made last.
  fs::path NewestFile() const { return PayloadFiles().back(); }
  void Overwrite(const fs::path& file, uint64_t at, const std::string& bytes) const {
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekp(static_cast<std::streamoff>(at));
    stream.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    KVTIER_CHECK(stream.good());
  }
  static std::string Contents(const fs::path& file) {
    std::ifstream stream(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }

  ManualClock clock_;
  std::string parent_;
  SsdTierOptions options_;
  std::unique_ptr<SsdTier> tier_;
};

TEST_F(SsdTierTest, RoundTripsEverySize) {
  EXPECT_THAT(Start(), testing::IsEmpty());
  std::vector<std::unique_ptr<Part>> parts;
  uint64_t tag = 0;
  for (const uint64_t bytes : {uint64_t{1}, uint64_t{511}, 4 * kKiB, 4 * kKiB + 1, 64 * kKiB,
                               2 * kMiB, 2 * kMiB + 7, 64 * kMiB}) {
    parts.push_back(std::make_unique<Part>(tag++, bytes));
    ASSERT_EQ(Write(*parts.back()), absl::OkStatus()) << bytes;
  }
  for (const auto& part : parts) EXPECT_EQ(Read(*part), absl::OkStatus());
  EXPECT_EQ(Start().size(), parts.size());
  for (const auto& part : parts) EXPECT_EQ(Read(*part), absl::OkStatus());
  EXPECT_EQ(tier_->stats().checksum_failures, 0u);
}

// --------------------------------------------------------------------------------------------------
// Reading

TEST_F(SsdTierTest, KeepsManyRecordsInOneFile) {
  Start();
  std::vector<std::unique_ptr<Part>> parts;
  std::vector<Part*> pointers;
  for (uint64_t tag = 0; tag < 400; ++tag) {
    parts.push_back(std::make_unique<Part>(tag, 1 + tag * 37 % 9000));
    pointers.push_back(parts.back().get());
  }
  ASSERT_EQ(Write(pointers), absl::OkStatus());
  EXPECT_EQ(PayloadFiles().size(), 1u);
  for (const auto& part : parts) ASSERT_EQ(Read(*part), absl::OkStatus());
  const Depths found = Start();
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].size(), parts.size());
  for (const auto& part : parts) ASSERT_EQ(Read(*part), absl::OkStatus());
}

TEST_F(SsdTierTest, ReadsOnlyThePartThatWasAskedFor) {
  Start();
  const auto part = Written(1, 5000);
  const auto asked_wrong = [&](const std::function<void(PartIdentity*)>& change) {
    PartIdentity id = part->op.id;
    change(&id);
    return ReadAs(*part, id).code();
  };
  const auto kLost = absl::StatusCode::kDataLoss;
  EXPECT_EQ(asked_wrong([](PartIdentity* id) { id->model = Digest128::Of("x"); }), kLost);
  EXPECT_EQ(asked_wrong([](PartIdentity* id) { id->root = FingerprintOf("x"); }), kLost);
  EXPECT_EQ(asked_wrong([](PartIdentity* id) { id->key = Digest128::Of("x"); }), kLost);
  EXPECT_EQ(asked_wrong([](PartIdentity* id) { id->parent = Digest128::Of("x"); }), kLost);
  EXPECT_EQ(asked_wrong([](PartIdentity* id) { id->identity = "tokens of 2"; }), kLost);
  EXPECT_EQ(asked_wrong([](PartIdentity* id) { ++id->part; }), kLost);
  EXPECT_EQ(asked_wrong([](PartIdentity* id) { ++id->part_count; }), kLost);
  EXPECT_EQ(asked_wrong([](PartIdentity*) {}), absl::StatusCode::kOk);
  EXPECT_EQ(tier_->stats().checksum_failures, 7u);
  Part other_checksum = *part;
  other_checksum.op.checksum ^= 1;
  EXPECT_EQ(Read(other_checksum).code(), kLost);
  EXPECT_EQ(Read(*part), absl::OkStatus());
}

// --------------------------------------------------------------------------------------------------
// Space

TEST_F(SsdTierTest, GivesSpaceBackWhenAllOfAFileIsErased) {
  Start();
  Part a(1, 700 * kKiB), b(2, 300 * kKiB);
  Part* const both[] = {&a, &b};
  ASSERT_EQ(Write(both), absl::OkStatus());
  const auto stays = Written(3, 200 * kKiB);
  const uint64_t all = tier_->usage().used_bytes;
  EXPECT_EQ(PayloadBytesOnDisk(), all);
  EXPECT_EQ(tier_->usage().backed_bytes, all);

  Erase(a);
  tier_->Maintain();
  EXPECT_EQ(tier_->usage().used_bytes, all);
  EXPECT_EQ(Read(b), absl::OkStatus());
  EXPECT_EQ(Read(a).code(), absl::StatusCode::kNotFound);

  Erase(b);
  EXPECT_LT(tier_->usage().used_bytes, 220 * kKiB);
  EXPECT_EQ(tier_->usage().backed_bytes, all);
  EXPECT_EQ(PayloadBytesOnDisk(), all);
  tier_->Maintain();
  EXPECT_EQ(PayloadBytesOnDisk(), tier_->usage().used_bytes);
  EXPECT_EQ(tier_->usage().backed_bytes, tier_->usage().used_bytes);
  EXPECT_EQ(Read(*stays), absl::OkStatus());
  EXPECT_EQ(tier_->stats().files_retired, 1u);
}

TEST_F(SsdTierTest, RemovesTheDeadBeforeItWrites) {
  Start();
  auto last = Written(0, kMiB);
  const uint64_t one = PayloadBytesOnDisk();
  for (uint64_t tag = 1; tag < 20; ++tag) {
    Erase(*last);
    last = Written(tag, kMiB);
    EXPECT_EQ(PayloadBytesOnDisk(), one);
  }
  EXPECT_EQ(Read(*last), absl::OkStatus());
}

TEST_F(SsdTierTest, SpaceIsBackThoughOthersRead) {
  Start();
  const auto stays = Written(0, 2 * kMiB);
  const uint64_t one = PayloadBytesOnDisk();
  std::atomic<bool> stop = false;
  std::atomic<int> wrong = 0;
  {
    ThreadPool readers(2);
    for (int i = 0; i < 2; ++i) {
      readers.Run([&] {
        do {
          wrong += !Read(*stays).ok();
        } while (!stop);
      });
    }
    for (uint64_t tag = 1; tag < 40; ++tag) {
      const auto goes = Written(tag, 256 * kKiB);
      Erase(*goes);
      tier_->Maintain();
      const uint64_t before = tier_->usage().backed_bytes;  // it may leave in between
      EXPECT_LE(PayloadBytesOnDisk(), std::max(before, tier_->usage().backed_bytes));
    }
    stop = true;
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(PayloadBytesOnDisk(), one);
  EXPECT_EQ(tier_->usage().backed_bytes, one);
}

TEST_F(SsdTierTest, SaysHowMuchASegmentTakesAtMost) {
  Start();
  const std::vector<std::pair<uint64_t, uint64_t>> shapes = {
      {1, 1}, {1, 100}, {100, 1}, {1000, 10}, {500, 5000}, {31, 2 * kMiB}, {1, 20 * kMiB}};
  for (const auto& [count, bytes] : shapes) {
    std::vector<std::unique_ptr<Part>> parts;
    std::vector<Part*> pointers;
    std::vector<WriteOp> ops;
    for (uint64_t i = 0; i < count; ++i) {
      parts.push_back(std::make_unique<Part>(i, bytes));
      pointers.push_back(parts.back().get());
      ops.push_back(parts.back()->op);
      ops.back().id.identity = parts.back()->identity;
      ops.back().from = parts.back()->content;
    }
    const uint64_t most = tier_->BytesFor(ops);
    const uint64_t before = tier_->usage().used_bytes;
    tier_->SetCapacity(64 * most + 64 * kMiB);
    ASSERT_EQ(tier_->BytesFor(ops), most);
    options_.capacity_bytes = 64 * most;
    if (most <= tier_->segment_bytes() || count == 1) {
      ASSERT_EQ(Write(pointers), absl::OkStatus());
      const uint64_t took = tier_->usage().used_bytes - before;
      EXPECT_LE(took, most) << count << " of " << bytes;
      EXPECT_GE(took + 8 * kKiB + count * 80, most) << count << " of " << bytes;
    } else {
      ADD_FAILURE() << count << " of " << bytes << " do not fit into a segment";
    }
  }
}

TEST_F(SsdTierTest, RefusesWhatHasNoRoom) {
  options_.capacity_bytes = 8 * kMiB;
  Start();
  EXPECT_EQ(tier_->segment_bytes(), kMiB);
  Part half(1, 600 * kKiB), other_half(2, 600 * kKiB);
  Part* const both[] = {&half, &other_half};
  EXPECT_EQ(Write(both).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Write(half), absl::OkStatus());
  Part larger_than_a_segment(3, 3 * kMiB), larger_than_all(4, 9 * kMiB);
  EXPECT_EQ(Write(larger_than_all).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Write(larger_than_a_segment), absl::OkStatus());

  std::vector<std::unique_ptr<Part>> fill;
  absl::Status status;
  for (uint64_t tag = 10; status.ok(); ++tag) {
    fill.push_back(std::make_unique<Part>(tag, 500 * kKiB));
    status = Write(*fill.back());
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_GT(tier_->usage().used_bytes, 8 * kMiB);
  EXPECT_LE(PayloadBytesOnDisk(), 8 * kMiB + 2 * kMiB);
  EXPECT_EQ(tier_->writable(), absl::OkStatus());
  Erase(larger_than_a_segment);
  EXPECT_EQ(Write(*fill.back()), absl::OkStatus());
  tier_->SetCapacity(2 * kMiB);
  EXPECT_EQ(Write(half).code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(SsdTierTest, SaysHowManyBlocksFit) {
  options_.capacity_bytes = 64 * kMiB;
  Start();
  const uint64_t parts[] = {20 * kKiB, 20 * kKiB};
  const uint64_t said = tier_->BlocksFor(parts, 64);
  EXPECT_GE(said, 64 * kMiB / (40 * kKiB) * 97 / 100);
  uint64_t fit = 0;
  while (tier_->usage().used_bytes <= 63 * kMiB) {  // in segments as full as can be
    std::vector<std::unique_ptr<Part>> segment;
    std::vector<Part*> pointers;
    for (uint64_t i = 0; i < 50; ++i) {
      segment.push_back(std::make_unique<Part>(2 * fit + i, 20 * kKiB));
      pointers.push_back(segment.back().get());
    }
    ASSERT_EQ(Write(pointers), absl::OkStatus());
    fit += 25;
  }
  EXPECT_NEAR(static_cast<double>(said), static_cast<double>(fit), 0.03 * static_cast<double>(fit));
  // Each record has the block's identity twice.
  EXPECT_NEAR(static_cast<double>(tier_->BlocksFor(parts, 8 * kKiB)),
              static_cast<double>(said) * 40 / 72, 0.03 * static_cast<double>(said));
  const uint64_t too_large[] = {65 * kMiB};
  EXPECT_EQ(tier_->BlocksFor(too_large, 64), 0u);
}

// --------------------------------------------------------------------------------------------------
// Restarts

TEST_F(SsdTierTest, ComesBackOldestFirst) {
  Start();
  std::map<uint64_t, std::unique_ptr<Part>> parts;
  for (uint64_t tag = 0; tag < 300; ++tag) parts[tag] = Written(tag, 100);
  for (uint64_t tag = 0; tag < 300; tag += 3) Erase(*parts[tag]);
  tier_->Maintain();
  const Depths found = Start();
  ASSERT_EQ(found.size(), 200u);
  uint64_t last = 0;
  for (const std::vector<uint64_t>& segment : found) {
    ASSERT_EQ(segment.size(), 1u);
    EXPECT_GT(segment[0], last);
    EXPECT_NE(segment[0] % 3, 0u);
    last = segment[0];
    EXPECT_EQ(Read(*parts[last]), absl::OkStatus());
  }
  EXPECT_EQ(Read(*Written(1000, 100)), absl::OkStatus());
}

TEST_F(SsdTierTest, WhatAKilledProcessWasWritingIsGone) {
  Start();
  const auto part = Written(1, 1000);
  fs::copy_file(NewestFile(), options_.directory + "/staging/new.sst");
  EXPECT_EQ(Start(), Depths({{1}}));
  EXPECT_EQ(PayloadBytesOnDisk(), tier_->usage().used_bytes);
  EXPECT_EQ(Read(*part), absl::OkStatus());
}

TEST_F(SsdTierTest, ForgetsForGood) {
  Start();
  Written(1, 1000, "model", "root");
  Written(2, 1000, "model", "other root");
  Written(3, 1000, "other model", "root");
  ASSERT_EQ(tier_->Forget(Digest128::Of("model"), FingerprintOf("root")), absl::OkStatus());
  Written(4, 1000, "model", "root");
  EXPECT_EQ(Start(), Depths({{2}, {3}, {4}}));
  ASSERT_EQ(tier_->Forget(Digest128::Of("model"), std::nullopt), absl::OkStatus());
  Written(5, 1000, "model", "root");
  EXPECT_EQ(Start(), Depths({{3}, {5}}));
  EXPECT_EQ(Start(), Depths({{3}, {5}}));
}

TEST_F(SsdTierTest, KeepsATombstoneAsLongAsItCanMatter) {
  Start();
  EXPECT_EQ(tier_->Forget(Digest128::Of("model"), std::nullopt), absl::OkStatus());
  EXPECT_EQ(PayloadFiles().size(), 0u);  // there was nothing
  const auto older = Written(1, 1000, "other model");
  for (int i = 0; i < 5; ++i) {
    ASSERT_EQ(tier_->Forget(Digest128::Of("model"), FingerprintOf("root")), absl::OkStatus());
  }
  const auto newer = Written(2, 1000, "other model");
  EXPECT_EQ(PayloadFiles().size(), 3u);  // the last of the five is enough
  const TierUsage usage = tier_->usage();
  EXPECT_EQ(PayloadBytesOnDisk(), usage.backed_bytes);
  EXPECT_LT(usage.used_bytes, usage.backed_bytes);
  Erase(*older);
  tier_->Maintain();
  EXPECT_EQ(PayloadFiles().size(), 1u);
  EXPECT_EQ(Start(), Depths({{2}}));
  EXPECT_EQ(tier_->usage().backed_bytes, tier_->usage().used_bytes);
}

// Its name is where the list of files is, so losing its file loses nothing.
TEST_F(SsdTierTest, ForgetsEvenWhenTheTombstonesFileIsLost) {
  Start();
  Written(1, 1000, "model");
  Written(2, 1000, "other model");
  ASSERT_EQ(tier_->Forget(Digest128::Of("model"), std::nullopt), absl::OkStatus());
  tier_.reset();
  fs::remove(NewestFile());
  EXPECT_EQ(Start(), Depths({{2}}));
}

// --------------------------------------------------------------------------------------------------
// Other versions

class SsdVersionsTest : public SsdTierTest {
 protected:
  // A file as a program would write it whose lists and heads have these versions.
  void AddFile(uint64_t batch, uint16_t list_version, uint16_t head_version) {
    Part part(batch, kMiB / 2);
    part.op.id.identity = part.identity;
    StoredPart stored{part.op.id, MakeLocation(batch, 0), part.content.size(), part.op.checksum};
    const std::string head =
        WithVersion(EncodeRecordHead(part.op.id, stored.bytes, part.op.checksum), head_version);
    RocksdbStore::NewFile file{BeginKey(batch), EndKey(batch), 1, nullptr, kMiB, ""};
    file.pair = [&](size_t) {
      return RocksdbStore::Pair{RecordKey(batch, 0),
                                head,
                                {reinterpret_cast<const char*>(part.content.data()), stored.bytes}};
    };
    file.list = WithVersion(EncodeSegmentList(batch, 0, {&stored, 1}), list_version);
    const auto store = RocksdbStore::Open({options_.directory, false, nullptr});
    ASSERT_EQ(store.status(), absl::OkStatus());
    ASSERT_EQ((*store)->AddFile(file).status(), absl::OkStatus());
  }
  static std::string WithVersion(std::string bytes, uint16_t version) {
    bytes[4] = static_cast<char>(version);
    return bytes;
  }
};

TEST_F(SsdVersionsTest, LeavesANewerFileAloneWhileThereIsRoom) {
  options_.capacity_bytes = 4 * kMiB;
  fs::create_directories(options_.directory);
  AddFile(1, kSsdFormatVersion + 1, kSsdFormatVersion + 1);
  AddFile(2, kSsdFormatVersion, kSsdFormatVersion);
  EXPECT_EQ(Start(), Depths({{2}}));
  EXPECT_EQ(PayloadFiles().size(), 2u);
  EXPECT_LT(tier_->usage().used_bytes, kMiB);
  EXPECT_GT(tier_->usage().backed_bytes, kMiB);
  std::vector<std::unique_ptr<Part>> parts;
  for (uint64_t tag = 10; tag < 15; ++tag) parts.push_back(Written(tag, kMiB / 2));
  EXPECT_EQ(PayloadFiles().size(), 7u);
  parts.push_back(Written(20, kMiB / 2));  // now there is none
  EXPECT_EQ(PayloadFiles().size(), 7u);
  EXPECT_EQ(tier_->usage().backed_bytes, tier_->usage().used_bytes);
  EXPECT_EQ(Start().size(), 7u);
  for (const auto& part : parts) EXPECT_EQ(Read(*part), absl::OkStatus());
}

TEST_F(SsdVersionsTest, DoesNotReadANewerRecord) {
  fs::create_directories(options_.directory);
  AddFile(1, kSsdFormatVersion, kSsdFormatVersion + 1);
  AddFile(2, kSsdFormatVersion, kSsdFormatVersion);
  EXPECT_EQ(Start(), Depths({{1}, {2}}));
  for (const uint64_t batch : {1, 2}) {
    Part part(batch, kMiB / 2);
    part.op.location = MakeLocation(batch, 0);
    EXPECT_EQ(Read(part).code(), batch == 1 ? absl::StatusCode::kDataLoss : absl::StatusCode::kOk);
  }
}

// --------------------------------------------------------------------------------------------------
// Damage

TEST_F(SsdTierTest, LosesOnlyTheFilesThatAreDamaged) {
  Start();
  std::vector<std::unique_ptr<Part>> parts;
  std::vector<fs::path> files;
  for (uint64_t tag = 0; tag < 6; ++tag) {
    parts.push_back(Written(tag, 100 * kKiB));
    files.push_back(NewestFile());
  }
  tier_.reset();
  fs::remove(files[0]);
  fs::resize_file(files[1], 50 * kKiB);
  fs::resize_file(files[2], 0);
  const size_t list = Contents(files[3]).find("KVTS");
  ASSERT_NE(list, std::string::npos);
  Overwrite(files[3], list + 60, "?");
  Overwrite(files[4], 50 * kKiB, "?");
  EXPECT_EQ(Start(), Depths({{4}, {5}}));
  EXPECT_EQ(Read(*parts[4]).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(Read(*parts[5]), absl::OkStatus());
  EXPECT_EQ(tier_->stats().checksum_failures, 1u);
  EXPECT_EQ(Read(*Written(10, kMiB)), absl::OkStatus());
  EXPECT_EQ(PayloadFiles().size(), 3u);
  EXPECT_EQ(Start(), Depths({{4}, {5}, {10}}));
}

TEST_F(SsdTierTest, MissesWhereAFileGoesWhileItServes) {
  Start();
  const auto lost = Written(1, 100 * kKiB);
  const fs::path file = NewestFile();
  const auto stays = Written(2, 100 * kKiB);
  fs::resize_file(file, 4 * kKiB);
  EXPECT_EQ(Read(*lost).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(Read(*lost).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(Read(*stays), absl::OkStatus());
  EXPECT_EQ(tier_->stats().checksum_failures, 2u);
}

class SsdDamageTest : public SsdTierTest {
 protected:
  std::vector<std::string> SetAside() const {
    std::vector<std::string> names;
    for (const fs::directory_entry& entry : fs::directory_iterator(parent_)) {
      if (entry.path().filename() != "ssd") names.push_back(entry.path().filename());
    }
    return names;
  }
  fs::path Manifest() const {
    for (const fs::directory_entry& entry : fs::directory_iterator(options_.directory)) {
      if (entry.path().filename().string().starts_with("MANIFEST")) return entry.path();
    }
    return {};
  }
};

TEST_F(SsdDamageTest, SetsADamagedDatabaseAsideAndStartsEmpty) {
  const std::vector<std::function<void()>> damages = {
      [this] { fs::remove(options_.directory + "/CURRENT"); },
      [this] { fs::resize_file(Manifest(), 0); },
      [this] { fs::remove(Manifest()); },
      [this] { Overwrite(Manifest(), 20, "damaged"); },
      [this] { std::ofstream(options_.directory + "/CURRENT") << "nonsense"; },
  };
  for (size_t i = 0; i < damages.size(); ++i) {
    Start();
    Written(1, 1000);
    tier_.reset();
    damages[i]();
    EXPECT_THAT(Start(), testing::IsEmpty()) << i;
    const std::string name = absl::StrCat("ssd.damaged-", i + 1);
    EXPECT_THAT(SetAside(), testing::ElementsAre(name));  // and none before it
    EXPECT_THAT(PayloadFiles(), testing::IsEmpty());
    const auto part = Written(2, 1000);
    EXPECT_EQ(Start(), Depths({{2}})) << i;
    EXPECT_EQ(Read(*part), absl::OkStatus());
    Erase(*part);
    tier_->Maintain();
  }
}

// What a power cut leaves of a change that was not synced yet.
TEST_F(SsdDamageTest, OnlyTheLastChangeOfTheListIsLostWhenItIsTorn) {
  Start();
  for (uint64_t tag = 1; tag <= 3; ++tag) Written(tag, 1000);
  tier_.reset();
  Overwrite(Manifest(), fs::file_size(Manifest()) - 20, std::string(10, '\0'));
  EXPECT_EQ(Start(), Depths({{1}, {2}}));
  EXPECT_THAT(SetAside(), testing::IsEmpty());
  const auto part = Written(4, 1000);
  EXPECT_EQ(Start(), Depths({{1}, {2}, {4}}));
  EXPECT_EQ(Read(*part), absl::OkStatus());
}

TEST_F(SsdDamageTest, TheHostsErrorsAreNoDamage) {
  Start();
  const auto part = Written(1, 1000);
  const absl::Status second = SsdTier::Open(options_).status();
  EXPECT_EQ(second.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(second.message()), testing::HasSubstr(options_.directory));
  EXPECT_EQ(Read(*part), absl::OkStatus());
  EXPECT_THAT(SetAside(), testing::IsEmpty());
  EXPECT_EQ(Start(), Depths({{1}}));

  std::ofstream(parent_ + "/file") << "x";
  SsdTierOptions below_a_file = options_;
  below_a_file.directory = parent_ + "/file/ssd";
  const absl::Status no_directory = SsdTier::Open(below_a_file).status();
  EXPECT_EQ(no_directory.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(no_directory.message()), testing::HasSubstr(below_a_file.directory));
}

// --------------------------------------------------------------------------------------------------
// States

TEST_F(SsdTierTest, ReadsOnWhenItCannotWriteAndGetsWell) {
  Start();
  const auto part = Written(1, 100 * kKiB);
  Part later(2, 1000);
  const fs::path staging = options_.directory + "/staging";
  fs::remove(staging);
  std::ofstream(staging) << "not a folder";
  EXPECT_EQ(Write(later).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(tier_->stats().state, SsdState::kReadOnly);
  EXPECT_EQ(tier_->stats().write_errors, 1u);
  EXPECT_EQ(tier_->writable().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(tier_->writable().message()), testing::HasSubstr(options_.directory));
  EXPECT_EQ(Read(*part), absl::OkStatus());

  clock_.Advance(std::chrono::seconds(10));
  tier_->Maintain();
  EXPECT_EQ(tier_->stats().state, SsdState::kReadOnly);
  fs::remove(staging);  // the tier makes it again
  tier_->Maintain();    // not yet: it has only just tried
  EXPECT_EQ(tier_->stats().state, SsdState::kReadOnly);
  clock_.Advance(std::chrono::seconds(5));
  tier_->Maintain();
  EXPECT_EQ(tier_->writable(), absl::OkStatus());
  EXPECT_EQ(Write(later), absl::OkStatus());
  EXPECT_EQ(Start(), Depths({{1}, {2}}));
}

TEST_F(SsdTierTest, CountsWhatItDoes) {
  Start();
  Part a(1, 1000), b(2, 3000);
  Part* const both[] = {&a, &b};
  ASSERT_EQ(Write(both), absl::OkStatus());
  Erase(b);
  EXPECT_EQ(Read(a), absl::OkStatus());
  EXPECT_EQ(Read(b).code(), absl::StatusCode::kNotFound);
  const SsdTierStats stats = tier_->stats();
  EXPECT_EQ(stats.state, SsdState::kServing);
  EXPECT_EQ(stats.files, 1u);
  EXPECT_EQ(stats.live_records, 1u);
  EXPECT_EQ(stats.dead_records, 1u);
  EXPECT_EQ(stats.payload_bytes_written, 4000u);
  EXPECT_EQ(stats.file_bytes_written, PayloadBytesOnDisk());
  EXPECT_EQ(stats.read_errors, 0u);
  EXPECT_EQ(stats.read_latency.count, 2u);
}

// --------------------------------------------------------------------------------------------------
// Looking from outside

TEST_F(SsdTierTest, CanBeInspectedWithoutATrace) {
  Start();
  const auto good = Written(1, 1000);
  const auto bad = Written(2, 100 * kKiB);
  const fs::path damaged = NewestFile();
  ASSERT_EQ(tier_->Forget(Digest128::Of("x"), std::nullopt), absl::OkStatus());
  tier_.reset();
  Overwrite(damaged, 50 * kKiB, "?");
  const auto snapshot = [this] {
    std::map<std::string, std::string> files;
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(parent_)) {
      files[entry.path()] = entry.is_regular_file() ? Contents(entry.path()) : "";
    }
    return files;
  };
  const auto before = snapshot();
  const auto inspector = SsdInspector::Open(options_.directory);
  ASSERT_EQ(inspector.status(), absl::OkStatus());
  std::vector<std::string> seen;
  (*inspector)->VisitFiles([&](const SsdFileInfo& file, std::span<const StoredPart> parts) {
    EXPECT_EQ(file.status, absl::OkStatus());
    EXPECT_GT(file.bytes, 0u);
    if (file.forgets) seen.push_back("forgets " + file.forgets->model.ToHex());
    for (const StoredPart& part : parts) {
      EXPECT_GT(file.created_unix_seconds, 1700000000);
      seen.push_back(absl::StrCat(part.id.depth, (*inspector)->Verify(part).ok() ? " ok" : " bad"));
    }
  });
  EXPECT_THAT(seen, testing::ElementsAre("1 ok", "2 bad", "forgets " + Digest128::Of("x").ToHex()));
  EXPECT_EQ(snapshot(), before);
  EXPECT_EQ(SsdInspector::Open(parent_ + "/none").status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace kvtier
