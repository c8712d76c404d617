// The vectors of testdata/keys.golden: inputs of the key functions and what they must give, in C++
// and in every other client. One JSON object a line; lines that start with # are comments. All byte
// strings in hex.
//
//   model, tenant, salt, adapter   the namespace's fields
//   block_tokens, tokens           tokens = [first, step, count]: token i is (first + i * step) mod
//   2^32 media                          [[first_token, token_count, digest], ...] hashes instead of
//   block_tokens, tokens and media: the engine's hashes root, keys                     the results
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/prompt.h"

namespace kvtier::testing {

struct TokenRun {
  uint32_t first = 0;
  uint32_t step = 0;
  uint32_t count = 0;
};

struct GoldenVector {
  ModelId model;
  Namespace name;
  PromptKind kind = PromptKind::kTokens;
  uint32_t block_tokens = 0;
  TokenRun tokens;
  std::vector<MediaSpan> media;
  std::vector<std::string> hashes;
  Digest128 root;
  std::vector<BlockKey> keys;
};

std::vector<uint32_t> TokensOf(const TokenRun& run);

// `root` and `keys` from the other fields, by the code under test.
void ComputeKeys(GoldenVector* vector);

std::string ToLine(const GoldenVector& vector);
// Fails the running test and gives an empty vector when the line is none.
GoldenVector FromLine(std::string_view line);

}  // namespace kvtier::testing
