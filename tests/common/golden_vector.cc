#include "tests/common/golden_vector.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "absl/strings/escaping.h"

namespace kvtier::testing {
namespace {

using Json = nlohmann::ordered_json;

std::string Hex(const std::string& bytes) { return absl::BytesToHexString(bytes); }
std::string Unhex(const Json& hex) { return absl::HexStringToBytes(hex.get<std::string>()); }

}  // namespace

std::vector<uint32_t> TokensOf(const TokenRun& run) {
  std::vector<uint32_t> tokens(run.count);
  for (uint32_t i = 0; i < run.count; ++i) tokens[i] = run.first + i * run.step;
  return tokens;
}

void ComputeKeys(GoldenVector* vector) {
  const bool by_tokens = vector->kind == PromptKind::kTokens;
  const uint32_t identity_bytes =
      by_tokens ? vector->block_tokens * 4 : static_cast<uint32_t>(vector->hashes.at(0).size());
  vector->root =
      Digest128::Of(CanonicalRoot(vector->model, vector->name, vector->kind, identity_bytes));
  if (by_tokens) {
    vector->keys =
        BlockKeys(vector->root, TokensOf(vector->tokens), vector->block_tokens, vector->media);
    return;
  }
  std::string joined;
  for (const std::string& hash : vector->hashes) joined += hash;
  PromptCursor cursor(vector->root, {joined}, identity_bytes);
  std::vector<BlockIdentity> identities;
  cursor.Next(cursor.blocks(), &identities);
  for (const BlockIdentity& identity : identities) vector->keys.push_back(identity.key);
}

std::string ToLine(const GoldenVector& vector) {
  Json line = {{"model", vector.model.ToHex()},
               {"tenant", Hex(vector.name.tenant)},
               {"salt", Hex(vector.name.salt)},
               {"adapter", Hex(vector.name.adapter)}};
  if (vector.kind == PromptKind::kTokens) {
    line["block_tokens"] = vector.block_tokens;
    line["tokens"] = {vector.tokens.first, vector.tokens.step, vector.tokens.count};
    Json media = Json::array();
    for (const MediaSpan& span : vector.media) {
      media.push_back({span.first_token, span.token_count, Hex(span.digest)});
    }
    line["media"] = media;
  } else {
    Json hashes = Json::array();
    for (const std::string& hash : vector.hashes) hashes.push_back(Hex(hash));
    line["hashes"] = hashes;
  }
  line["root"] = vector.root.ToHex();
  Json keys = Json::array();
  for (const BlockKey& key : vector.keys) keys.push_back(key.ToHex());
  line["keys"] = keys;
  return line.dump();
}

GoldenVector FromLine(std::string_view text) {
  GoldenVector vector;
  const Json line = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!line.is_object()) {
    ADD_FAILURE() << "not a vector: " << text;
    return vector;
  }
  vector.model = Digest128::FromHex(line.at("model").get<std::string>()).value();
  vector.name =
      Namespace{Unhex(line.at("tenant")), Unhex(line.at("salt")), Unhex(line.at("adapter"))};
  if (line.contains("tokens")) {
    vector.block_tokens = line.at("block_tokens");
    const Json& run = line.at("tokens");
    vector.tokens = TokenRun{run.at(0), run.at(1), run.at(2)};
    for (const Json& span : line.at("media")) {
      vector.media.push_back(MediaSpan{span.at(0), span.at(1), Unhex(span.at(2))});
    }
  } else {
    vector.kind = PromptKind::kEngineHashes;
    for (const Json& hash : line.at("hashes")) vector.hashes.push_back(Unhex(hash));
  }
  vector.root = Digest128::FromHex(line.at("root").get<std::string>()).value();
  for (const Json& key : line.at("keys")) {
    vector.keys.push_back(Digest128::FromHex(key.get<std::string>()).value());
  }
  return vector;
}

}  // namespace kvtier::testing
