#include "client/requests.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "common/block_key.h"
#include "common/channel_args.h"

namespace kvtier::client_internal {
namespace {

using testing::HasSubstr;

Prompt TokenPrompt(std::span<const uint32_t> tokens) {
  Prompt prompt;
  prompt.model = Digest128::Of("model");
  prompt.name.tenant = "tenant";
  prompt.tokens = tokens;
  return prompt;
}

std::string Join(const std::vector<std::string_view>& slices) {
  std::string joined;
  for (std::string_view slice : slices) joined.append(slice);
  return joined;
}

TEST(EncodedPromptTest, NeedsTokensOrHashes) {
  const std::vector<uint32_t> tokens = {1, 2};
  const std::vector<std::string> hashes = {"12345678"};
  Prompt prompt = TokenPrompt(tokens);
  EXPECT_TRUE(EncodedPrompt::Make(prompt).ok());
  prompt.engine_hashes = hashes;
  EXPECT_EQ(EncodedPrompt::Make(prompt).status().code(), absl::StatusCode::kInvalidArgument);
  prompt.tokens = {};
  EXPECT_TRUE(EncodedPrompt::Make(prompt).ok());
  prompt.engine_hashes = {};
  EXPECT_EQ(EncodedPrompt::Make(prompt).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(EncodedPromptTest, HashesHaveOneAllowedLength) {
  Prompt prompt;
  const std::vector<std::string> uneven = {"12345678", "123456789"};
  prompt.engine_hashes = uneven;
  const absl::Status status = EncodedPrompt::Make(prompt).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("engine_hashes[1] has 9 bytes"));
  const std::vector<std::string> brief = {"1234567"};
  prompt.engine_hashes = brief;
  EXPECT_FALSE(EncodedPrompt::Make(prompt).ok());
  const std::vector<std::string> even = {"12345678", "abcdefgh"};
  prompt.engine_hashes = even;
  const absl::StatusOr<EncodedPrompt> encoded = EncodedPrompt::Make(prompt);
  ASSERT_TRUE(encoded.ok());
  EXPECT_EQ(encoded->head().engine_hashes, "12345678abcdefgh");
  EXPECT_EQ(encoded->head().engine_hash_bytes, 8u);
}

TEST(EncodedPromptTest, FitsAMessage) {
  std::vector<uint32_t> tokens(kMaxPromptBytes / 4);
  EXPECT_TRUE(EncodedPrompt::Make(TokenPrompt(tokens)).ok());
  tokens.push_back(0);
  const absl::Status status = EncodedPrompt::Make(TokenPrompt(tokens)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("prompt has 2080769 tokens"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("the limit is 8323072"));
}

TEST(LeaseMillisecondsTest, RoundsUpWithinTheLimits) {
  EXPECT_EQ(*LeaseMilliseconds(Duration::zero()), 0u);
  EXPECT_EQ(*LeaseMilliseconds(std::chrono::microseconds(1500)), 2u);
  EXPECT_EQ(*LeaseMilliseconds(std::chrono::minutes(10)), 600'000u);
  EXPECT_FALSE(LeaseMilliseconds(std::chrono::microseconds(999)).ok());
  EXPECT_FALSE(LeaseMilliseconds(std::chrono::milliseconds(-1)).ok());
  const absl::Status status = LeaseMilliseconds(std::chrono::milliseconds(600'001)).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("600001 ms"));
}

TEST(CheckBuffersTest, OneForEachBlock) {
  EXPECT_TRUE(CheckBuffers({.first_block = 2, .last_block = 5}, 3).ok());
  EXPECT_FALSE(CheckBuffers({.first_block = 2, .last_block = 5}, 4).ok());
  EXPECT_FALSE(CheckBuffers({.first_block = 5, .last_block = 5}, 0).ok());
  EXPECT_FALSE(CheckBuffers({.first_block = 5, .last_block = 2}, 3).ok());
}

class StoreMessagesTest : public testing::Test {
 protected:
  // Reads all messages as the daemon does and puts the payloads together again.
  void Read(StoreMessages& messages) {
    std::vector<std::string_view> slices;
    bool done = false;
    for (got_.clear(); messages.Next(&slices); slices.clear()) {
      EXPECT_FALSE(done);
      done = messages.done();
      const std::string message = Join(slices);
      wire::StoreRequest request;
      const std::string_view whole = message;
      ASSERT_TRUE(wire::DecodeStoreRequest({&whole, 1}, wire::Limits(), &request).ok());
      if (request.has_header) {
        header_ = request.header;
        header_.prompt.tokens.clear();  // views into the message
        continue;
      }
      Take(request.pieces);
    }
    EXPECT_TRUE(done);
  }
  void Take(const wire::PieceList& pieces) {
    for (size_t i = 0; i < pieces.size(); ++i) {
      const wire::Piece& piece = pieces[i];
      std::string& part = got_[piece.block];
      EXPECT_EQ(piece.offset, part.size());
      for (std::string_view slice : pieces.payload(i)) part.append(slice);
      checksums_[piece.block] = piece.checksum;
      EXPECT_EQ(piece.part_bytes, payloads_[piece.block - kFirst].size());
    }
  }
  void ExpectAll(uint32_t skip) {
    ASSERT_EQ(got_.size(), payloads_.size() - skip);
    for (uint32_t i = skip; i < payloads_.size(); ++i) {
      const auto& payload = payloads_[i];
      const std::string_view bytes(reinterpret_cast<const char*>(payload.data()), payload.size());
      EXPECT_TRUE(got_[kFirst + i] == bytes) << i;
      EXPECT_EQ(checksums_[kFirst + i], PayloadChecksum(payload.data(), payload.size()));
    }
  }
  void Fill(size_t blocks, size_t bytes) {
    for (size_t i = 0; i < blocks; ++i) {
      std::vector<std::byte>& part = memory_.emplace_back(bytes);
      for (size_t at = 0; at < bytes; ++at) part[at] = static_cast<std::byte>(at / 3 + i);
    }
    for (const auto& part : memory_) payloads_.push_back(part);
  }

  static constexpr uint32_t kFirst = 10;
  const std::vector<uint32_t> tokens_ = std::vector<uint32_t>(64, 5);
  const Prompt prompt_ = TokenPrompt(tokens_);
  std::vector<std::vector<std::byte>> memory_;
  std::vector<std::span<const std::byte>> payloads_;
  wire::StoreHeader header_;
  std::map<uint32_t, std::string> got_;
  std::map<uint32_t, uint64_t> checksums_;
};

TEST_F(StoreMessagesTest, LargePartsComeInPiecesOfAtMostOneMebibyte) {
  Fill(3, (2 << 20) + 12345);
  const EncodedPrompt encoded = *EncodedPrompt::Make(prompt_);
  StoreMessages messages(encoded, {.first_block = kFirst, .part = {1, 2}}, payloads_, 0);
  Read(messages);
  EXPECT_EQ(header_.first_block, kFirst);
  EXPECT_EQ(header_.block_count, 3u);
  EXPECT_EQ(header_.part.layer_group, 1u);
  EXPECT_EQ(header_.part.rank, 2u);
  EXPECT_EQ(header_.prompt.token_count, 64u);
  ExpectAll(0);
}

TEST_F(StoreMessagesTest, SmallPartsShareMessagesAndHeldOnesAreLeftOut) {
  Fill(1000, 100);
  const EncodedPrompt encoded = *EncodedPrompt::Make(prompt_);
  StoreMessages messages(encoded, {.first_block = kFirst}, payloads_, 7);
  Read(messages);
  EXPECT_EQ(header_.first_block, kFirst + 7);
  EXPECT_EQ(header_.block_count, 993u);
  ExpectAll(7);
}

TEST_F(StoreMessagesTest, RestartBeginsAgain) {
  Fill(2, 1 << 20);
  const EncodedPrompt encoded = *EncodedPrompt::Make(prompt_);
  StoreMessages messages(encoded, {.first_block = kFirst}, payloads_, 0);
  std::vector<std::string_view> slices;
  ASSERT_TRUE(messages.Next(&slices));
  ASSERT_TRUE(messages.Next(&slices));
  messages.Restart();
  Read(messages);
  ExpectAll(0);
}

}  // namespace
}  // namespace kvtier::client_internal
