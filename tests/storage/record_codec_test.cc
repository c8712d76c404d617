#include "storage/record_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>

#include "tests/support/seed.h"

namespace kvtier {
namespace {

PartIdentity MakeId(std::string_view identity) {
  PartIdentity id;
  id.model = Digest128::Of("model");
  id.root = FingerprintOf("root");
  id.key = Digest128::Of("key");
  id.parent = Digest128::Of("parent");
  id.identity = identity;
  id.depth = 70000;
  id.part = 5;
  id.part_count = 8;
  id.carried = 3;
  return id;
}

// `count` parts whose identities and namespaces differ; views into `identities`.
std::vector<StoredPart> MakeParts(uint64_t batch, uint32_t count,
                                  std::vector<std::string>* identities) {
  std::vector<StoredPart> parts(count);
  identities->clear();
  for (uint32_t i = 0; i < count; ++i) identities->push_back(std::string(i % 7, 'i') + "dentity");
  for (uint32_t i = 0; i < count; ++i) {
    parts[i] = {MakeId((*identities)[i]), MakeLocation(batch, i), 100 + i, uint64_t{i} << 40};
    parts[i].id.depth = i;
    parts[i].id.root = FingerprintOf(i % 3 == 0 ? "one" : "another");
  }
  return parts;
}

void ExpectSame(const PartIdentity& a, const PartIdentity& b) {
  EXPECT_EQ(CheckSamePart(a, b), absl::OkStatus());
  EXPECT_EQ(a.depth, b.depth);
  EXPECT_EQ(a.carried, b.carried);
}

// Bytes in an allocation of their own length, so that a read past them is found.
class Exact {
 public:
  explicit Exact(std::string_view bytes) : bytes_(new char[bytes.size()]), size_(bytes.size()) {
    if (size_ > 0) std::memcpy(bytes_.get(), bytes.data(), size_);
  }
  std::string_view view() const { return {bytes_.get(), size_}; }
  bool Has(std::string_view part) const {
    return part.empty() ||
           (part.data() >= bytes_.get() && part.data() + part.size() <= bytes_.get() + size_);
  }

 private:
  const std::unique_ptr<char[]> bytes_;
  const size_t size_;
};

bool HeadIsAccepted(std::string_view bytes) {
  const Exact exact(bytes);
  const absl::StatusOr<RecordHead> head = DecodeRecordHead(exact.view());
  if (head.ok()) {
    EXPECT_TRUE(exact.Has(head->id.identity));
  }
  return head.ok();
}

bool ListIsAccepted(std::string_view bytes) {
  const Exact exact(bytes);
  const absl::StatusOr<SegmentList> list = DecodeSegmentList(exact.view());
  if (!list.ok()) return false;
  for (const StoredPart& part : list->parts) EXPECT_TRUE(exact.Has(part.id.identity));
  return true;
}

// The list with its last 8 bytes set right for what is before them.
std::string WithChecksum(std::string list) {
  const size_t at = list.size() - sizeof(uint64_t);
  const uint64_t checksum = PayloadChecksum(list.data(), at);
  std::memcpy(list.data() + at, &checksum, sizeof(checksum));
  return list;
}

TEST(RecordHeadTest, ComesBack) {
  for (const std::string& identity :
       {std::string(), std::string("tokens"), std::string(5000, 'x')}) {
    const std::string bytes = EncodeRecordHead(MakeId(identity), 1 << 20, 0x1122334455667788);
    EXPECT_EQ(bytes.size(), kRecordHeaderBytes + identity.size());
    const auto head = DecodeRecordHead(bytes);
    ASSERT_EQ(head.status(), absl::OkStatus());
    ExpectSame(head->id, MakeId(identity));
    EXPECT_EQ(head->payload_bytes, 1u << 20);
    EXPECT_EQ(head->checksum, 0x1122334455667788u);
  }
}

// docs/FORMATS.md gives these places.
TEST(RecordHeadTest, HasItsFieldsWhereTheyAreDocumented) {
  const std::string bytes = EncodeRecordHead(MakeId("tokens"), 0x0102030405060708, 0x11);
  EXPECT_EQ(bytes.substr(0, 8), std::string("KVTR\x01\0\0\x03", 8));
  EXPECT_EQ(bytes.substr(8, 16), Digest128::Of("model").ToBytes());
  EXPECT_EQ(bytes.substr(56, 16), Digest128::Of("key").ToBytes());
  EXPECT_EQ(bytes.substr(72, 16), Digest128::Of("parent").ToBytes());
  EXPECT_EQ(bytes.substr(88, 16), std::string("\x70\x11\x01\0\x05\0\x08\0\x06\0\0\0\0\0\0\0", 16));
  EXPECT_EQ(bytes.substr(104, 9), std::string("\x08\x07\x06\x05\x04\x03\x02\x01\x11", 9));
  EXPECT_EQ(bytes.substr(kRecordHeaderBytes), "tokens");
}

TEST(RecordHeadTest, EveryFlippedBitAndEveryCutIsSeen) {
  const std::string bytes = EncodeRecordHead(MakeId("some tokens"), 4096, 42);
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    std::string flipped = bytes;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    ASSERT_FALSE(HeadIsAccepted(flipped)) << bit;
  }
  for (size_t length = 0; length < bytes.size(); ++length) {
    ASSERT_FALSE(HeadIsAccepted(bytes.substr(0, length))) << length;
  }
  EXPECT_FALSE(HeadIsAccepted(bytes + "x"));
  EXPECT_TRUE(HeadIsAccepted(bytes));
}

TEST(RecordHeadTest, NewerVersionsAreToldFromDamage) {
  std::string bytes = EncodeRecordHead(MakeId("tokens"), 1, 1);
  bytes[4] = static_cast<char>(kSsdFormatVersion + 1);
  EXPECT_EQ(DecodeRecordHead(bytes).status().code(), absl::StatusCode::kUnimplemented);
  bytes[4] = 0;
  EXPECT_EQ(DecodeRecordHead(bytes).status().code(), absl::StatusCode::kDataLoss);
}

TEST(SegmentListTest, ComesBack) {
  std::vector<std::string> identities;
  for (const uint32_t count : {0u, 1u, 2u, 500u}) {
    const std::vector<StoredPart> parts = MakeParts(9, count, &identities);
    const std::string bytes = EncodeSegmentList(9, 1234567890, parts);
    const auto list = DecodeSegmentList(bytes);
    ASSERT_EQ(list.status(), absl::OkStatus());
    EXPECT_EQ(list->batch, 9u);
    EXPECT_EQ(list->created_unix_seconds, 1234567890);
    ASSERT_EQ(list->parts.size(), count);
    for (uint32_t i = 0; i < count; ++i) {
      ExpectSame(list->parts[i].id, parts[i].id);
      EXPECT_EQ(list->parts[i].location, parts[i].location);
      EXPECT_EQ(list->parts[i].bytes, parts[i].bytes);
      EXPECT_EQ(list->parts[i].checksum, parts[i].checksum);
    }
  }
}

TEST(SegmentListTest, TakesTheSpaceThatIsSaid) {
  std::vector<std::string> identities;
  const std::vector<StoredPart> parts = MakeParts(1, 50, &identities);
  uint64_t bytes = kListOverheadBytes + 2 * kListNameBytes + 50 * kListRecordBytes;
  for (const std::string& identity : identities) bytes += identity.size();
  EXPECT_EQ(EncodeSegmentList(1, 0, parts).size(), bytes);
}

TEST(SegmentListTest, EveryFlippedBitAndEveryCutIsSeen) {
  std::vector<std::string> identities;
  const std::string bytes = EncodeSegmentList(3, 1, MakeParts(3, 4, &identities));
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    std::string flipped = bytes;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    ASSERT_FALSE(ListIsAccepted(flipped)) << bit;
  }
  for (size_t length = 0; length < bytes.size(); ++length) {
    ASSERT_FALSE(ListIsAccepted(bytes.substr(0, length))) << length;
  }
  EXPECT_TRUE(ListIsAccepted(bytes));
}

// Even when the checksum is right, as in a list that was written wrong.
TEST(SegmentListTest, NumbersOutOfRangeLeadNowhere) {
  std::vector<std::string> identities;
  const std::string bytes = EncodeSegmentList(3, 1, MakeParts(3, 40, &identities));
  std::mt19937_64 random(TestSeed());
  ASSERT_TRUE(ListIsAccepted(WithChecksum(bytes)));
  for (int i = 0; i < 20000; ++i) {
    std::string changed = bytes;
    const size_t at = random() % 3 == 0 ? 8 + random() % 24 : 6 + random() % (changed.size() - 14);
    const uint32_t value = static_cast<uint32_t>(random() % 2 == 0 ? random() : random() % 9);
    std::memcpy(changed.data() + at, &value, 1 + random() % 4);
    ListIsAccepted(WithChecksum(changed));
  }
  for (size_t length = kListOverheadBytes; length < bytes.size(); ++length) {
    ASSERT_FALSE(ListIsAccepted(WithChecksum(bytes.substr(0, length)))) << length;
  }
}

TEST(SegmentListTest, NewerVersionsAreToldFromDamage) {
  std::string bytes = EncodeSegmentList(3, 1, {});
  bytes[4] = static_cast<char>(kSsdFormatVersion + 1);
  EXPECT_EQ(DecodeSegmentList(bytes).status().code(), absl::StatusCode::kUnimplemented);
  bytes[4] = 0;
  EXPECT_EQ(DecodeSegmentList(bytes).status().code(), absl::StatusCode::kDataLoss);
}

TEST(RecordCodecFuzzTest, RandomBytesAreNeverAccepted) {
  std::mt19937_64 random(TestSeed());
  const std::string starts[] = {"", std::string("KVTR\x01\0", 6), std::string("KVTS\x01\0", 6)};
  for (int i = 0; i < 50000; ++i) {
    std::string bytes = starts[random() % 3];
    const size_t length = random() % 400;
    while (bytes.size() < length) bytes.push_back(static_cast<char>(random()));
    ASSERT_FALSE(HeadIsAccepted(bytes));
    ASSERT_FALSE(ListIsAccepted(bytes));
    ParseFileKey(bytes);
  }
}

TEST(RecordKeyTest, SortsByBatchAndIndexWithinItsBounds) {
  const std::string keys[] = {BeginKey(1),
                              RecordKey(1, 0),
                              RecordKey(1, 1),
                              RecordKey(1, 256),
                              RecordKey(1, kMaxRecords),
                              EndKey(1),
                              TombstoneKey({2, {}, std::nullopt}),
                              BeginKey(3),
                              RecordKey(256, 0),
                              BeginKey(kMaxBatch)};
  for (size_t i = 1; i < std::size(keys); ++i) EXPECT_LT(keys[i - 1], keys[i]) << i;
  const Location location = MakeLocation(kMaxBatch, kMaxRecords);
  EXPECT_EQ(BatchOf(location), kMaxBatch);
  EXPECT_EQ(IndexOf(location), kMaxRecords);
}

TEST(FileKeyTest, TellsSegmentsTombstonesAndStrangers) {
  const auto segment = ParseFileKey(BeginKey(77));
  ASSERT_TRUE(segment.has_value());
  EXPECT_TRUE(segment->known);
  EXPECT_EQ(segment->batch, 77u);
  EXPECT_FALSE(segment->tombstone.has_value());

  for (const std::optional<RootFingerprint>& root :
       {std::optional<RootFingerprint>(), std::optional(FingerprintOf("root"))}) {
    const auto tombstone = ParseFileKey(TombstoneKey({78, Digest128::Of("model"), root}));
    ASSERT_TRUE(tombstone.has_value() && tombstone->tombstone.has_value());
    EXPECT_TRUE(tombstone->known);
    EXPECT_EQ(tombstone->tombstone->batch, 78u);
    EXPECT_EQ(tombstone->tombstone->model, Digest128::Of("model"));
    EXPECT_EQ(tombstone->tombstone->root, root);
  }

  const auto longer = ParseFileKey(BeginKey(79) + "x");
  ASSERT_TRUE(longer.has_value());
  EXPECT_FALSE(longer->known);
  EXPECT_EQ(longer->batch, 79u);
  EXPECT_FALSE(ParseFileKey("short").has_value());
  EXPECT_FALSE(ParseFileKey(BeginKey(0)).has_value());
}

}  // namespace
}  // namespace kvtier
