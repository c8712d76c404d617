#include "common/prompt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

namespace kvtier {
namespace {

using ::testing::HasSubstr;

std::string_view AsBytes(const std::vector<uint32_t>& tokens) {
  return {reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(uint32_t)};
}

std::vector<uint32_t> Tokens(uint32_t count) {
  std::vector<uint32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), 1000);
  return tokens;
}

const BlockKey kRoot{1, 2};

TEST(PromptCursor, IgnoresAPartialLastBlock) {
  EXPECT_EQ(BlockKeys(kRoot, Tokens(15), 16).size(), 0u);
  EXPECT_EQ(BlockKeys(kRoot, Tokens(16), 16).size(), 1u);
  EXPECT_EQ(BlockKeys(kRoot, Tokens(31), 16).size(), 1u);
  EXPECT_EQ(BlockKeys(kRoot, {}, 16).size(), 0u);
}

TEST(PromptCursor, KeysChain) {
  const std::vector<uint32_t> tokens = Tokens(64);
  PromptCursor cursor(kRoot, {AsBytes(tokens)}, 64);
  std::vector<BlockIdentity> identities;
  EXPECT_EQ(cursor.Next(10, &identities), 4u);
  EXPECT_EQ(identities[0].parent, kRoot);
  for (size_t i = 1; i < identities.size(); ++i) {
    EXPECT_EQ(identities[i].parent, identities[i - 1].key);
  }
  EXPECT_EQ(identities[2].bytes, AsBytes(tokens).substr(2 * 64, 64));
}

TEST(PromptCursor, KeyIsTheDigestOfParentAndIdentity) {
  for (const uint32_t block_tokens :
       {16u, 2048u}) {  // short blocks take another path than long ones
    const std::vector<uint32_t> tokens = Tokens(block_tokens);
    const std::string expected = kRoot.ToBytes() + std::string(AsBytes(tokens));
    EXPECT_EQ(BlockKeys(kRoot, tokens, block_tokens)[0], Digest128::Of(expected));
  }
}

TEST(PromptCursor, SkipsWhatIsAhead) {
  const std::vector<uint32_t> tokens = Tokens(160);
  const std::string_view bytes = AsBytes(tokens);
  // The sixth block straddles the slices.
  PromptCursor cursor(kRoot, {bytes.substr(0, 5 * 64 + 8), bytes.substr(5 * 64 + 8)}, 64);
  EXPECT_EQ(cursor.NextIdentity(), bytes.substr(0, 64));
  EXPECT_EQ(cursor.Ahead(), bytes.substr(64, 4 * 64 + 8));
  cursor.Skip(4);
  EXPECT_EQ(cursor.position(), 5u);
  EXPECT_EQ(cursor.NextIdentity(), bytes.substr(5 * 64, 64));
  EXPECT_EQ(cursor.Ahead(), bytes.substr(6 * 64));
  const std::vector<MediaSpan> media = {{100, 4, std::string(16, 'd')}};
  PromptCursor with_media(kRoot, {bytes}, 64, media);
  with_media.NextIdentity();
  EXPECT_EQ(with_media.Ahead(), "");
}

TEST(PromptCursor, HandsOutAsManyAsAsked) {
  const std::vector<uint32_t> tokens = Tokens(160);
  PromptCursor cursor(kRoot, {AsBytes(tokens)}, 64);
  std::vector<BlockIdentity> identities;
  EXPECT_EQ(cursor.blocks(), 10u);
  EXPECT_EQ(cursor.Next(3, &identities), 3u);
  EXPECT_EQ(cursor.position(), 3u);
  EXPECT_EQ(cursor.Next(0, &identities), 0u);
  EXPECT_EQ(cursor.Next(100, &identities), 7u);
  EXPECT_EQ(cursor.Next(1, &identities), 0u);
  const std::vector<BlockKey> whole = BlockKeys(kRoot, tokens, 16);
  ASSERT_EQ(identities.size(), whole.size());
  for (size_t i = 0; i < whole.size(); ++i) EXPECT_EQ(identities[i].key, whole[i]);
}

TEST(PromptCursor, EqualPrefixesHaveEqualKeysAndOthersNot) {
  std::vector<uint32_t> other = Tokens(64);
  other[40] ^= 1;
  const std::vector<BlockKey> a = BlockKeys(kRoot, Tokens(64), 16);
  const std::vector<BlockKey> b = BlockKeys(kRoot, other, 16);
  EXPECT_EQ(a[0], b[0]);
  EXPECT_EQ(a[1], b[1]);
  EXPECT_NE(a[2], b[2]);
  EXPECT_NE(a[3], b[3]);  // equal tokens after another prefix
}

TEST(PromptCursor, MediaEntersTheBlocksThatItTouches) {
  const std::vector<uint32_t> tokens = Tokens(64);
  const std::vector<BlockKey> plain = BlockKeys(kRoot, tokens, 16);
  const std::vector<MediaSpan> media = {{20, 20, std::string(16, 'd')}};  // blocks 1 and 2
  const std::vector<BlockKey> keys = BlockKeys(kRoot, tokens, 16, media);
  EXPECT_EQ(keys[0], plain[0]);
  EXPECT_NE(keys[1], plain[1]);
  EXPECT_EQ(BlockKeys(kRoot, tokens, 16, media), keys);

  PromptCursor cursor(kRoot, {AsBytes(tokens)}, 64, media);
  std::vector<BlockIdentity> identities;
  cursor.Next(4, &identities);
  EXPECT_EQ(identities[0].bytes.size(), 64u);
  EXPECT_EQ(identities[1].bytes.size(), 64u + 4 + 4 + 4 + 16);
  EXPECT_EQ(identities[2].bytes.size(), 64u + 4 + 4 + 4 + 16);
  EXPECT_EQ(identities[3].bytes.size(), 64u);
}

TEST(PromptCursor, MediaElsewhereOrOfOtherContentIsAnotherIdentity) {
  const std::vector<uint32_t> tokens(32, 7);  // placeholders, all alike
  const MediaSpan span{4, 8, std::string(16, 'd')};
  std::vector<MediaSpan> variants(5, span);
  variants[1].first_token = 5;
  variants[2].token_count = 9;
  variants[3].digest[0] = 'e';
  variants[4].digest += 'd';
  for (size_t i = 1; i < variants.size(); ++i) {
    EXPECT_NE(BlockKeys(kRoot, tokens, 16, {&variants[i], 1})[0],
              BlockKeys(kRoot, tokens, 16, {&variants[0], 1})[0])
        << i;
  }
}

TEST(ValidateMedia, RefusesSpansThatAreNone) {
  const std::string digest(16, 'd');
  using Spans = std::vector<MediaSpan>;
  EXPECT_TRUE(ValidateMedia(Spans{{0, 5, digest}, {5, 5, digest}}, 10).ok());
  const std::pair<Spans, const char*> cases[] = {
      {{{0, 5, std::string(15, 'd')}}, "media[0].digest has 15"},
      {{{0, 5, std::string(65, 'd')}}, "media[0].digest has 65"},
      {{{0, 0, digest}}, "media[0].token_count is 0"},
      {{{0, 5, digest}, {4, 2, digest}}, "media[1].first_token is 4"},
      {{{6, 5, digest}}, "media[0] ends at token 11"},
      {{{0xffffffff, 0xffffffff, digest}}, "media[0] ends at token 8589934590"},
  };
  for (const auto& [spans, message] : cases) {
    const absl::Status status = ValidateMedia(spans, 10);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  }
}

TEST(ValidateNamespace, HasLimits) {
  EXPECT_TRUE(
      ValidateNamespace({std::string(128, 't'), std::string(128, 's'), std::string(256, 'a')})
          .ok());
  EXPECT_THAT(std::string(ValidateNamespace({std::string(129, 't'), "", ""}).message()),
              HasSubstr("namespace.tenant has 129 bytes, the limit is 128"));
  EXPECT_FALSE(ValidateNamespace({"", std::string(129, 's'), ""}).ok());
  EXPECT_FALSE(ValidateNamespace({"", "", std::string(257, 'a')}).ok());
}

TEST(CanonicalRoot, FieldsDoNotRunTogether) {
  const ModelId model{3, 4};
  const auto root = [&](const Namespace& name) {
    return CanonicalRoot(model, name, PromptKind::kTokens, 64);
  };
  EXPECT_NE(root({"ab", "c", ""}), root({"a", "bc", ""}));
  EXPECT_NE(root({"a", "", ""}), root({"", "a", ""}));
  EXPECT_NE(root({"", "a", ""}), root({"", "", "a"}));
  EXPECT_EQ(root({"a", "b", "c"}), root({"a", "b", "c"}));
}

}  // namespace
}  // namespace kvtier
