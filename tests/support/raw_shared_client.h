// A shared-memory client made of nothing but system calls and generated messages, as any other
// language's is; and one that can misbehave.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "common/unique_fd.h"
#include "kvtier/v1/kvtier.pb.h"

namespace kvtier {

// A mapping of its own. Move-only.
class Mapping {
 public:
  Mapping() = default;
  // Aborts when the kernel refuses.
  Mapping(int fd, uint64_t bytes, bool writable);
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();
  std::span<std::byte> bytes() const { return bytes_; }

 private:
  std::span<std::byte> bytes_;
};

class RawSharedClient {
 public:
  struct Packet {
    v1::SharedMemoryMessage message;
    UniqueFd fd;  // what came along
  };

  // Connects; no welcome is read. Aborts when it cannot.
  explicit RawSharedClient(const std::string& socket_path);
  // And reads the welcome, and maps the store region.
  static RawSharedClient Joined(const std::string& socket_path);
  // The same as a process of `uid` would: only the thread that calls is somebody else, and only
  // while it connects. REQUIRES: root; and a socket that `uid` may connect to.
  static RawSharedClient JoinedAs(const std::string& socket_path, uid_t uid);

  int socket() const { return socket_.get(); }
  const std::string& session_id() const { return session_id_; }
  std::span<std::byte> store() const { return store_.bytes(); }
  int store_fd() const { return store_fd_.get(); }

  // Empty once the daemon has closed the connection. Waits for at most 20 s, then aborts.
  std::optional<Packet> Receive();
  // Reads until the connection is closed.
  void ExpectClosed();
  // False when the connection is closed. `fd` goes along when it is >= 0.
  bool SendBytes(std::string_view packet, int fd = -1);
  bool Send(const v1::SharedMemoryRequest& request) {
    return SendBytes(request.SerializeAsString());
  }
  bool AskFor(uint64_t region);
  bool SayReleased(uint64_t region);

  // Asks for the region and maps it, once; retired messages that come before the answer are noted.
  // Empty: it is gone.
  std::span<const std::byte> Map(uint64_t region);
  int region_fd(uint64_t region) const { return regions_.at(region).fd.get(); }
  // Waits until the daemon has told that the region is retired.
  void WaitRetired(uint64_t region);
  void Unmap(uint64_t region) { regions_.erase(region); }

 private:
  struct Region {
    UniqueFd fd;
    Mapping mapping;
  };

  void ReadWelcome();
  void Note(const v1::SharedRetired& retired);

  UniqueFd socket_;
  std::string session_id_;
  UniqueFd store_fd_;
  Mapping store_;
  std::map<uint64_t, Region> regions_;
  std::map<uint64_t, bool> retired_;
};

}  // namespace kvtier
