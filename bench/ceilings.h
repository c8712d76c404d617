// What this machine can do at best: the limits that `kvtier bench` prints beside its figures.
//
// Everything that is measured as a limit is in ceilings.cc, so that a reader can audit it in one
// place:
//   memory   copying between warmed buffers larger than the cache
//   unary    a gRPC call that carries given numbers of bytes both ways and does nothing
//   stream   1 MiB messages of static, pre-faulted memory through a gRPC stream, either way; the
//   receiver
//            drops what came, or copies it into warmed memory
// The server is gRPC's callback server in a process of its own, the client gRPC's blocking calls on
// raw ByteBuffers, with the transport settings that kvtierd and its client have
// (common/channel_args.h): the two pay the same system calls and process switches, and only what
// kvtier adds is the difference.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "common/status.h"

namespace kvtier::bench {

inline constexpr uint64_t kTransferBlock = uint64_t{2} << 20;  // bytes
inline constexpr uint64_t kTransferBlocks = 64;                // of one transfer
inline constexpr uint64_t kTransferBytes = kTransferBlock * kTransferBlocks;

// Page-aligned memory that was written to, so that using it costs no page fault. Move-only.
class WarmMemory {
 public:
  explicit WarmMemory(uint64_t bytes);
  WarmMemory(WarmMemory&&) = default;
  WarmMemory& operator=(WarmMemory&&) = default;

  std::byte* data() { return memory_.get(); }
  uint64_t size() const { return bytes_; }
  std::span<std::byte> block(uint64_t i) {
    return {memory_.get() + i * kTransferBlock, kTransferBlock};
  }

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  std::unique_ptr<std::byte, Free> memory_;
  uint64_t bytes_;
};

// Seconds to copy kTransferBytes block by block from `from` to `to` (each at least that large): the
// better of memcpy and of CopyPast.
double MemcpySeconds(WarmMemory& from, WarmMemory& to);

enum class Receiver { kDrops, kCopies };

// A client of the ceiling server. One thread at a time.
class CeilingClient {
 public:
  // Tries once. UNAVAILABLE.
  static absl::StatusOr<std::unique_ptr<CeilingClient>> Connect(const std::string& address);
  virtual ~CeilingClient() = default;

  // One call with this many bytes each way.
  virtual absl::Status Unary(uint64_t request_bytes, uint64_t reply_bytes) = 0;
  // `bytes` from the server to the client, or the other way. REQUIRES: whole MiB.
  virtual absl::Status StreamDown(uint64_t bytes, Receiver receiver) = 0;
  virtual absl::Status StreamUp(uint64_t bytes, Receiver receiver) = 0;
};

// Lets malloc keep the memory of received messages for the next ones: first touch of fresh memory
// costs more than copying. For the whole process.
void KeepFreedMemory();

// Serves on `address` until SIGTERM or SIGINT. For the process that a benchmark starts.
absl::Status RunCeilingServer(const std::string& address);

}  // namespace kvtier::bench
