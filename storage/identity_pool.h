// Where a BlockIndex keeps what its blocks are: their tokens, or the engine's hashes.
//
// Identities of one size that are stored in a row lie in a row, each in as few cache lines as it
// can be: a walk down a prompt compares thousands of them, and waits for memory more than for
// anything else.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace kvtier {

// Not thread-safe.
class IdentityPool {
 public:
  IdentityPool() = default;
  // REQUIRES: everything was freed.
  ~IdentityPool();
  IdentityPool(const IdentityPool&) = delete;
  IdentityPool& operator=(const IdentityPool&) = delete;

  // A copy, which stays where it is until it is freed.
  const char* Copy(std::string_view identity);
  // REQUIRES: `identity` is a copy of `bytes` bytes from here.
  void Free(const char* identity, size_t bytes);

  uint64_t memory_bytes() const { return memory_bytes_; }

 private:
  static constexpr size_t kChunkBytes = size_t{64} << 10;
  static constexpr size_t kStep = 16;       // slots are multiples of it
  static constexpr size_t kLargest = 1024;  // what is longer is allocated by itself
  struct Chunk;
  struct FreeSlot {
    FreeSlot* next;
  };

  static size_t SlotBytes(size_t bytes) { return (bytes + kStep - 1) / kStep * kStep; }
  static Chunk* ChunkOf(const char* identity);
  Chunk*& open(size_t slot_bytes) { return open_[slot_bytes / kStep]; }
  Chunk* AddChunk(size_t slot_bytes);
  void Link(Chunk* chunk);
  void Unlink(Chunk* chunk);

  // By size: the chunks with a free slot, linked both ways.
  std::array<Chunk*, kLargest / kStep + 1> open_{};
  uint64_t memory_bytes_ = 0;
};

}  // namespace kvtier
