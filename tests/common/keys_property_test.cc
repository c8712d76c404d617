// Properties of keys over random prompts. The seed is printed when a test fails; KVTIER_SEED sets
// it.
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <unordered_set>

#include "tests/common/golden_vector.h"

namespace kvtier::testing {
namespace {

uint64_t Seed() {
  const char* seed = std::getenv("KVTIER_SEED");
  return seed != nullptr ? std::strtoull(seed, nullptr, 10) : 20261129;
}

class KeysProperty : public ::testing::Test {
 protected:
  KeysProperty()
      : random_(Seed()), trace_(__FILE__, __LINE__, "KVTIER_SEED=" + std::to_string(Seed())) {}

  uint32_t Below(uint32_t bound) { return static_cast<uint32_t>(random_() % bound); }

  // Cuts `bytes` at random places; pieces may be empty and cut tokens apart. `storage` owns the
  // copies, so that reading past a piece is seen by a sanitizer.
  std::vector<std::string_view> Cut(std::string_view bytes, std::vector<std::string>* storage) {
    while (!bytes.empty()) {
      const size_t length = std::min<size_t>(bytes.size(), Below(200));
      storage->emplace_back(bytes.substr(0, length));
      bytes.remove_prefix(length);
    }
    storage->emplace_back();
    return {storage->begin(), storage->end()};
  }

  std::mt19937_64 random_;
  ::testing::ScopedTrace trace_;
};

TEST_F(KeysProperty, SlicesDoNotMatter) {
  for (int round = 0; round < 500; ++round) {
    const uint32_t block_tokens = 1 + Below(40);
    std::vector<uint32_t> tokens(Below(400));
    for (uint32_t& token : tokens) token = static_cast<uint32_t>(random_());
    std::vector<MediaSpan> media;
    if (tokens.size() > 50) media = {{10, 25, std::string(16, 'm')}};
    const Digest128 root{random_(), random_()};
    const std::vector<BlockKey> whole = BlockKeys(root, tokens, block_tokens, media);

    std::vector<std::string> storage;
    const std::string_view bytes(reinterpret_cast<const char*>(tokens.data()), tokens.size() * 4);
    PromptCursor cursor(root, Cut(bytes, &storage), block_tokens * 4, media);
    ASSERT_EQ(cursor.blocks(), whole.size());
    std::vector<BlockIdentity> identities;
    while (cursor.position() < cursor.blocks()) cursor.Next(1 + Below(3), &identities);
    ASSERT_EQ(identities.size(), whole.size());
    for (size_t i = 0; i < whole.size(); ++i) ASSERT_EQ(identities[i].key, whole[i]);
  }
}

// The bits of every input, one string per field; Apply puts them back.
struct Field {
  const char* name;
  std::string bytes;
};

std::vector<Field> FieldsOf(const GoldenVector& vector) {
  std::vector<uint32_t> tokens = TokensOf(vector.tokens);
  return {{"model", vector.model.ToBytes()},
          {"tenant", vector.name.tenant},
          {"salt", vector.name.salt},
          {"adapter", vector.name.adapter},
          {"digest", vector.media.at(0).digest},
          {"tokens", std::string(reinterpret_cast<const char*>(tokens.data()), tokens.size() * 4)}};
}

BlockKey LastKey(const std::vector<Field>& fields, const GoldenVector& vector) {
  const Namespace name{fields[1].bytes, fields[2].bytes, fields[3].bytes};
  const Digest128 root =
      Digest128::Of(CanonicalRoot(Digest128::FromBytes(fields[0].bytes).value(), name,
                                  PromptKind::kTokens, vector.block_tokens * 4));
  std::vector<MediaSpan> media = vector.media;
  media[0].digest = fields[4].bytes;
  PromptCursor cursor(root, {fields[5].bytes}, vector.block_tokens * 4, media);
  std::vector<BlockIdentity> identities;
  cursor.Next(cursor.blocks(), &identities);
  return identities.back().key;
}

TEST_F(KeysProperty, EveryBitOfEveryFieldChangesTheKey) {
  GoldenVector vector;
  vector.model = Digest128{random_(), random_()};
  vector.name = Namespace{"tenant", "salt", "adapter"};
  vector.block_tokens = 16;
  vector.tokens = TokenRun{5, 3, 32};
  vector.media = {{4, 20, std::string(32, 'd')}};
  std::vector<Field> fields = FieldsOf(vector);
  const BlockKey key = LastKey(fields, vector);
  EXPECT_EQ(LastKey(FieldsOf(vector), vector), key);
  int bits = 0;
  for (Field& field : fields) {
    for (size_t bit = 0; bit < field.bytes.size() * 8; ++bit, ++bits) {
      char& byte = field.bytes[bit / 8];
      byte = static_cast<char>(byte ^ (1 << bit % 8));
      ASSERT_NE(LastKey(fields, vector), key) << field.name << " bit " << bit;
      byte = static_cast<char>(byte ^ (1 << bit % 8));
    }
  }
  EXPECT_GT(bits, 1000);
}

TEST_F(KeysProperty, LengthKindAndIdentitySizeChangeTheRoot) {
  const ModelId model{random_(), random_()};
  const Namespace name{"t", "s", "a"};
  std::unordered_set<std::string> roots;
  for (const PromptKind kind : {PromptKind::kTokens, PromptKind::kEngineHashes}) {
    for (uint32_t size = 1; size <= 64; ++size) {
      roots.insert(Digest128::Of(CanonicalRoot(model, name, kind, size)).ToHex());
    }
  }
  EXPECT_EQ(roots.size(), 128u);
}

TEST_F(KeysProperty, AMillionRandomBlocksDoNotCollide) {
  std::vector<uint32_t> tokens(1000000);
  for (uint32_t& token : tokens) token = static_cast<uint32_t>(random_());
  std::unordered_set<uint64_t> seen;
  for (const BlockKey& key : BlockKeys(Digest128{random_(), 1}, tokens, 1)) {
    seen.insert(key.low ^ key.high * 0x9e3779b97f4a7c15);
  }
  EXPECT_GE(seen.size(), 1000000u - 1);  // 64 folded bits: one chance in 37 million of a collision
}

}  // namespace
}  // namespace kvtier::testing
