// What the owner of a SlotPool does in tests: keeps content in slots under a tag each, and moves it
// when an extent drains.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <vector>

#include "common/check.h"
#include "gpu/slot_pool.h"

namespace kvtier {

// Bytes that say whose they are: every 8 of them are the tag mixed with their offset.
inline void FillContent(uint64_t tag, std::span<std::byte> to) {
  for (size_t at = 0; at < to.size(); at += sizeof(uint64_t)) {
    const uint64_t word = (tag + 1) * 0x9E3779B97F4A7C15ull + at;
    std::memcpy(to.data() + at, &word, std::min(sizeof(word), to.size() - at));
  }
}
inline bool HasContent(uint64_t tag, std::span<const std::byte> bytes) {
  std::vector<std::byte> wanted(bytes.size());
  FillContent(tag, wanted);
  return std::memcmp(wanted.data(), bytes.data(), bytes.size()) == 0;
}

// Not thread-safe. Tags count up from 0, so the smallest is the oldest. Its pool must be over
// memory that the CPU can touch, unless `content` is false.
class PoolOwner {
 public:
  struct Entry {
    SlotId slot;
    uint64_t bytes;
    MemoryDomain domain;
  };

  explicit PoolOwner(SlotPool* pool, bool content = true) : pool_(pool), content_(content) {}
  ~PoolOwner() { Clear(); }

  // Hears of each slot that the pool gave, before it is written to.
  void OnSlot(std::function<void(SlotId)> listener) { on_slot_ = std::move(listener); }

  // False when the pool gave no slot.
  bool Add(uint64_t bytes, MemoryDomain domain = {}) {
    Slot slot = pool_->Allocate(bytes, domain);
    if (!slot) return false;
    KVTIER_CHECK(slot.bytes().size() == bytes);
    if (on_slot_) on_slot_(slot.id());
    const uint64_t tag = next_tag_++;
    if (content_) FillContent(tag, slot.bytes());
    const SlotId id = slot.Release();
    pool_->SetOwner(id, tag);
    entries_[tag] = {id, bytes, domain};
    return true;
  }
  // How many could be added.
  uint64_t Fill(uint64_t bytes, MemoryDomain domain = {}) {
    uint64_t added = 0;
    while (Add(bytes, domain)) ++added;
    return added;
  }
  void Remove(uint64_t tag) {
    KVTIER_CHECK(Intact(tag));
    pool_->Free(entries_.at(tag).slot);
    entries_.erase(tag);
  }
  void RemoveOldest() { Remove(entries_.begin()->first); }
  void Clear() {
    while (!entries_.empty()) RemoveOldest();
  }
  bool Intact(uint64_t tag) const {
    const Entry& entry = entries_.at(tag);
    const std::span<const std::byte> bytes = pool_->Bytes(entry.slot);
    return bytes.size() == entry.bytes && (!content_ || HasContent(tag, bytes));
  }
  bool AllIntact() const {
    return std::all_of(entries_.begin(), entries_.end(),
                       [this](const auto& entry) { return Intact(entry.first); });
  }
  const std::map<uint64_t, Entry>& entries() const { return entries_; }

  // One drain. False when the pool had none to offer.
  bool DrainOne(uint64_t wanted_bytes, MemoryDomain domain = {}) {
    const std::optional<SlotPool::Drain> drain = pool_->BeginDrain(wanted_bytes, domain);
    if (!drain) return false;
    for (const SlotPool::Drain::Live& live : drain->live) Move(live, drain->domain);
    pool_->EndDrain(drain->extent);
    return true;
  }
  // To a lower capacity. Returns how many had to leave.
  uint64_t Shrink(uint64_t capacity_bytes) {
    pool_->SetCapacity(capacity_bytes);
    uint64_t removed = 0;
    while (pool_->OverCapacity()) {
      if (DrainOne(0)) continue;
      if (entries_.empty()) break;
      RemoveOldest();
      ++removed;
    }
    return removed;
  }
  uint64_t moves() const { return moves_; }

 private:
  void Move(const SlotPool::Drain::Live& live, MemoryDomain domain) {
    Entry& entry = entries_.at(live.owner);
    KVTIER_CHECK(entry.slot == live.slot && entry.bytes == live.bytes && entry.domain == domain);
    Slot to = pool_->Allocate(live.bytes, domain);
    if (!to) return;
    if (on_slot_) on_slot_(to.id());
    if (content_) {
      std::memcpy(to.bytes().data(), pool_->Bytes(live.slot).data(), live.bytes);
    }
    entry.slot = to.Release();
    pool_->SetOwner(entry.slot, live.owner);
    pool_->Free(live.slot);
    ++moves_;
  }

  SlotPool* const pool_;
  const bool content_;
  uint64_t next_tag_ = 0;
  uint64_t moves_ = 0;
  std::function<void(SlotId)> on_slot_;
  std::map<uint64_t, Entry> entries_;
};

}  // namespace kvtier
