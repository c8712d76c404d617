#include "storage/identity_pool.h"

#include <cstring>
#include <new>

#include "common/check.h"
#include "common/slab.h"

namespace kvtier {

// At the head of its own memory, which is aligned to its size: so a slot finds its chunk.
struct alignas(64) IdentityPool::Chunk {
  Chunk* previous = nullptr;  // in the list that `first` begins
  Chunk* next = nullptr;
  FreeSlot* free = nullptr;
  uint32_t slot_bytes = 0;
  uint32_t fresh = sizeof(Chunk);  // where the slots that were never used begin
  uint32_t live = 0;
  uint32_t slab_in_use = 0;  // of a slab's first chunk: how many of the slab's are in use

  bool full() const { return free == nullptr && fresh + slot_bytes > kChunkBytes; }
  char* Take() {
    ++live;
    if (free != nullptr) {
      char* slot = reinterpret_cast<char*>(free);
      free = free->next;
      return slot;
    }
    char* slot = reinterpret_cast<char*>(this) + fresh;
    fresh += slot_bytes;
    return slot;
  }

  void Link(Chunk** first) {
    previous = nullptr;
    next = *first;
    if (next != nullptr) next->previous = this;
    *first = this;
  }
  void Unlink(Chunk** first) {
    (previous != nullptr ? previous->next : *first) = next;
    if (next != nullptr) next->previous = previous;
  }
};

IdentityPool::~IdentityPool() { KVTIER_CHECK(memory_bytes_ == 0); }

IdentityPool::Chunk* IdentityPool::ChunkOf(const void* inside) {
  return reinterpret_cast<Chunk*>(reinterpret_cast<uintptr_t>(inside) & ~(kChunkBytes - 1));
}

IdentityPool::Chunk* IdentityPool::FirstOfSlab(const Chunk* chunk) {
  return reinterpret_cast<Chunk*>(reinterpret_cast<uintptr_t>(chunk) & ~(kSlabBytes - 1));
}

void IdentityPool::AddSlab() {
  char* const slab = MakeSlab<char>().release();
  memory_bytes_ += kSlabBytes;
  for (size_t at = kSlabBytes; at > 0; at -= kChunkBytes) {
    (new (slab + at - kChunkBytes) Chunk())->Link(&spare_);
  }
}

void IdentityPool::DropSlab(Chunk* first) {
  char* const slab = reinterpret_cast<char*>(first);
  for (size_t at = 0; at < kSlabBytes; at += kChunkBytes) ChunkOf(slab + at)->Unlink(&spare_);
  Slab<char>(slab).reset();
  memory_bytes_ -= kSlabBytes;
}

IdentityPool::Chunk* IdentityPool::AddChunk(size_t slot_bytes) {
  if (spare_ == nullptr) AddSlab();
  Chunk* const chunk = spare_;
  chunk->Unlink(&spare_);
  ++FirstOfSlab(chunk)->slab_in_use;
  chunk->slot_bytes = static_cast<uint32_t>(slot_bytes);
  chunk->Link(&open(slot_bytes));
  return chunk;
}

// REQUIRES: nothing in it is live, and it is in no list.
void IdentityPool::DropChunk(Chunk* chunk) {
  chunk->free = nullptr;
  chunk->fresh = sizeof(Chunk);
  chunk->Link(&spare_);
  Chunk* const first = FirstOfSlab(chunk);
  if (--first->slab_in_use == 0) DropSlab(first);
}

const char* IdentityPool::Copy(std::string_view identity) {
  KVTIER_CHECK(!identity.empty());
  char* copy = nullptr;
  const size_t slot_bytes = SlotBytes(identity.size());
  if (slot_bytes > kLargest) {
    copy = new char[identity.size()];
    memory_bytes_ += identity.size();
  } else {
    Chunk* chunk = open(slot_bytes) != nullptr ? open(slot_bytes) : AddChunk(slot_bytes);
    copy = chunk->Take();
    if (chunk->full()) chunk->Unlink(&open(slot_bytes));
  }
  std::memcpy(copy, identity.data(), identity.size());
  return copy;
}

void IdentityPool::Free(const char* identity, size_t bytes) {
  if (SlotBytes(bytes) > kLargest) {
    delete[] identity;
    memory_bytes_ -= bytes;
    return;
  }
  Chunk* chunk = ChunkOf(identity);
  const bool was_full = chunk->full();
  auto* slot = reinterpret_cast<FreeSlot*>(const_cast<char*>(identity));
  slot->next = chunk->free;
  chunk->free = slot;
  Chunk** const list = &open(chunk->slot_bytes);
  if (was_full) chunk->Link(list);
  if (--chunk->live > 0) return;
  chunk->Unlink(list);
  DropChunk(chunk);
}

}  // namespace kvtier
