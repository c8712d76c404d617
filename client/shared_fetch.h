// Fetches by lease out of the daemon's own memory.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "client/core.h"
#include "client/shared_session.h"
#include "common/running_checksum.h"
#include "kvtier/client.h"

namespace kvtier::client_internal {

// A block's part where the daemon has it.
struct SharedPart {
  uint32_t block = 0;  // from the prompt's first block
  uint64_t checksum = 0;
  std::span<const std::byte> bytes;
  std::shared_ptr<const SharedMapping> mapping;  // keeps them readable, not unchanged
};
using OnSharedPart = std::function<absl::Status(const SharedPart&)>;

enum class SharedStatus : uint8_t { kMiss, kOk, kNotShared };

// Whether a lease's blocks are still what they were.
class LeaseWatch {
 public:
  LeaseWatch(const Core* core, uint64_t lease_id, std::optional<TimePoint> end)
      : core_(core), lease_id_(lease_id), end_(end) {}
  // The end is known: by the client's own Lookup or Renew, or because the caller said it.
  bool known() const { return Left().has_value(); }
  // By the client's clock; whatever was read before is right.
  bool over() const { return Left().value_or(Duration::zero()) <= Duration::zero(); }

 private:
  std::optional<Duration> Left() const;

  const Core* core_;
  uint64_t lease_id_;
  std::optional<TimePoint> end_;
};

// One FetchShared call: `on_part` sees each block that is OK, in order, as the daemon names it.
// Returns each block's status; without allow_gaps what follows a block that is not OK is what that
// one is. INTERNAL: the reply breaks the protocol. ABORTED: the session was lost.
absl::StatusOr<std::vector<SharedStatus>> CallFetchShared(Core* core, SharedSession* session,
                                                          uint64_t lease_id,
                                                          const FetchParams& params, Duration limit,
                                                          const OnSharedPart& on_part);

// Copies parts into buffers or shows them to a visitor, piece by piece, and hashes each piece while
// it is in the CPU's cache: it is read from memory once. Not thread-safe.
class SharedReader {
 public:
  // What the arguments point at must outlive the reader. `visit` null: copy into `buffers`.
  SharedReader(const FetchParams& params, std::span<const std::span<std::byte>> buffers,
               const PieceVisitor* visit, bool verify)
      : params_(params), buffers_(buffers), visit_(visit), verify_(verify) {}

  // The block read, or nothing when its checksum does not match. INTERNAL: the buffer is of another
  // size.
  absl::StatusOr<std::optional<FetchedBlock>> Read(const SharedPart& part);

 private:
  void Show(const SharedPart& part);

  const FetchParams& params_;
  const std::span<const std::span<std::byte>> buffers_;
  const PieceVisitor* const visit_;
  const bool verify_;
  RunningChecksum checksum_;
};

}  // namespace kvtier::client_internal
