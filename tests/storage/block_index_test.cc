#include "storage/block_index.h"

#include "gtest/gtest.h"

namespace kvtier {
namespace {

struct Chain {
  std::vector<std::string> bytes;
  std::vector<BlockIdentity> blocks;
};

Chain MakeChain(uint64_t seed, size_t length) {
  Chain chain;
  BlockKey parent{seed, ~seed};
  for (size_t i = 0; i < length; ++i) {
    chain.bytes.push_back("identity-" + std::to_string(seed) + "-" + std::to_string(i));
  }
  for (size_t i = 0; i < length; ++i) {
    const BlockKey key = Digest128::Of(parent.ToBytes() + chain.bytes[i]);
    chain.blocks.push_back(BlockIdentity{key, parent, chain.bytes[i]});
    parent = key;
  }
  return chain;
}

std::vector<EntryId> InsertAll(BlockIndex* index, const Chain& chain, SpaceId space) {
  std::vector<EntryId> ids;
  for (size_t i = 0; i < chain.blocks.size(); ++i) {
    ids.push_back(index->Insert(chain.blocks[i], space, 0, static_cast<uint32_t>(i), 1));
    index->SetLocation(ids.back(), 0, TierKind::kRam, i);
  }
  return ids;
}

TEST(BlockIndexTest, MatchesAPrefixAndStopsWhereItEnds) {
  BlockIndex index;
  const Chain chain = MakeChain(1, 100);
  Chain head = chain;
  head.blocks.resize(70);
  const std::vector<EntryId> ids = InsertAll(&index, head, 1);
  std::vector<EntryId> found;
  EXPECT_EQ(index.MatchPrefix(chain.blocks, 1, kNoEntry, &found), 70u);
  EXPECT_EQ(found, ids);
}

// What lies side by side is found by that, and what does not is found all the same.
TEST(BlockIndexTest, WalksOverBlocksStoredApart) {
  BlockIndex index;
  const Chain chain = MakeChain(1, 90), other = MakeChain(2, 90);
  std::vector<EntryId> ids;
  for (uint32_t i = 0; i < 90; ++i) {
    ids.push_back(index.Insert(chain.blocks[i], 1, 0, i, 1));
    if (i % 7 == 3) index.Insert(other.blocks[i], 1, 0, i, 1);
  }
  const std::span<const BlockIdentity> all(chain.blocks);
  for (size_t begin : {0, 1, 16, 50}) {
    std::vector<EntryId> found;
    const EntryId previous = begin == 0 ? kNoEntry : ids[begin - 1];
    EXPECT_EQ(index.MatchPrefix(all.subspan(begin), 1, previous, &found), 90 - begin);
    EXPECT_EQ(found, std::vector<EntryId>(ids.begin() + static_cast<ptrdiff_t>(begin), ids.end()));
  }
}

TEST(BlockIndexTest, PlacesABlockBesideItsParent) {
  BlockIndex index;
  const std::vector<EntryId> ids = InsertAll(&index, MakeChain(1, 4), 1);
  index.PushNewest(ids[0], TierKind::kRam);
  index.PushNewest(ids[1], TierKind::kRam);
  index.PushOlderThan(ids[0], ids[2], TierKind::kRam);
  index.PushOlderThan(ids[1], ids[3], TierKind::kRam);
  index.CheckInvariants();
  std::vector<EntryId> order;
  for (EntryId id = index.oldest(TierKind::kRam); id != kNoEntry;
       id = index.NextNewer(id, TierKind::kRam)) {
    order.push_back(id);
  }
  EXPECT_EQ(order, (std::vector<EntryId>{ids[2], ids[0], ids[3], ids[1]}));
}

// The digest alone must never make a hit: each other field of the identity is changed under the
// same key.
TEST(BlockIndexTest, EqualKeyWithAnotherIdentityIsAMiss) {
  BlockIndex index;
  const Chain chain = MakeChain(1, 1);
  const EntryId id = InsertAll(&index, chain, 1)[0];
  BlockIdentity block = chain.blocks[0];
  EXPECT_EQ(index.Find(block, 1), id);

  BlockIdentity other_tokens = block;
  other_tokens.bytes = "identity-1-X";
  EXPECT_EQ(index.Find(other_tokens, 1), kNoEntry);
  BlockIdentity longer = block;
  const std::string more = std::string(block.bytes) + "x";
  longer.bytes = more;
  EXPECT_EQ(index.Find(longer, 1), kNoEntry);
  BlockIdentity other_parent = block;
  other_parent.parent.low ^= 1;
  EXPECT_EQ(index.Find(other_parent, 1), kNoEntry);
  EXPECT_EQ(index.Find(block, 2), kNoEntry);  // another namespace
  EXPECT_EQ(index.FindKey(block.key), id);
}

TEST(BlockIndexTest, OrderIsLeastRecentFirstAndTiersAreApart) {
  BlockIndex index;
  const std::vector<EntryId> ids = InsertAll(&index, MakeChain(1, 3), 1);
  for (EntryId id : ids) index.PushNewest(id, TierKind::kRam);
  index.SetLocation(ids[2], 0, TierKind::kGpu, 7);
  index.PushNewest(ids[2], TierKind::kGpu);
  index.CheckInvariants();
  EXPECT_EQ(index.oldest(TierKind::kRam), ids[0]);
  index.Unlist(ids[0], TierKind::kRam);
  index.PushNewest(ids[0], TierKind::kRam);
  EXPECT_EQ(index.oldest(TierKind::kRam), ids[1]);
  EXPECT_EQ(index.NextNewer(ids[1], TierKind::kRam), ids[2]);
  EXPECT_EQ(index.oldest(TierKind::kGpu), ids[2]);
  EXPECT_EQ(index.oldest(TierKind::kSsd), kNoEntry);
  index.CheckInvariants();
}

TEST(BlockIndexTest, CompleteOnlyWithEveryPart) {
  BlockIndex index;
  const Chain chain = MakeChain(1, 1);
  const EntryId id = index.Insert(chain.blocks[0], 1, 0, 0, 3);
  index.SetLocation(id, 0, TierKind::kRam, 1);
  index.SetLocation(id, 2, TierKind::kRam, 2);
  EXPECT_FALSE(index.entry(id).complete());
  index.SetLocation(id, 1, TierKind::kSsd, 3);
  EXPECT_TRUE(index.entry(id).complete());  // over tiers
  EXPECT_FALSE(index.CompleteIn(id, TierKind::kRam));
  EXPECT_EQ(index.complete_blocks(), 1u);
  EXPECT_EQ(index.complete_in(TierKind::kRam), 0u);
  index.SetLocation(id, 1, TierKind::kRam, 3);
  EXPECT_EQ(index.complete_in(TierKind::kRam), 1u);
  index.CheckInvariants();
}

TEST(BlockIndexTest, RecycledEntriesStartClean) {
  BlockIndex index;
  const Chain first = MakeChain(1, 1), second = MakeChain(2, 1);
  const EntryId id = InsertAll(&index, first, 1)[0];
  index.entry(id).hit = true;
  index.SetLocation(id, 0, TierKind::kRam, kNoLocation);
  index.Remove(id);
  const EntryId again = index.Insert(second.blocks[0], 1, 0, 0, 1);
  EXPECT_EQ(again, id);
  EXPECT_FALSE(index.entry(again).hit);
  EXPECT_FALSE(index.entry(again).complete());
  EXPECT_EQ(index.Find(first.blocks[0], 1), kNoEntry);
}

TEST(BlockIndexTest, MemoryPerBlockWithinItsBudget) {
  static_assert(sizeof(Entry) <= 128);
  BlockIndex index;
  constexpr int kBlocks = 200000;
  InsertAll(&index, MakeChain(1, kBlocks), 1);
  const uint64_t own = index.memory_bytes() - index.identity_bytes();
  EXPECT_LE(own / kBlocks, 256u);
  EXPECT_GE(own / kBlocks, sizeof(Entry));
}

}  // namespace
}  // namespace kvtier
