#include "storage/block_index.h"

#include <algorithm>

#include "common/check.h"

namespace kvtier {

std::string_view TierName(TierKind tier) {
  static constexpr std::string_view kNames[kTiers] = {"gpu", "ram", "ssd"};
  return kNames[static_cast<int>(tier)];
}

bool PartState::present() const {
  return std::any_of(at.begin(), at.end(), [](Location l) { return l != kNoLocation; });
}

BlockIndex::BlockIndex(Eviction eviction)
    : orders_{Order(EntryLinks{&chunks_, 0}, ProtectedPercent(eviction)),
              Order(EntryLinks{&chunks_, 1}, ProtectedPercent(eviction))} {}

BlockIndex::~BlockIndex() {
  for (EntryId id = 0; id < next_fresh_; ++id) {
    Entry& e = entry(id);
    if (!live(id)) continue;
    identities_.Free(e.identity, e.identity_bytes);
    if (e.part_count > 1) delete[] e.many;
  }
}

EntryId BlockIndex::FindByKey(const BlockKey& parent, std::string_view identity,
                              SpaceId space) const {
  const EntryId id = FindKey(ChildKey(parent, identity));
  return id != kNoEntry && Matches(entry(id), parent, identity, space) ? id : kNoEntry;
}

uint64_t BlockIndex::FollowUsed(EntryId* previous, std::string_view identities, uint64_t limit,
                                bool protects) const {
  EntryId parent = *previous;
  const Entry* last = &entry(parent);
  if (!live(parent) || !last->used()) return 0;
  const size_t bytes = last->identity_bytes;
  const char* identity = identities.data();
  limit = std::min<uint64_t>(limit, identities.size() / bytes);
  uint64_t followed = 0;
  for (; followed < limit; ++followed, identity += bytes) {
    const EntryId id = last->child;
    if (id >= next_fresh_) break;
    if (id + kAhead < next_fresh_) __builtin_prefetch(&entry(id + kAhead));
    const Entry* e = &entry(id);
    if (!e->SameMarks(*last) || e->parent != last->key || !e->IsBeside(parent, protects)) break;
    __builtin_prefetch(e->identity + kAhead * bytes);
    if (!SameBytes(e->identity, identity, bytes)) break;
    parent = id;
    last = e;
  }
  *previous = parent;
  return followed;
}

EntryId BlockIndex::FindKey(const BlockKey& key) const {
  const auto it = ids_.find(key);
  return it == ids_.end() ? kNoEntry : it->second;
}

EntryId BlockIndex::TakeId() {
  if (free_ != kNoEntry) {
    const EntryId id = free_;
    free_ = entry(id).child;
    return id;
  }
  if (next_fresh_ == chunks_.size() * kChunk) {
    KVTIER_CHECK(next_fresh_ < kNoEntry - kChunk);
    chunks_.push_back(std::make_unique<Entry[]>(kChunk));
  }
  return next_fresh_++;
}

EntryId BlockIndex::Insert(const BlockIdentity& block, SpaceId space, uint32_t model,
                           uint32_t depth, uint16_t part_count, EntryId previous) {
  KVTIER_CHECK(part_count > 0 && block.bytes.size() <= kMostIdentityBytes);
  const EntryId id = TakeId();
  const bool inserted = ids_.emplace(block.key, id).second;
  KVTIER_CHECK(inserted);
  Entry* e =
      new (&entry(id)) Entry();  // entries are trivially abandoned: this resets a recycled one
  e->key = block.key;
  e->parent = block.parent;
  e->identity = identities_.Copy(block.bytes);
  e->identity_bytes = static_cast<uint32_t>(block.bytes.size());
  e->space = space;
  e->model = model;
  e->depth = depth;
  e->part_count = part_count;
  if (previous != kNoEntry) entry(previous).child = id;
  if (part_count > 1) {
    e->many = new PartState[part_count];
    part_array_bytes_ += part_count * sizeof(PartState);
  }
  identity_bytes_ += block.bytes.size();
  ++size_;
  return id;
}

void BlockIndex::Remove(EntryId id) {
  Entry& e = entry(id);
  KVTIER_CHECK(live(id) && e.parts_present == 0 && !e.in_use());
  for (TierKind tier : kMemoryTiers) KVTIER_CHECK(!e.listed(tier));
  if (!e.detached) ids_.erase(e.key);
  identity_bytes_ -= e.identity_bytes;
  identities_.Free(e.identity, e.identity_bytes);
  e.identity = nullptr;
  static_cast<EntryMarks&>(e) = EntryMarks();
  if (e.part_count > 1) {
    delete[] e.many;
    part_array_bytes_ -= e.part_count * sizeof(PartState);
  }
  e.child = free_;
  free_ = id;
  --size_;
}

void BlockIndex::Detach(EntryId id) {
  Entry& e = entry(id);
  KVTIER_CHECK(!e.detached);
  for (TierKind tier : kMemoryTiers) Unlist(id, tier);
  ids_.erase(e.key);
  e.detached = true;
}

std::span<PartState> BlockIndex::parts(EntryId id) {
  Entry& e = entry(id);
  return e.part_count == 1 ? std::span<PartState>(&e.one, 1)
                           : std::span<PartState>(e.many, e.part_count);
}

std::span<const PartState> BlockIndex::parts(EntryId id) const {
  const Entry& e = entry(id);
  return e.part_count == 1 ? std::span<const PartState>(&e.one, 1)
                           : std::span<const PartState>(e.many, e.part_count);
}

bool BlockIndex::CompleteIn(EntryId id, TierKind tier) const {
  for (const PartState& part : parts(id)) {
    if (part.at[static_cast<int>(tier)] == kNoLocation) return false;
  }
  return true;
}

bool BlockIndex::AnyIn(EntryId id, TierKind tier) const {
  for (const PartState& part : parts(id)) {
    if (part.at[static_cast<int>(tier)] != kNoLocation) return true;
  }
  return false;
}

TierKind BlockIndex::BestTier(EntryId id) const {
  int slowest = 0;
  for (const PartState& part : parts(id)) {
    int best = 0;
    while (best < kTiers - 1 && part.at[best] == kNoLocation) ++best;
    slowest = std::max(slowest, best);
  }
  return static_cast<TierKind>(slowest);
}

void BlockIndex::SetLocation(EntryId id, uint16_t part, TierKind tier, Location location) {
  Entry& e = entry(id);
  PartState& state = parts(id)[part];
  const int t = static_cast<int>(tier);
  const bool was_complete = e.complete();
  const bool was_complete_in = CompleteIn(id, tier);
  const bool was_present = state.present();
  state.at[t] = location;
  e.parts_present += static_cast<int>(state.present()) - static_cast<int>(was_present);
  e.whole = e.parts_present == e.part_count;
  e.best = BestTier(id);
  complete_ += static_cast<int>(e.complete()) - static_cast<int>(was_complete);
  complete_in_[t] += static_cast<int>(CompleteIn(id, tier)) - static_cast<int>(was_complete_in);
}

void BlockIndex::Enlist(EntryId id, TierKind tier) {
  KVTIER_CHECK(!entry(id).detached);
  order(tier).Place(id, kNoEntry);
}

void BlockIndex::Use(EntryId id, EntryId parent) {
  for (TierKind tier : kMemoryTiers) order(tier).Use(id, parent);
}

void BlockIndex::Renew(EntryId id, EntryId parent) {
  for (TierKind tier : kMemoryTiers) order(tier).Renew(id, parent);
}

void BlockIndex::UseAsMuch(EntryId ancestor, EntryId descendant) {
  for (int tier = 0; tier < kOrders; ++tier) {
    OrderLinks& links = entry(ancestor).order[tier];
    if (!links.listed && entry(descendant).order[tier].used) links.used = true;
  }
}

uint64_t BlockIndex::memory_bytes() const {
  const uint64_t map_bytes = ids_.capacity() * (sizeof(std::pair<BlockKey, EntryId>) + 1);
  return chunks_.size() * kChunk * sizeof(Entry) + map_bytes + part_array_bytes_ +
         identities_.memory_bytes();
}

void BlockIndex::CheckInvariants() const {
  uint64_t live_entries = 0, mapped = 0, complete = 0;
  std::array<uint64_t, kTiers> complete_in{};
  std::array<uint64_t, kOrders> listed{};
  for (EntryId id = 0; id < next_fresh_; ++id) {
    const Entry& e = entry(id);
    if (!live(id)) continue;
    ++live_entries;
    if (e.detached) {
      KVTIER_CHECK(e.in_use());
    } else {
      KVTIER_CHECK(FindKey(e.key) == id);
      ++mapped;
    }
    uint16_t present = 0;
    for (const PartState& part : parts(id)) present += part.present();
    KVTIER_CHECK(present == e.parts_present && e.whole == (present == e.part_count));
    KVTIER_CHECK(e.best == BestTier(id));
    complete += e.complete();
    for (TierKind tier : kAllTiers) {
      const int t = static_cast<int>(tier);
      complete_in[t] += CompleteIn(id, tier);
      if (tier == TierKind::kSsd) continue;
      listed[t] += e.listed(tier);
      if (e.listed(tier)) KVTIER_CHECK(e.pins == 0 && !e.detached && AnyIn(id, tier));
    }
  }
  KVTIER_CHECK(live_entries == size_ && mapped == ids_.size() && complete == complete_);
  KVTIER_CHECK(complete_in == complete_in_);
  for (TierKind tier : kMemoryTiers) {
    const int t = static_cast<int>(tier);
    uint64_t walked = 0, shielded = 0;
    EntryId older = kNoEntry;
    for (EntryId id = oldest(tier); id != kNoEntry; id = NextNewer(id, tier)) {
      const OrderLinks& links = entry(id).order[Entry::OrderOf(tier)];
      KVTIER_CHECK(links.listed && links.older == older);
      shielded += links.used;
      KVTIER_CHECK(links.used == (shielded > 0));
      older = id;
      ++walked;
    }
    KVTIER_CHECK(newest(tier) == older && walked == listed[t] && walked == order(tier).size());
    KVTIER_CHECK(shielded == order(tier).protected_size());
  }
}

}  // namespace kvtier
