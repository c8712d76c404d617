// The messages of shared memory, read and written by hand, against generated code.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "common/wire.h"
#include "kvtier/v1/kvtier.pb.h"
#include "tests/support/seed.h"

namespace kvtier {
namespace {

constexpr wire::Limits kLimits;

// Cut at every byte, so that each field straddles slices.
std::vector<std::string_view> ByteByByte(std::string_view bytes) {
  std::vector<std::string_view> out;
  for (size_t i = 0; i < bytes.size(); ++i) out.push_back(bytes.substr(i, 1));
  return out;
}

class Numbers {
 public:
  explicit Numbers(uint64_t seed) : random_(seed) {}
  uint64_t Next() { return random_() >> (random_() % 64); }
  uint32_t Next32() { return static_cast<uint32_t>(Next()); }

 private:
  std::mt19937_64 random_;
};

TEST(WireSharedTest, ReadsFetchSharedRequests) {
  Numbers numbers(TestSeed());
  for (int i = 0; i < 200; ++i) {
    v1::FetchSharedRequest sent;
    if (i % 5 > 0) sent.set_session_id(std::string(16, static_cast<char>(i)));
    sent.set_lease_id(numbers.Next());
    sent.set_first_block(numbers.Next32());
    sent.set_last_block(numbers.Next32());
    sent.mutable_part()->set_layer_group(numbers.Next32());
    sent.mutable_part()->set_rank(numbers.Next32());
    sent.set_allow_gaps(i % 2 == 0);
    const std::string bytes = sent.SerializeAsString();
    wire::FetchSharedRequest read;
    ASSERT_TRUE(wire::DecodeFetchSharedRequest(ByteByByte(bytes), kLimits, &read).ok());
    EXPECT_EQ(read.session_id, sent.session_id());
    EXPECT_EQ(read.lease_id, sent.lease_id());
    EXPECT_EQ(read.first_block, sent.first_block());
    EXPECT_EQ(read.last_block, sent.last_block());
    EXPECT_EQ(read.part.layer_group, sent.part().layer_group());
    EXPECT_EQ(read.part.rank, sent.part().rank());
    EXPECT_EQ(read.allow_gaps, sent.allow_gaps());
  }
}

TEST(WireSharedTest, ReadsStoreSharedRequests) {
  Numbers numbers(TestSeed());
  for (int i = 0; i < 200; ++i) {
    v1::StoreSharedRequest sent;
    if (i % 5 > 0) sent.set_session_id(std::string(16, static_cast<char>(i)));
    if (i % 7 > 0) {
      sent.mutable_header()->set_first_block(numbers.Next32());
      sent.mutable_header()->set_block_count(numbers.Next32());
      sent.mutable_header()->mutable_prompt()->set_model_id(std::string(16, 'm'));
      sent.mutable_header()->mutable_prompt()->add_tokens(numbers.Next32());
    }
    sent.set_unverified(i % 2 == 0);
    const std::string bytes = sent.SerializeAsString();
    const std::vector<std::string_view> slices = ByteByByte(bytes);
    wire::StoreSharedRequest read;
    ASSERT_TRUE(wire::DecodeStoreSharedRequest(slices, kLimits, &read).ok());
    EXPECT_EQ(read.session_id, sent.session_id());
    EXPECT_EQ(read.has_header, sent.has_header());
    EXPECT_EQ(read.header.first_block, sent.header().first_block());
    EXPECT_EQ(read.header.block_count, sent.header().block_count());
    EXPECT_EQ(read.header.prompt.token_count,
              static_cast<uint64_t>(sent.header().prompt().tokens_size()));
    EXPECT_EQ(read.unverified, sent.unverified());
  }
}

TEST(WireSharedTest, GeneratedCodeReadsFetchSharedResponses) {
  Numbers numbers(TestSeed());
  std::vector<wire::SharedBlock> blocks;
  for (int i = 0; i < 300; ++i) {
    blocks.push_back({numbers.Next32(), static_cast<uint32_t>(i % 4), numbers.Next(),
                      numbers.Next(), numbers.Next(), numbers.Next()});
  }
  v1::FetchSharedResponse read;
  ASSERT_TRUE(read.ParseFromString(wire::EncodeFetchSharedResponse(blocks)));
  ASSERT_EQ(read.blocks_size(), 300);
  for (int i = 0; i < 300; ++i) {
    EXPECT_EQ(read.blocks(i).block(), blocks[i].block);
    EXPECT_EQ(static_cast<uint32_t>(read.blocks(i).status()), blocks[i].status);
    EXPECT_EQ(read.blocks(i).checksum(), blocks[i].checksum);
    EXPECT_EQ(read.blocks(i).region(), blocks[i].region);
    EXPECT_EQ(read.blocks(i).offset(), blocks[i].offset);
    EXPECT_EQ(read.blocks(i).bytes(), blocks[i].bytes);
  }
  EXPECT_EQ(wire::EncodeFetchSharedResponse({}), "");
}

TEST(WireSharedTest, LimitsNameFieldValueAndLimit) {
  v1::StoreSharedRequest request;
  request.set_session_id(std::string(16, 's'));
  const auto decode = [&] {
    const std::string bytes = request.SerializeAsString();
    const std::string_view view = bytes;
    wire::StoreSharedRequest out;
    return wire::DecodeStoreSharedRequest({&view, 1}, kLimits, &out);
  };
  EXPECT_TRUE(decode().ok());
  request.set_session_id("short");
  EXPECT_THAT(std::string(decode().message()), testing::HasSubstr("session_id has 5 bytes"));
}

}  // namespace
}  // namespace kvtier
