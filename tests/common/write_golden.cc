// Writes testdata/keys.golden to stdout. Run once per key format; the file, not this program, is
// the reference. tests/python/keys_golden_test.py checks it by other code.
#include <algorithm>
#include <cstdio>
#include <random>

#include "tests/common/golden_vector.h"

namespace kvtier::testing {
namespace {

constexpr int kVectors = 1000;

class Maker {
 public:
  GoldenVector Make(int index) {
    GoldenVector vector;
    vector.model = Digest128{random_(), random_()};
    vector.name = Namespace{Bytes(Pick({0, 1, 4, 7, 128})), Bytes(Pick({0, 0, 16, 16, 128})),
                            Bytes(Pick({0, 0, 0, 9, 9, 9, 20, 256}))};
    if (index % 5 == 4) {
      MakeHashes(&vector);
    } else {
      MakeTokens(index, &vector);
    }
    ComputeKeys(&vector);
    return vector;
  }

 private:
  uint32_t Below(uint32_t bound) { return static_cast<uint32_t>(random_() % bound); }
  uint32_t Pick(std::initializer_list<uint32_t> values) {
    return values.begin()[Below(static_cast<uint32_t>(values.size()))];
  }
  std::string Bytes(uint32_t size) {
    std::string bytes(size, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random_());
    return bytes;
  }

  void MakeHashes(GoldenVector* vector) {
    vector->kind = PromptKind::kEngineHashes;
    const uint32_t size = 8 + Below(57);
    const uint32_t count = 1 + Below(4);
    for (uint32_t i = 0; i < count; ++i) vector->hashes.push_back(Bytes(size));
  }

  void MakeTokens(int index, GoldenVector* vector) {
    vector->block_tokens = Pick({1, 16, 64, 512});
    const uint32_t partial = Below(vector->block_tokens);
    vector->tokens = TokenRun{static_cast<uint32_t>(random_()), Pick({0, 1, 7919, 0xffffffff}),
                              (1 + Below(4)) * vector->block_tokens + partial};
    if (index % 3 != 0) return;
    uint32_t at = Below(vector->tokens.count);
    while (at < vector->tokens.count) {
      const uint32_t length = 1 + Below(vector->tokens.count - at);
      vector->media.push_back(MediaSpan{at, length, Bytes(Pick({16, 32, 64}))});
      at += length + Below(40);
    }
  }

  std::mt19937_64 random_{20261129};
};

}  // namespace
}  // namespace kvtier::testing

int main() {
  kvtier::testing::Maker maker;
  std::puts("# Key format 1. tests/common/golden_vector.h explains the fields.");
  for (int i = 0; i < kvtier::testing::kVectors; ++i) {
    std::puts(kvtier::testing::ToLine(maker.Make(i)).c_str());
  }
  return 0;
}
