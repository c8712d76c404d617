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
    const BlockKey key = ChildKey(parent, chain.bytes[i]);
    chain.blocks.push_back(BlockIdentity{key, parent, chain.bytes[i]});
    parent = key;
  }
  return chain;
}

std::vector<EntryId> InsertAll(BlockIndex* index, const Chain& chain, SpaceId space) {
  std::vector<EntryId> ids;
  for (size_t i = 0; i < chain.blocks.size(); ++i) {
    const EntryId previous = ids.empty() ? kNoEntry : ids.back();
    ids.push_back(index->Insert(chain.blocks[i], space, 0, static_cast<uint32_t>(i), 1, previous));
    index->SetLocation(ids.back(), 0, TierKind::kRam, i);
  }
  return ids;
}

// The entries of the leading blocks, found as a lookup does.
std::vector<EntryId> Walk(const BlockIndex& index, const Chain& chain, SpaceId space) {
  std::vector<EntryId> path;
  for (const BlockIdentity& block : chain.blocks) {
    const EntryId previous = path.empty() ? kNoEntry : path.back();
    const EntryId id = index.FindChild(previous, block.parent, block.bytes, space);
    if (id == kNoEntry) break;
    path.push_back(id);
  }
  return path;
}

TEST(BlockIndexTest, WalksAPrefixAndStopsWhereItEnds) {
  BlockIndex index;
  const Chain chain = MakeChain(1, 100);
  Chain head = chain;
  head.blocks.resize(70);
  const std::vector<EntryId> ids = InsertAll(&index, head, 1);
  EXPECT_EQ(Walk(index, chain, 1), ids);
}

// The child that a block remembers is a guess: with several children, with none remembered, and
// with one whose entry is another block's by now, the right one is found.
TEST(BlockIndexTest, RememberedChildIsOnlyAGuess) {
  BlockIndex index;
  const Chain stem = MakeChain(1, 3);
  const std::vector<EntryId> ids = InsertAll(&index, stem, 1);
  const BlockKey parent = stem.blocks[2].key;
  const BlockIdentity a{ChildKey(parent, "a"), parent, "a"}, b{ChildKey(parent, "b"), parent, "b"};
  const EntryId first = index.Insert(a, 1, 0, 3, 1, ids[2]);
  const EntryId second = index.Insert(b, 1, 0, 3, 1, ids[2]);
  EXPECT_EQ(index.FindChild(ids[2], parent, "a", 1), first);
  EXPECT_EQ(index.FindChild(ids[2], parent, "b", 1), second);
  EXPECT_EQ(index.FindChild(kNoEntry, parent, "b", 1), second);
  EXPECT_EQ(index.FindChild(ids[2], parent, "c", 1), kNoEntry);
  index.Remove(second);
  EXPECT_EQ(index.FindChild(ids[2], parent, "b", 1), kNoEntry);
  const BlockIdentity stranger{ChildKey(stem.blocks[0].key, "x"), stem.blocks[0].key, "x"};
  EXPECT_EQ(index.Insert(stranger, 1, 0, 1, 1), second);  // the entry is used again
  EXPECT_EQ(index.FindChild(ids[2], parent, "x", 1), kNoEntry);
  EXPECT_EQ(index.FindChild(ids[2], parent, "a", 1), first);
}

TEST(BlockIndexTest, PlacesABlockBesideItsParent) {
  BlockIndex index;
  const std::vector<EntryId> ids = InsertAll(&index, MakeChain(1, 4), 1);
  index.Enlist(ids[0], TierKind::kRam);
  index.Enlist(ids[1], TierKind::kRam);
  for (EntryId id : {ids[2], ids[3]}) index.Enlist(id, TierKind::kRam);
  index.Use(ids[2], ids[0]);
  index.Use(ids[3], ids[1]);
  index.CheckInvariants();
  std::vector<EntryId> order;
  for (EntryId id = index.oldest(TierKind::kRam); id != kNoEntry;
       id = index.NextNewer(id, TierKind::kRam)) {
    order.push_back(id);
  }
  EXPECT_EQ(order, (std::vector<EntryId>{ids[2], ids[0], ids[3], ids[1]}));
}

// The digest alone must never make a hit: each other field of the identity is changed under the
// same key, with the entry as the guess and without.
TEST(BlockIndexTest, EqualKeyWithAnotherIdentityIsAMiss) {
  BlockIndex index;
  const Chain chain = MakeChain(1, 2);
  const std::vector<EntryId> ids = InsertAll(&index, chain, 1);
  const BlockIdentity& block = chain.blocks[1];
  BlockKey other_parent = block.parent;
  other_parent.low ^= 1;
  for (EntryId previous : {kNoEntry, ids[0]}) {
    EXPECT_EQ(index.FindChild(previous, block.parent, block.bytes, 1), ids[1]);
    EXPECT_EQ(index.FindChild(previous, block.parent, "identity-1-X", 1), kNoEntry);
    EXPECT_EQ(index.FindChild(previous, block.parent, std::string(block.bytes) + "x", 1), kNoEntry);
    EXPECT_EQ(index.FindChild(previous, other_parent, block.bytes, 1), kNoEntry);
    EXPECT_EQ(index.FindChild(previous, block.parent, block.bytes, 2), kNoEntry);
  }
  // An entry whose key is another identity's, as a collision would make it.
  const BlockIdentity forged{ChildKey(block.key, "asked"), block.key, "stored"};
  const EntryId id = index.Insert(forged, 1, 0, 2, 1, ids[1]);
  EXPECT_EQ(index.FindKey(forged.key), id);
  EXPECT_EQ(index.FindChild(ids[1], block.key, "asked", 1), kNoEntry);
  EXPECT_EQ(index.FindChild(kNoEntry, block.key, "asked", 1), kNoEntry);
}

TEST(BlockIndexTest, OrderIsLeastRecentFirstAndTiersAreApart) {
  BlockIndex index;
  const std::vector<EntryId> ids = InsertAll(&index, MakeChain(1, 3), 1);
  for (EntryId id : ids) index.Enlist(id, TierKind::kRam);
  index.SetLocation(ids[2], 0, TierKind::kGpu, 7);
  index.Enlist(ids[2], TierKind::kGpu);
  index.CheckInvariants();
  EXPECT_EQ(index.oldest(TierKind::kRam), ids[0]);
  index.Unlist(ids[0], TierKind::kRam);
  index.Enlist(ids[0], TierKind::kRam);
  EXPECT_EQ(index.oldest(TierKind::kRam), ids[1]);
  EXPECT_EQ(index.NextNewer(ids[1], TierKind::kRam), ids[2]);
  EXPECT_EQ(index.oldest(TierKind::kGpu), ids[2]);
  index.CheckInvariants();
}

// A head that left a tier while its tail was in another comes back above the tail, which was used
// in between.
TEST(BlockIndexTest, AnAncestorComesBackAboveAProtectedDescendant) {
  for (bool as_much : {true, false}) {
    BlockIndex index(Eviction::kProtected);
    const std::vector<EntryId> ids = InsertAll(&index, MakeChain(1, 10), 1);
    index.Use(ids[0], kNoEntry);
    index.Use(ids[1], ids[0]);
    index.Leave(ids[0], TierKind::kRam);
    for (size_t i = 10; i-- > 1;) index.Enlist(ids[i], TierKind::kRam);
    if (as_much) index.UseAsMuch(ids[0], ids[1]);
    index.Enlist(ids[0], TierKind::kRam);
    EXPECT_EQ(index.newest(TierKind::kRam), as_much ? ids[0] : ids[1]);
    index.CheckInvariants();
  }
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
  EXPECT_TRUE(Walk(index, first, 1).empty());
}

// A prompt whose blocks were all found before, in RAM's order as a lookup leaves them.
class FollowUsedTest : public ::testing::Test {
 protected:
  static constexpr size_t kBlocks = 10;
  static constexpr SpaceId kSpace = 1;

  FollowUsedTest() : index_(Eviction::kProtected), chain_(MakeChain(3, kBlocks)) {
    for (std::string& identity : chain_.bytes) identity.resize(64, '.');
    BlockKey parent = chain_.blocks[0].parent;
    for (size_t i = 0; i < kBlocks; ++i) {
      chain_.blocks[i] = {ChildKey(parent, chain_.bytes[i]), parent, chain_.bytes[i]};
      parent = chain_.blocks[i].key;
      prompt_ += chain_.bytes[i];
    }
    ids_ = InsertAll(&index_, chain_, kSpace);
    for (size_t i = kBlocks; i-- > 0;) index_.Enlist(ids_[i], TierKind::kRam);
    for (EntryId id : ids_) index_.entry(id).hit = index_.entry(id).ssd_hit = true;
  }

  // Of the blocks after the first.
  uint64_t Followed(bool protects = false) {
    EntryId last = ids_[0];
    const std::string_view rest = std::string_view(prompt_).substr(64);
    const uint64_t followed = index_.FollowUsed(&last, rest, kBlocks, protects);
    EXPECT_EQ(last, ids_[followed]);
    return followed;
  }
  Entry& entry(size_t number) { return index_.entry(ids_[number]); }

  BlockIndex index_;
  Chain chain_;
  std::string prompt_;
  std::vector<EntryId> ids_;
};

TEST_F(FollowUsedTest, GoesToTheEndOfThePromptOrTheLimit) {
  EXPECT_EQ(Followed(), kBlocks - 1);
  EntryId last = ids_[2];
  EXPECT_EQ(index_.FollowUsed(&last, std::string_view(prompt_).substr(3 * 64), 4, false), 4u);
  EXPECT_EQ(last, ids_[6]);
  EXPECT_EQ(index_.FollowUsed(&last, std::string_view(prompt_).substr(7 * 64, 130), 9, false), 2u);
  EXPECT_EQ(index_.FollowUsed(&last, "", 9, false), 0u);
}

TEST_F(FollowUsedTest, EndsAtTheFirstOtherByte) {
  for (size_t at = 64; at < prompt_.size(); ++at) {
    prompt_[at] = static_cast<char>(prompt_[at] ^ 1);
    EXPECT_EQ(Followed(), at / 64 - 1) << "byte " << at;
    prompt_[at] = static_cast<char>(prompt_[at] ^ 1);
  }
  EXPECT_EQ(Followed(), kBlocks - 1);
}

TEST_F(FollowUsedTest, EndsAtABlockThatAUseWouldChange) {
  const auto ends = [this](const char* what, const auto& change, const auto& undo) {
    change(entry(5));
    EXPECT_EQ(Followed(), 4u) << what;
    undo(entry(5));
    EXPECT_EQ(Followed(), kBlocks - 1) << what;
  };
  ends(
      "not found before", [](Entry& e) { e.hit = false; }, [](Entry& e) { e.hit = true; });
  ends(
      "written since", [](Entry& e) { e.ssd_hit = false; }, [](Entry& e) { e.ssd_hit = true; });
  ends(
      "another namespace", [](Entry& e) { e.space = 2; }, [](Entry& e) { e.space = kSpace; });
  ends(
      "on SSD",
      [this](Entry&) {
        index_.SetLocation(ids_[5], 0, TierKind::kSsd, 1);
        index_.SetLocation(ids_[5], 0, TierKind::kRam, kNoLocation);
      },
      [this](Entry&) { index_.SetLocation(ids_[5], 0, TierKind::kRam, 5); });
  ends(
      "nowhere",
      [this](Entry&) {
        index_.SetLocation(ids_[5], 0, TierKind::kSsd, kNoLocation);
        index_.SetLocation(ids_[5], 0, TierKind::kRam, kNoLocation);
      },
      [this](Entry&) { index_.SetLocation(ids_[5], 0, TierKind::kRam, 5); });
  ends(
      "elsewhere in the order",
      [this](Entry&) {
        index_.Unlist(ids_[5], TierKind::kRam);
        index_.Enlist(ids_[5], TierKind::kRam);
      },
      [this](Entry&) {
        for (size_t i = 0; i < kBlocks; ++i) {
          index_.Renew(ids_[i], i == 0 ? kNoEntry : ids_[i - 1]);
        }
      });
  EXPECT_EQ(Followed(true), 0u) << "none is protected yet";
  EXPECT_TRUE(entry(0).IsBeside(kNoEntry, false));
}

TEST_F(FollowUsedTest, LeavesFromABlockThatIsNotUsedToOthers) {
  entry(0).hit = false;
  EXPECT_EQ(Followed(), 0u);
  entry(0).hit = true;
  EXPECT_EQ(Followed(), kBlocks - 1);
}

// The entries of a reset prompt stay while they are in use, linked as before.
TEST_F(FollowUsedTest, FindsNoneOfAResetPrompt) {
  for (EntryId id : ids_) {
    index_.entry(id).pins = 1;
    index_.Detach(id);
  }
  EXPECT_EQ(Followed(), 0u);
}

TEST_F(FollowUsedTest, FollowsNoChildThatHasLeftOrIsAnotherBlock) {
  const EntryId tail = ids_.back();
  index_.Leave(tail, TierKind::kRam);
  index_.SetLocation(tail, 0, TierKind::kRam, kNoLocation);
  index_.Remove(tail);
  EXPECT_EQ(Followed(), kBlocks - 2);
  const Chain other = MakeChain(4, 1);
  ASSERT_EQ(InsertAll(&index_, other, kSpace)[0], tail);
  index_.Enlist(tail, TierKind::kRam);
  index_.entry(tail).hit = index_.entry(tail).ssd_hit = true;
  EXPECT_EQ(Followed(), kBlocks - 2);
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
