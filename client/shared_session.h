// One connection to the daemon's shared-memory socket (kvtier.proto, "Shared memory"): the regions
// of its RAM tier that are mapped here, and the store region. No gRPC here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "common/clock.h"
#include "common/executor.h"
#include "common/mutex.h"
#include "common/status.h"
#include "common/unique_fd.h"

namespace kvtier {
class RegionListener;
struct MappedRegion;
}  // namespace kvtier

namespace kvtier::v1 {
class SharedMemoryMessage;
class SharedMemoryRequest;
class SharedRegion;
class SharedRetired;
}  // namespace kvtier::v1

namespace kvtier::client_internal {

// Memory of the daemon's that is mapped here until the object goes.
class SharedMapping {
 public:
  // Of the first `bytes` of `fd`, which must have them: a map beyond a file's end kills its reader.
  // `listener` (null: none) is told, and must outlive this.
  static absl::StatusOr<std::unique_ptr<SharedMapping>> Make(int fd, uint64_t bytes, bool writable,
                                                             RegionListener* listener);
  ~SharedMapping();
  SharedMapping(const SharedMapping&) = delete;
  SharedMapping& operator=(const SharedMapping&) = delete;

  std::span<std::byte> bytes() const { return bytes_; }
  // [offset, offset + bytes) lies within.
  bool Holds(uint64_t offset, uint64_t bytes) const {
    return offset <= bytes_.size() && bytes <= bytes_.size() - offset;
  }

 private:
  SharedMapping(std::span<std::byte> bytes, bool writable, RegionListener* listener);
  MappedRegion Told() const;

  const std::span<std::byte> bytes_;
  const bool writable_;
  RegionListener* const listener_;
};

// Thread-safe. A thread of its own reads the socket.
class SharedSession {
 public:
  static constexpr Duration kAnswerLimit = std::chrono::seconds(1);

  // Connects and waits for the welcome. `listener` (null: none) must outlive this and its maps.
  // UNAVAILABLE with the reason.
  static absl::StatusOr<std::unique_ptr<SharedSession>> Open(const std::string& path,
                                                             Duration limit,
                                                             RegionListener* listener);
  // Closes the connection, which ends the session. Maps that are in use stay as long as they are.
  ~SharedSession();

  const std::string& id() const { return id_; }

  // The map of a region, asked for when it is not here yet; whoever holds it may read it. A region
  // that the daemon has retired is unmapped, and the daemon told, when the last holder lets go.
  // NOT_FOUND: it is gone. ABORTED: the session has ended, or ends now because the daemon does not
  // answer within kAnswerLimit.
  absl::StatusOr<std::shared_ptr<const SharedMapping>> Map(uint64_t region) KVTIER_EXCLUDES(mutex_);

  bool ended() const KVTIER_EXCLUDES(mutex_);
  // Hangs up: nothing may be asked of this session any more.
  void End() KVTIER_EXCLUDES(mutex_);

  // The store region for one user at a time. ABORTED when the session has ended,
  // DEADLINE_EXCEEDED when others did not let go of it.
  class StoreRegion {
   public:
    explicit StoreRegion(SharedSession* session) : session_(session) {}
    ~StoreRegion() { session_->GiveBackStoreRegion(); }
    StoreRegion(const StoreRegion&) = delete;
    StoreRegion& operator=(const StoreRegion&) = delete;
    std::span<std::byte> bytes() const { return session_->store_region_->bytes(); }
    // Runs calls beside the one who fills the region.
    ThreadPool& caller() const { return session_->caller_; }

   private:
    SharedSession* const session_;
  };
  absl::StatusOr<std::unique_ptr<StoreRegion>> TakeStoreRegion(Duration limit)
      KVTIER_EXCLUDES(mutex_);
  uint64_t store_region_bytes() const { return store_region_->bytes().size(); }

 private:
  struct Region {
    bool opening = true;
    std::shared_ptr<const SharedMapping> mapping;  // null while it is opening
  };

  SharedSession(std::shared_ptr<UniqueFd> socket, std::string id,
                std::unique_ptr<SharedMapping> store_region, RegionListener* listener);
  // The regions go with the reader, which hears of it: not under the lock.
  void EndLocked() KVTIER_REQUIRES(mutex_);
  void ReadSocket();
  absl::Status TakeMessage(const v1::SharedMemoryMessage& message, UniqueFd fd);
  absl::Status TakeRegion(const v1::SharedRegion& region, const UniqueFd& fd);
  void DropRetired(const v1::SharedRetired& retired);
  void GiveBackStoreRegion() KVTIER_EXCLUDES(mutex_);

  const std::shared_ptr<UniqueFd> socket_;
  const std::string id_;
  const std::unique_ptr<SharedMapping> store_region_;
  RegionListener* const listener_;

  mutable Mutex mutex_;
  CondVar changed_;
  bool ended_ KVTIER_GUARDED_BY(mutex_) = false;
  bool storing_ KVTIER_GUARDED_BY(mutex_) = false;
  std::map<uint64_t, Region> regions_ KVTIER_GUARDED_BY(mutex_);

  ThreadPool caller_{1};
  ThreadPool reader_{1};  // last: it uses what is above
};

}  // namespace kvtier::client_internal
