// Shared memory for clients on this host: who may map what. docs/SHARED-MEMORY.md is the whole
// story.
//
// A client connects to a Unix socket (SOCK_SEQPACKET; the messages are in kvtier.proto), and a
// session lasts as long as its connection. It gets a store region of its own, which it may write,
// and asks for regions of the RAM tier, which nobody but this process can. The calls FetchShared
// and StoreShared name the session by its id.
#pragma once

#include <poll.h>
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "common/executor.h"
#include "common/metrics.h"
#include "common/mutex.h"
#include "common/status.h"
#include "common/unique_fd.h"
#include "gpu/shared_host_memory.h"

namespace kvtier {

// The memory through which one session stores (common/store_ring.h). A memfd sealed against another
// size, so that whoever has it cannot make this process fault; its pages come at first touch. Its
// content is the client's and may change at any moment, in the middle of a read too: read each byte
// once. Thread-safe.
class StoreRegion {
 public:
  // For a client of `domain`.
  static absl::StatusOr<std::shared_ptr<StoreRegion>> Make(uint64_t bytes, MemoryDomain domain);
  ~StoreRegion();
  StoreRegion(const StoreRegion&) = delete;
  StoreRegion& operator=(const StoreRegion&) = delete;

  int fd() const { return fd_.get(); }
  std::span<std::byte> bytes() const { return bytes_; }
  // Of the RAM tier: where what comes through this region is to lie, and all that its client may
  // map.
  MemoryDomain domain() const { return domain_; }
  uint64_t backed_bytes() const;  // of the pages that are there

  // For one call at a time: false while another has it. `stop` is set when the session ends, at
  // once when it has; until Release.
  bool Acquire(std::atomic<bool>* stop) KVTIER_EXCLUDES(mutex_);
  void Release() KVTIER_EXCLUDES(mutex_);
  // What serves a session that has ended would be beyond the number of sessions: threads, memory.
  void EndSession() KVTIER_EXCLUDES(mutex_);
  bool session_ended() const KVTIER_EXCLUDES(mutex_);

 private:
  StoreRegion(UniqueFd fd, std::span<std::byte> bytes, MemoryDomain domain)
      : fd_(std::move(fd)), bytes_(bytes), domain_(domain) {}

  const UniqueFd fd_;
  const std::span<std::byte> bytes_;
  const MemoryDomain domain_;

  mutable Mutex mutex_;
  std::atomic<bool>* stop_ KVTIER_GUARDED_BY(mutex_) = nullptr;  // of the call that has it
  bool session_ended_ KVTIER_GUARDED_BY(mutex_) = false;
};

// Who shares one pool of the RAM tier, and so can read all of it: all clients, or those of one uid.
enum class SharedMemoryPools : uint8_t { kOne, kPerUid };
inline constexpr std::string_view kSharedMemoryPoolsNames[] = {"one", "per-uid"};

struct SharedMemoryOptions {
  std::string socket_path;
  // Who may connect besides this process's own user and root. With any the socket is open to all
  // (0666), else to this user alone (0600); the kernel's word on the peer's uid is what counts.
  std::vector<uid_t> uids;
  // With kPerUid each client's blocks lie in a domain of its uid, and it may map no other. What
  // came over gRPC lies in the common domain, which is nobody's then.
  SharedMemoryPools pools = SharedMemoryPools::kOne;
  uint32_t max_sessions = 64;
  uint64_t store_region_bytes = uint64_t{8} << 20;  // of each session; rounded up to pages
};

// What the calls count.
struct SharedMemoryCounters {
  Counter fetched_blocks;  // parts of blocks told by FetchShared, and their bytes
  Counter fetched_bytes;
  Counter not_shared_blocks;
  Counter stored_blocks;  // parts of blocks committed by StoreShared, and their bytes
  Counter stored_bytes;
};

struct SharedMemoryStats {
  uint64_t sessions = 0;
  uint64_t open_regions = 0;     // of the RAM tier, handed out to sessions that are there
  uint64_t store_bytes = 0;      // memory behind the sessions' store regions
  uint64_t retired_regions = 0;  // given up by the RAM tier, still held by some process
  uint64_t retired_bytes = 0;
  uint64_t sessions_total = 0;
  uint64_t refused_total = 0;  // connections: uid not allowed, or too many
  uint64_t cut_off_total = 0;  // sessions: garbage, or a flood
  // Of the calls.
  uint64_t fetched_blocks = 0, fetched_bytes = 0, not_shared_blocks = 0;
  uint64_t stored_blocks = 0, stored_bytes = 0;
};

// Thread-safe. One thread serves all sessions and never waits for one of them.
class SharedMemory {
 public:
  static constexpr uint64_t kMaxUnanswered = 64;       // open_region requests of one session
  static constexpr uint64_t kPacketsPerSecond = 4096;  // of one session, a second's worth at once
  static constexpr uint64_t kMaxPacketBytes = uint64_t{64} << 10;

  // Listens. `memory` must outlive it. Errors: the socket's, naming the path.
  static absl::StatusOr<std::unique_ptr<SharedMemory>> Start(SharedMemoryOptions options,
                                                             SharedHostMemory* memory);
  // Ends all sessions and removes the socket.
  ~SharedMemory();

  const std::string& socket_path() const { return options_.socket_path; }

  // The store region of the session that is there by that id; it stays mapped while it is held,
  // even if the session ends. NOT_FOUND.
  absl::StatusOr<std::shared_ptr<StoreRegion>> Find(std::string_view session_id) const
      KVTIER_EXCLUDES(mutex_);

  // For calls that wait for their client, one of each session at most: they never wait for each
  // other. Tasks must have ended before what they use goes.
  ThreadPool& store_threads() { return store_threads_; }

  // Lets go of what clients have let go of; call it every now and then.
  void Tick() { memory_->retired(); }

  SharedMemoryCounters& counters() { return counters_; }
  const SharedMemoryCounters& counters() const { return counters_; }
  SharedMemoryStats stats() const KVTIER_EXCLUDES(mutex_);

 private:
  struct Session;
  enum class Sent { kYes, kLater, kNever };  // kNever: the peer is gone

  SharedMemory(SharedMemoryOptions options, SharedHostMemory* memory, UniqueFd listener,
               UniqueFd wake);

  void Wake();
  void OnRetired(uint64_t region) KVTIER_EXCLUDES(mutex_);
  // The thread's. Those that return bool are false when the session is to end.
  void Serve();
  void ServeReady(std::span<const pollfd> polled);
  void AcceptAll();
  absl::Status Begin(UniqueFd socket, uid_t uid) KVTIER_EXCLUDES(mutex_);
  void End(Session* session) KVTIER_EXCLUDES(mutex_);
  std::optional<uid_t> AllowedUid(int socket) const;
  MemoryDomain DomainOf(uid_t uid) const;
  bool ReadAll(Session* session);
  bool Take(Session* session, std::span<const char> packet);
  bool CutOff(std::string_view why);
  bool Flush(Session* session) KVTIER_EXCLUDES(mutex_);
  Sent AnswerOpen(Session* session, uint64_t region) KVTIER_EXCLUDES(mutex_);
  Sent TellRetired(Session* session) KVTIER_EXCLUDES(mutex_);
  bool HasOutput(const Session& session) const KVTIER_EXCLUDES(mutex_);

  // Constant.
  const SharedMemoryOptions options_;
  SharedHostMemory* const memory_;
  const UniqueFd listener_;
  const UniqueFd wake_;

  SharedMemoryCounters counters_;
  Counter sessions_total_;
  Counter refused_total_;
  Counter cut_off_total_;

  // The thread's.
  bool accepts_ = true;  // false: descriptors have run out, for a moment

  mutable Mutex mutex_;
  bool stopping_ KVTIER_GUARDED_BY(mutex_) = false;
  // Changed by the thread alone.
  absl::flat_hash_map<std::string, std::unique_ptr<Session>> sessions_ KVTIER_GUARDED_BY(mutex_);

  ThreadPool store_threads_;
  ThreadPool thread_{1};  // last: its task uses all of the above
};

}  // namespace kvtier
