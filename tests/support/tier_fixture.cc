#include "tests/support/tier_fixture.h"

#include <cstring>

#include "gtest/gtest.h"

namespace kvtier {

ModelSpec OpaqueModel(const std::string& name, std::vector<uint64_t> part_bytes,
                      uint32_t block_tokens, uint32_t groups) {
  ModelSpec spec;
  spec.name = name;
  spec.revision = "r1";
  spec.block_tokens = block_tokens;
  spec.tensor_parallel = static_cast<uint32_t>(part_bytes.size()) / groups;
  spec.explicit_groups = groups;
  spec.explicit_part_bytes = std::move(part_bytes);
  spec.pack_order = PackOrder::kOpaque;
  spec.layout_fingerprint = "test-layout";
  return spec;
}

std::vector<uint32_t> Tokens(uint32_t seed, uint32_t blocks, uint32_t block_tokens) {
  std::vector<uint32_t> tokens(size_t{blocks} * block_tokens);
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = seed * 2654435761u + static_cast<uint32_t>(i) * 40503u;
  }
  return tokens;
}

std::vector<uint32_t> Join(std::vector<uint32_t> head, const std::vector<uint32_t>& tail) {
  head.insert(head.end(), tail.begin(), tail.end());
  return head;
}

std::vector<std::byte> PayloadOf(const BlockKey& key, uint32_t part, uint64_t serial,
                                 uint64_t bytes) {
  const uint64_t seed[4] = {key.high, key.low, part, serial};
  uint64_t state = PayloadChecksum(seed, sizeof(seed));
  std::vector<std::byte> out(bytes);
  for (uint64_t i = 0; i < bytes; ++i) {
    if (i % 8 == 0) state = state * 6364136223846793005u + 1442695040888963407u;
    out[i] = static_cast<std::byte>(state >> (i % 8 * 8));
  }
  return out;
}

PromptRef TokenPromptOf(const ModelSpec& model, const std::vector<uint32_t>& tokens,
                        const Namespace& name) {
  const uint32_t block_bytes = model.block_tokens * 4;
  std::string canonical = CanonicalRoot(SpecId(model), name, PromptKind::kTokens, block_bytes);
  const std::string_view bytes(reinterpret_cast<const char*>(tokens.data()), tokens.size() * 4);
  const BlockKey root = Digest128::Of(canonical);
  return PromptRef{SpecId(model), std::move(canonical), PromptCursor(root, {bytes}, block_bytes)};
}

TierFixture::TierFixture(TierSizes sizes, ManagerOptions options)
    : sizes_(sizes), options_(options), device_(MakeHostMemory()) {
  Start({});
}

// Queued tasks hold pins.
TierFixture::~TierFixture() {
  executor_.RunAll();
  ssd_reader_.RunAll();
  ssd_writer_.RunAll();
}

void TierFixture::Start(const std::vector<ModelSpec>& models) {
  const auto tier = [&](TierKind kind, uint64_t bytes) {
    return bytes == 0 ? nullptr : std::make_unique<MemoryTier>(kind, device_.get(), bytes);
  };
  std::unique_ptr<FakeLogTier> ssd;
  if (sizes_.ssd > 0) {
    ssd = std::make_unique<FakeLogTier>(medium_, sizes_.ssd, sizes_.ssd_segment);
  }
  ssd_ = ssd.get();
  manager_ = std::make_unique<TierManager>(
      options_, tier(TierKind::kGpu, sizes_.gpu), tier(TierKind::kRam, sizes_.ram), std::move(ssd),
      ManagerExecutors{&executor_, &ssd_reader_, &ssd_writer_}, &clock_);
  for (const ModelSpec& model : models) EXPECT_TRUE(manager_->AddModel(model).ok());
  manager_->Restore();
}

void TierFixture::Restart(const std::vector<ModelSpec>& models) {
  executor_.RunAll();
  ssd_reader_.RunAll();
  ssd_writer_.RunAll();
  manager_.reset();
  Start(models);
}

PromptRef TierFixture::Prompt(const ModelSpec& model, const std::vector<uint32_t>& tokens,
                              const Namespace& name) const {
  return TokenPromptOf(model, tokens, name);
}

BlockKey TierFixture::Root(const ModelSpec& model, const Namespace& name) const {
  return Digest128::Of(
      CanonicalRoot(SpecId(model), name, PromptKind::kTokens, model.block_tokens * 4));
}

std::vector<StoreOutcome> TierFixture::Store(const ModelSpec& model,
                                             const std::vector<uint32_t>& tokens, uint32_t first,
                                             uint32_t part, uint64_t serial,
                                             const Namespace& name) {
  PromptRef prompt = Prompt(model, tokens, name);
  const auto count = static_cast<uint32_t>(prompt.cursor.blocks()) - first;
  const std::vector<BlockKey> keys = BlockKeys(Root(model, name), tokens, model.block_tokens);
  auto session = manager_->BeginStore(prompt, first, count, part);
  EXPECT_TRUE(session.ok()) << session.status();
  std::vector<StoreOutcome> outcomes;
  for (uint32_t block = first; block < first + count; ++block) {
    StoreSession& store = **session;
    if (store.outcome(block) == StoreOutcome::kPending && store.Reserve(block, deadline())) {
      const std::vector<std::byte> payload =
          PayloadOf(keys[block], part, serial, store.part_bytes());
      std::memcpy(store.Buffer(block).data(), payload.data(), payload.size());
      store.Commit(block, PayloadChecksum(payload.data(), payload.size()));
    }
    outcomes.push_back(store.outcome(block));
  }
  return outcomes;
}

uint32_t TierFixture::Found(const ModelSpec& model, const std::vector<uint32_t>& tokens,
                            const Namespace& name) {
  PromptRef prompt = Prompt(model, tokens, name);
  const auto result = manager_->Lookup(prompt, {});
  EXPECT_TRUE(result.ok()) << result.status();
  return result->blocks;
}

bool TierFixture::Fetch(const ModelSpec& model, const std::vector<uint32_t>& tokens, uint32_t block,
                        uint32_t part, uint64_t serial, const Namespace& name) {
  PromptRef prompt = Prompt(model, tokens, name);
  auto session = manager_->BeginFetch(prompt, block, block + 1, part);
  EXPECT_TRUE(session.ok()) << session.status();
  const absl::StatusOr<PartView> view = (*session)->Next(block, deadline());
  if (!view.ok()) {
    EXPECT_TRUE(absl::IsNotFound(view.status())) << view.status();
    return false;
  }
  const BlockKey key = BlockKeys(Root(model, name), tokens, model.block_tokens)[block];
  const std::vector<std::byte> expected = PayloadOf(key, part, serial, view->bytes.size());
  EXPECT_EQ(std::memcmp(view->bytes.data(), expected.data(), expected.size()), 0)
      << "foreign bytes for block " << block;
  EXPECT_EQ(view->checksum, PayloadChecksum(expected.data(), expected.size()));
  return true;
}

}  // namespace kvtier
