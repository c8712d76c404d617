// What Store and StoreShared have in common. Internal to the service; includes gRPC.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <memory>
#include <optional>
#include <span>

#include "service/call.h"
#include "storage/sessions.h"

namespace kvtier {

// A StoreSession, block by block, with the errors and the reply of the protocol. Not thread-safe.
class StoreWriter {
 public:
  // Errors: INVALID_ARGUMENT, NOT_FOUND (model), FAILED_PRECONDITION (DURABLE without an SSD tier).
  // `header` is used up; the message it was read from need not outlive this.
  static absl::StatusOr<std::unique_ptr<StoreWriter>> Open(ServiceCore* core,
                                                           wire::StoreHeader* header);

  const StoreSession& session() const { return *session_; }
  bool durable() const { return durable_; }  // the reply waits for the SSD

  // As StoreSession::PutInto.
  void PutInto(MemoryDomain domain) { session_->PutInto(domain); }

  // True when the block's bytes are wanted: they go to Buffer(). RESOURCE_EXHAUSTED when there is
  // no room for the first block: then nothing of the rest fits either, and is of no use.
  absl::StatusOr<bool> StartBlock(uint32_t block, TimePoint deadline);
  std::span<std::byte> Buffer(uint32_t block) { return session_->Buffer(block); }
  // `received`: the checksum of the bytes in Buffer(), if they were wanted; `sent`: the sender's,
  // or none, when what was received is taken as it is.
  void EndBlock(uint32_t block, bool wanted, uint64_t received, std::optional<uint64_t> sent);

  // Blocks from this one on can't be stored: one before them could not.
  void RejectFrom(uint32_t block);

  // When durable(). RESOURCE_EXHAUSTED when the SSD takes nothing, or the registered models cannot
  // be saved: the blocks stay in RAM. Blocks.
  absl::Status MakeDurable(TimePoint deadline);
  // The StoreResponse; blocks that were not ended are NOT_SENT from now on.
  grpc::ByteBuffer Reply();

 private:
  StoreWriter(ServiceCore* core, std::unique_ptr<StoreSession> session, bool durable)
      : core_(core), session_(std::move(session)), durable_(durable) {}
  absl::Status WriteDurably(TimePoint deadline);

  ServiceCore* const core_;
  const std::unique_ptr<StoreSession> session_;
  const bool durable_;
  uint32_t mismatches_ = 0;
};

}  // namespace kvtier
