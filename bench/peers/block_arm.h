// One system under comparison, as one client of it: what bench/peers/peers.py has done to it.
//
// Everything a call needs that is not the call itself is done by Prepare and PrepareLookup, outside
// the measured time. Not thread-safe. All errors end the run: a rate with one failed operation in
// it is none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/status.h"

namespace kvtier::bench {

// A batch of blocks. No two have the same name in a run.
struct BatchName {
  uint32_t serial = 0;  // of the measurement
  uint32_t client = 0;
  uint32_t batch = 0;
};

using Payloads = std::span<const std::span<const std::byte>>;
using Buffers = std::span<const std::span<std::byte>>;

// Of the blocks asked for, in prompt order: all are there, none, or the first half.
enum class Shape { kHit, kMiss, kPartial };
inline uint32_t FoundOf(Shape shape, uint32_t blocks) {
  if (shape == Shape::kMiss) return 0;
  return shape == Shape::kHit ? blocks : blocks / 2;
}

class BlockArm {
 public:
  virtual ~BlockArm() = default;

  // False for what only has a server's timing: what Get brings is not compared.
  virtual bool keeps() const { return true; }
  // Before calls with blocks of another size. Returns how the server names what this size stores,
  // empty where it has no such name.
  virtual absl::StatusOr<std::string> Prepare(uint64_t block_bytes) = 0;
  // Stores blocks that are not there. Returns once the server has answered for all.
  virtual absl::Status Put(const BatchName& name, Payloads payloads) = 0;
  // Fetches what Put stored into warmed memory; every block must be there.
  virtual absl::Status Get(const BatchName& name, Buffers buffers) = 0;
  // Removes what Put stored, where the client does that.
  virtual absl::Status Drop(const BatchName& name, uint32_t blocks) = 0;

  // Stores small blocks: what the lookups then find.
  virtual absl::Status StoreChain(uint32_t blocks) = 0;
  virtual absl::Status PrepareLookup(Shape shape, uint32_t blocks) = 0;
  // How many of the blocks are there.
  virtual absl::StatusOr<uint32_t> Lookup() = 0;
};

// `address` is "unix:PATH" or "HOST:PORT" for all. `shared`: payload through shared memory, and a
// Get is what an engine does, a Lookup that takes a lease and a Fetch by it; otherwise all over
// gRPC.
absl::StatusOr<std::unique_ptr<BlockArm>> MakeKvtierArm(const std::string& address, bool shared);
// Redis as a store of blocks. Nothing checks the bytes, but with kXxh3 the client, which hashes
// each block before SET and after GET as kvtier's client and daemon do. Lookups are one EXISTS with
// all keys, whose answer is a count; with kEach one EXISTS for each, sent together.
enum class RedisMode { kPlain, kEach, kXxh3 };
absl::StatusOr<std::unique_ptr<BlockArm>> MakeRedisArm(const std::string& address, RedisMode mode);
// No system, but gRPC: a unary call with the payload in it, or whole MiB through a stream, from
// `kvtier bench-ceiling-server`. What a service over gRPC cannot exceed.
absl::StatusOr<std::unique_ptr<BlockArm>> MakeGrpcArm(const std::string& address);
// No system at all: the same bytes each way over the same kind of socket. The ceiling.
absl::StatusOr<std::unique_ptr<BlockArm>> MakeRawArm(const std::string& address);

// The raw arm's other end. Returns only when it cannot listen.
absl::Status RunRawServer(const std::string& address);

}  // namespace kvtier::bench
