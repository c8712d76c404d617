#include "storage/identity_pool.h"

#include <cstring>
#include <new>

#include "common/check.h"

namespace kvtier {

// At the head of its own memory, which is aligned to its size: so a slot finds its chunk.
struct alignas(64) IdentityPool::Chunk {
  Chunk* previous = nullptr;
  Chunk* next = nullptr;
  FreeSlot* free = nullptr;
  uint32_t slot_bytes = 0;
  uint32_t fresh = sizeof(Chunk);  // where the slots that were never used begin
  uint32_t live = 0;

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
};

IdentityPool::~IdentityPool() { KVTIER_CHECK(memory_bytes_ == 0); }

IdentityPool::Chunk* IdentityPool::ChunkOf(const char* identity) {
  return reinterpret_cast<Chunk*>(reinterpret_cast<uintptr_t>(identity) & ~(kChunkBytes - 1));
}

void IdentityPool::Link(Chunk* chunk) {
  Chunk*& first = open(chunk->slot_bytes);
  chunk->previous = nullptr;
  chunk->next = first;
  if (first != nullptr) first->previous = chunk;
  first = chunk;
}

void IdentityPool::Unlink(Chunk* chunk) {
  (chunk->previous != nullptr ? chunk->previous->next : open(chunk->slot_bytes)) = chunk->next;
  if (chunk->next != nullptr) chunk->next->previous = chunk->previous;
}

IdentityPool::Chunk* IdentityPool::AddChunk(size_t slot_bytes) {
  void* memory = ::operator new(kChunkBytes, std::align_val_t(kChunkBytes));
  memory_bytes_ += kChunkBytes;
  auto* chunk = new (memory) Chunk();
  chunk->slot_bytes = static_cast<uint32_t>(slot_bytes);
  Link(chunk);
  return chunk;
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
    if (chunk->full()) Unlink(chunk);
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
  if (was_full) Link(chunk);
  if (--chunk->live > 0) return;
  Unlink(chunk);
  memory_bytes_ -= kChunkBytes;
  ::operator delete(chunk, std::align_val_t(kChunkBytes));
}

}  // namespace kvtier
