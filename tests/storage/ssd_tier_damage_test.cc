// The SSD tier over files that are not what was written: it serves what is right, and misses the
// rest.
#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>

#include "storage/record_codec.h"
#include "storage/ssd_inspect.h"
#include "tests/support/seed.h"
#include "tests/support/ssd_fixture.h"

namespace kvtier {
namespace {

namespace fs = std::filesystem;

std::string BytesIn(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// In place, so that who has the file open sees it.
void Overwrite(const std::string& path, const std::string& bytes) {
  std::fstream out(path, std::ios::binary | std::ios::in | std::ios::out);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  KVTIER_CHECK(out.good());
}

std::string WithBitTurned(std::string bytes, size_t at, int bit) {
  bytes[at] = static_cast<char>(bytes[at] ^ (1 << bit));
  return bytes;
}

// From the end of a table file, docs/FORMATS.md.
constexpr size_t kFormatVersionFromEnd = 12;
constexpr size_t kFooterBytes = 53;
constexpr size_t kTrailerBytes = 5;

// The byte whose top bit tells how the block of properties is to be looked through. It is the
// block's last; the metaindex follows, and the footer begins with where that is.
size_t TypeOfPropertiesAt(const std::string& bytes) {
  size_t metaindex = 0;
  size_t at = bytes.size() - kFooterBytes + 1;
  for (int shift = 0;; shift += 7, ++at) {
    metaindex |= size_t{static_cast<uint8_t>(bytes[at]) & 0x7Fu} << shift;
    if ((static_cast<uint8_t>(bytes[at]) & 0x80u) == 0) break;
  }
  return metaindex - kTrailerBytes - 1;
}

std::string TextOf(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Tags 1 to 3 are the first segment, 4 to 6 the second, and so on; each is a file.
class SsdDamageTest : public SsdFixture {
 protected:
  void WriteSegments(int segments) {
    ASSERT_EQ(Open(), absl::OkStatus());
    for (int i = 0; i < segments; ++i) {
      ASSERT_EQ(Write(), absl::OkStatus());
      files_.push_back(PayloadFiles().back());
      written_.push_back({next_tag_ - 3, next_tag_ - 2, next_tag_ - 1});
    }
    ExpectAllRight();
  }
  uint64_t Failures() const {
    const SsdTierStats stats = tier_->stats();
    return stats.checksum_failures + stats.read_errors;
  }
  // That all but the first segment is there and right, and that what comes is taken.
  void ExpectOthersRightAndWritable() {
    for (size_t i = 1; i < written_.size(); ++i) EXPECT_EQ(CountMissing(written_[i]), 0u);
    EXPECT_EQ(Write(), absl::OkStatus());
    EXPECT_EQ(CountMissing({next_tag_ - 3, next_tag_ - 2, next_tag_ - 1}), 0u);
  }

  std::vector<std::string> files_;              // by segment
  std::vector<std::vector<uint64_t>> written_;  // their tags
};

TEST_F(SsdDamageTest, MissesWhateverByteIsReadWrong) {
  part_bytes_ = 200;
  WriteSegments(2);
  const std::string name = fs::path(files_[0]).filename().string();
  uint64_t misses = 0;
  for (uint64_t at = 0; at < fs::file_size(files_[0]); ++at) {
    fs_->FlipOnRead(name, at);
    const uint64_t failures = Failures();
    const uint64_t missing = CountMissing(written_[0]);
    EXPECT_EQ(Failures() - failures, missing);
    EXPECT_EQ(CountMissing(written_[1]), 0u);
    misses += missing;
    fs_->FlipNothing();
  }
  EXPECT_EQ(CountMissing(written_[0]), 0u);
  EXPECT_GE(misses, BytesOf(1) + BytesOf(2) + BytesOf(3));
}

// The list of the file, its index, its properties and its footer count only when it is opened.
TEST_F(SsdDamageTest, StartsOverWhateverByteIsWrongOnDisk) {
  constexpr uint64_t kStride = 16;
  part_bytes_ = 200;
  WriteSegments(2);
  const std::string right = BytesIn(files_[0]);
  uint64_t misses = 0;
  for (uint64_t at = TestSeed() % kStride; at < right.size(); at += kStride) {
    SCOPED_TRACE(absl::StrCat("byte ", at));
    Close();
    std::string wrong = right;
    wrong[at] = static_cast<char>(~wrong[at]);
    Overwrite(files_[0], wrong);
    ASSERT_EQ(Open(), absl::OkStatus());
    misses += CountMissing(written_[0]);
    EXPECT_EQ(CountMissing(written_[1]), 0u);
    Overwrite(files_[0], right);
  }
  EXPECT_GT(misses, (BytesOf(1) + BytesOf(2) + BytesOf(3)) / kStride / 2);
  ASSERT_EQ(Open(), absl::OkStatus());
  EXPECT_EQ(CountMissing(written_[0]), 0u);
  EXPECT_THAT(SetAside(), testing::IsEmpty());
}

// What a lost write leaves in a file that is written over another: blocks that are whole, but that
// one's. Here from any block to any other.
TEST_F(SsdDamageTest, MissesWhereTheBytesOfAnOlderFileAreLeft) {
  constexpr uint64_t kStep = 4096;
  part_bytes_ = 8000;  // each record has a block of its own
  next_tag_ = 15;
  WriteSegments(1);
  next_tag_ = 22;  // identities and parts of the same sizes again
  WriteSegments(2);
  const std::string older = BytesIn(files_[0]), right = BytesIn(files_[1]);
  ASSERT_EQ(older.size(), right.size());
  uint64_t misses = 0;
  for (uint64_t from = 0; from < right.size(); from += kStep) {
    for (uint64_t to = from + kStep; to <= right.size() + kStep; to += kStep) {
      SCOPED_TRACE(absl::StrCat("bytes ", from, " to ", to));
      Close();
      Overwrite(files_[1], std::string(right).replace(from, to - from, older, from, to - from));
      ASSERT_EQ(Open(), absl::OkStatus());
      misses += CountMissing(written_[1]);
      EXPECT_EQ(CountMissing(written_[0]), 0u);
      EXPECT_EQ(CountMissing(written_[2]), 0u);
    }
  }
  EXPECT_GT(misses, right.size() / kStep);
  Overwrite(files_[1], right);
  Close();
  ASSERT_EQ(Open(), absl::OkStatus());
  EXPECT_EQ(CountMissing(written_[1]), 0u);
}

// The ends of the blocks of index and properties, the metaindex and the footer. That what is found
// wrong there is all of it, down to the last bit, is sst_tail_test's to say.
TEST_F(SsdDamageTest, StartsOverWhateverBitIsWrongAtTheEndOfAFile) {
  constexpr size_t kEndBytes = 128;
  part_bytes_ = 200;
  WriteSegments(2);
  const std::string right = BytesIn(files_[0]);
  uint64_t misses = 0;
  for (size_t at = right.size() - kEndBytes; at < right.size(); ++at) {
    for (const int bit : {0, 7}) {
      SCOPED_TRACE(absl::StrCat("bit ", bit, " of byte ", at));
      Close();
      Overwrite(files_[0], WithBitTurned(right, at, bit));
      ASSERT_EQ(Open(), absl::OkStatus());
      misses += CountMissing(written_[0]);
      EXPECT_EQ(CountMissing(written_[1]), 0u);
      Overwrite(files_[0], right);
    }
  }
  EXPECT_GT(misses, 2 * kEndBytes);  // of three times that; nobody reads the footer's padding
  ASSERT_EQ(Open(), absl::OkStatus());
  EXPECT_EQ(CountMissing(written_[0]), 0u);
}

// RocksDB opens 16 files at the start, the others when they are first read.
TEST_F(SsdDamageTest, MissesAFileThatWasDamagedBeforeItsFirstRead) {
  constexpr size_t kFiles = 20;
  WriteSegments(kFiles);
  ASSERT_EQ(Start(), absl::OkStatus());
  for (const std::string& file : files_) {
    const std::string right = BytesIn(file);
    Overwrite(file, WithBitTurned(right, TypeOfPropertiesAt(right), 7));
  }
  uint64_t missing = 0;
  for (const std::vector<uint64_t>& tags : written_) missing += CountMissing(tags);
  EXPECT_GT(missing, 0u);
  EXPECT_LT(missing, 3 * kFiles);
  EXPECT_EQ(Failures(), missing);
  EXPECT_EQ(Write(), absl::OkStatus());
  EXPECT_EQ(CountMissing({next_tag_ - 3, next_tag_ - 2, next_tag_ - 1}), 0u);
}

TEST_F(SsdDamageTest, LeavesATableOfAnotherFormatAlone) {
  WriteSegments(2);
  Close();
  const std::string right = BytesIn(files_[0]);
  std::string other = right;
  other[right.size() - kFormatVersionFromEnd] = 6;
  Overwrite(files_[0], other);
  ASSERT_EQ(Open(), absl::OkStatus());
  EXPECT_EQ(CountMissing(written_[0]), 3u);
  ExpectOthersRightAndWritable();
  tier_->Maintain();
  Close();
  ASSERT_EQ(BytesIn(files_[0]), other);
  Overwrite(files_[0], right);
  ASSERT_EQ(Open(), absl::OkStatus());
  EXPECT_EQ(CountMissing(written_[0]), 0u);
}

TEST_F(SsdDamageTest, InspectTellsOfADamagedTailAndLeavesItThere) {
  WriteSegments(2);
  Close();
  const std::string right = BytesIn(files_[0]);
  const std::string wrong = WithBitTurned(right, TypeOfPropertiesAt(right), 7);
  Overwrite(files_[0], wrong);
  const auto inspector = SsdInspector::Open(options_.directory);
  ASSERT_EQ(inspector.status(), absl::OkStatus());
  std::vector<absl::StatusCode> codes;
  std::vector<size_t> records;
  (*inspector)->VisitFiles([&](const SsdFileInfo& file, std::span<const StoredPart> parts) {
    codes.push_back(file.status.code());
    records.push_back(parts.size());
  });
  EXPECT_THAT(codes, testing::ElementsAre(absl::StatusCode::kDataLoss, absl::StatusCode::kOk));
  EXPECT_THAT(records, testing::ElementsAre(0u, 3u));
  EXPECT_EQ(BytesIn(files_[0]), wrong);
}

// Where the head of a record and its payload are in a file.
struct Places {
  size_t head;
  size_t payload;
};
Places PlacesOf(const std::string& bytes, uint64_t tag, uint64_t payload_bytes) {
  const size_t payload = bytes.find(TextOf(ContentOf(tag, payload_bytes)));
  const size_t head = bytes.rfind("KVTR", payload);
  KVTIER_CHECK(payload != std::string::npos && head != std::string::npos);
  return {head, payload};
}

// Valid bytes of another part of the same size: in the same file, and in another.
TEST_F(SsdDamageTest, MissesTwoRecordsThatWereSwapped) {
  next_tag_ = 14;  // tags of two digits: identities have one length
  ASSERT_EQ(Open(), absl::OkStatus());
  ASSERT_EQ(Write(8), absl::OkStatus());
  const std::string first_file = PayloadFiles().back();
  ASSERT_EQ(Write(8), absl::OkStatus());
  const std::string second_file = PayloadFiles().back();
  const uint64_t bytes = BytesOf(14);
  const uint64_t head_bytes = kRecordHeaderBytes + IdentityOf(14).size();
  struct Swap {
    uint64_t with;
    std::string with_file;
  };
  for (const Swap& swap : {Swap{21, first_file}, Swap{28, second_file}}) {
    ASSERT_EQ(BytesOf(swap.with), bytes);
    for (const bool heads : {true, false}) {
      for (const bool payloads : {true, false}) {
        SCOPED_TRACE(absl::StrCat(swap.with, heads ? " heads" : "", payloads ? " payloads" : ""));
        const std::string a = BytesIn(first_file);
        const std::string b = BytesIn(swap.with_file);
        const Places at_a = PlacesOf(a, 14, bytes);
        const Places at_b = PlacesOf(b, swap.with, bytes);
        const bool same = swap.with_file == first_file;
        std::string wrong_a = a;
        std::string wrong_b = b;
        std::string& into_b = same ? wrong_a : wrong_b;
        if (heads) {
          wrong_a.replace(at_a.head, head_bytes, b, at_b.head, head_bytes);
          into_b.replace(at_b.head, head_bytes, a, at_a.head, head_bytes);
        }
        if (payloads) {
          wrong_a.replace(at_a.payload, bytes, b, at_b.payload, bytes);
          into_b.replace(at_b.payload, bytes, a, at_a.payload, bytes);
        }
        Overwrite(first_file, wrong_a);
        if (!same) Overwrite(swap.with_file, wrong_b);
        const uint64_t failures = tier_->stats().checksum_failures;
        EXPECT_EQ(CountMissing({14, swap.with}), heads || payloads ? 2u : 0u);
        EXPECT_EQ(tier_->stats().checksum_failures - failures, heads || payloads ? 2u : 0u);
        EXPECT_EQ(CountMissing({15, 16, 20, 22, 27, 29}), 0u);
        Overwrite(first_file, a);
        if (!same) Overwrite(swap.with_file, b);
      }
    }
  }
  ExpectAllRight();
}

TEST_F(SsdDamageTest, MissesAFileThatIsAnothers) {
  WriteSegments(3);
  Close();
  fs::copy_file(files_[1], files_[0], fs::copy_options::overwrite_existing);
  ASSERT_EQ(Open(), absl::OkStatus());
  EXPECT_EQ(CountMissing(written_[0]), 3u);
  ExpectOthersRightAndWritable();
}

// What becomes of the first file.
struct Damage {
  const char* name;
  std::function<void(const std::string& path)> inflict;
};
const Damage kDamages[] = {
    {"is gone", [](const std::string& path) { fs::remove(path); }},
    {"is empty", [](const std::string& path) { fs::resize_file(path, 0); }},
    {"is a byte short",
     [](const std::string& path) { fs::resize_file(path, fs::file_size(path) - 1); }},
    {"is cut in half",
     [](const std::string& path) { fs::resize_file(path, fs::file_size(path) / 2); }},
    {"is a byte long",
     [](const std::string& path) { fs::resize_file(path, fs::file_size(path) + 1); }},
    {"is zeros",
     [](const std::string& path) { Overwrite(path, std::string(fs::file_size(path), '\0')); }},
    {"is a folder",
     [](const std::string& path) {
       fs::remove(path);
       fs::create_directory(path);
     }},
};

TEST_F(SsdDamageTest, StartsWithoutAFileThat) {
  for (const Damage& damage : kDamages) {
    SCOPED_TRACE(damage.name);
    Close();
    fs::remove_all(options_.directory);
    files_.clear();
    written_.clear();
    WriteSegments(3);
    Close();
    damage.inflict(files_[0]);
    ASSERT_EQ(Open(), absl::OkStatus());
    EXPECT_EQ(CountMissing(written_[0]), 3u);
    ExpectOthersRightAndWritable();
    EXPECT_EQ(tier_->writable(), absl::OkStatus());
    // The loss does not last: neither its space nor its name.
    ASSERT_EQ(Open(), absl::OkStatus());
    ExpectAllRight();
    EXPECT_EQ(known_.size(), 9u);
    EraseAll();
    tier_->Maintain();
    EXPECT_EQ(tier_->writable(), absl::OkStatus());
    EXPECT_EQ(tier_->usage().used_bytes, 0u);
    EXPECT_EQ(tier_->usage().backed_bytes, 0u);
    EXPECT_THAT(SetAside(), testing::IsEmpty());
  }
}

// Found out by reading, as it happened while the tier was at work.
TEST_F(SsdDamageTest, GoesOnWithoutAFileThat) {
  for (const Damage& damage : kDamages) {
    SCOPED_TRACE(damage.name);
    Close();
    fs::remove_all(options_.directory);
    files_.clear();
    written_.clear();
    WriteSegments(3);
    damage.inflict(files_[0]);
    CountMissing(written_[0]);  // an open file may still be whole
    ExpectOthersRightAndWritable();
    Erase(written_[0]);
    tier_->Maintain();
    ExpectOthersRightAndWritable();
    EXPECT_EQ(tier_->writable(), absl::OkStatus());
    ASSERT_EQ(Open(), absl::OkStatus());
    ExpectOthersRightAndWritable();
  }
}

// What becomes of the list of files.
struct Loss {
  const char* name;
  std::function<void(const fs::path& directory)> inflict;
};
fs::path ManifestIn(const fs::path& directory) {
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    if (entry.path().filename().string().starts_with("MANIFEST")) return entry.path();
  }
  return {};
}
const Loss kLosses[] = {
    {"CurrentGone", [](const fs::path& directory) { fs::remove(directory / "CURRENT"); }},
    {"CurrentEmpty", [](const fs::path& directory) { fs::resize_file(directory / "CURRENT", 0); }},
    {"CurrentNonsense",
     [](const fs::path& directory) { Overwrite((directory / "CURRENT").string(), "nonsense\n"); }},
    {"ManifestGone", [](const fs::path& directory) { fs::remove(ManifestIn(directory)); }},
    {"ManifestEmpty", [](const fs::path& directory) { fs::resize_file(ManifestIn(directory), 0); }},
    {"ManifestZeros",
     [](const fs::path& directory) {
       const fs::path manifest = ManifestIn(directory);
       Overwrite(manifest.string(), std::string(fs::file_size(manifest), '\0'));
     }},
    {"ManifestNonsense",
     [](const fs::path& directory) {
       const fs::path manifest = ManifestIn(directory);
       Overwrite(manifest.string(), std::string(fs::file_size(manifest), 'x'));
     }},
};

class SsdLossTest : public SsdFixture, public testing::WithParamInterface<Loss> {};

TEST_P(SsdLossTest, SetsADamagedDatabaseAsideAndStartsEmpty) {
  ASSERT_EQ(Open(), absl::OkStatus());
  for (int i = 0; i < 3; ++i) ASSERT_EQ(Write(), absl::OkStatus());
  for (int round = 1; round <= 2; ++round) {  // what was set aside before makes room
    Close();
    GetParam().inflict(options_.directory);
    testing::internal::CaptureStderr();
    const absl::Status opened = Open();
    const std::string log = testing::internal::GetCapturedStderr();
    ASSERT_EQ(opened, absl::OkStatus());
    EXPECT_TRUE(known_.empty());
    EXPECT_EQ(tier_->usage().used_bytes, 0u);
    ASSERT_EQ(SetAside().size(), 1u);
    EXPECT_THAT(log, testing::HasSubstr(SetAside()[0]));
    EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << log;
    EXPECT_EQ(Write(), absl::OkStatus());
    ExpectAllRight();
    ASSERT_EQ(Open(), absl::OkStatus());
    EXPECT_EQ(known_.size(), 3u);
    ExpectAllRight();
  }
}

INSTANTIATE_TEST_SUITE_P(SsdTier, SsdLossTest, testing::ValuesIn(kLosses),
                         [](const testing::TestParamInfo<Loss>& info) { return info.param.name; });

}  // namespace
}  // namespace kvtier
