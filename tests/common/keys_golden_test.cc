// The key format never changes by accident: every key in the golden file comes out again.
#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "tests/common/golden_vector.h"

namespace kvtier::testing {
namespace {

std::vector<GoldenVector> ReadGolden() {
  std::vector<GoldenVector> vectors;
  std::ifstream file(KVTIER_SOURCE_DIR "/tests/common/testdata/keys.golden");
  EXPECT_TRUE(file.is_open());
  std::string line;
  while (std::getline(file, line)) {
    if (line.rfind("#", 0) != 0) vectors.push_back(FromLine(line));
  }
  return vectors;
}

TEST(KeysGolden, EveryVectorComesOutAgain) {
  const std::vector<GoldenVector> vectors = ReadGolden();
  ASSERT_EQ(vectors.size(), 1000u);
  for (const GoldenVector& golden : vectors) {
    ASSERT_FALSE(golden.keys.empty());
    GoldenVector computed = golden;
    computed.keys.clear();
    ComputeKeys(&computed);
    ASSERT_EQ(computed.root, golden.root) << ToLine(golden);
    ASSERT_EQ(computed.keys, golden.keys) << ToLine(golden);
  }
}

TEST(KeysGolden, CoversEveryKindOfPrompt) {
  std::set<uint32_t> block_tokens;
  std::set<size_t> hash_bytes;
  int with_media = 0;
  for (const GoldenVector& golden : ReadGolden()) {
    if (golden.kind == PromptKind::kTokens) block_tokens.insert(golden.block_tokens);
    if (!golden.hashes.empty()) hash_bytes.insert(golden.hashes[0].size());
    with_media += golden.media.empty() ? 0 : 1;
  }
  EXPECT_EQ(block_tokens, (std::set<uint32_t>{1, 16, 64, 512}));
  EXPECT_EQ(*hash_bytes.begin(), 8u);
  EXPECT_EQ(*hash_bytes.rbegin(), 64u);
  EXPECT_GT(with_media, 100);
}

TEST(KeysGolden, AllKeysDiffer) {
  std::set<BlockKey> seen;
  size_t keys = 0;
  for (const GoldenVector& golden : ReadGolden()) {
    seen.insert(golden.keys.begin(), golden.keys.end());
    keys += golden.keys.size();
  }
  EXPECT_EQ(seen.size(), keys);
}

}  // namespace
}  // namespace kvtier::testing
