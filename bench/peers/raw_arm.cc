// The ceiling of the arms: one connection, one request head, the bytes, an answer where there is
// none.
#include <algorithm>
#include <array>
#include <cstring>

#include "bench/ceilings.h"
#include "bench/peers/block_arm.h"
#include "bench/peers/plain_socket.h"
#include "common/executor.h"

namespace kvtier::bench {
namespace {

constexpr int kMostClients = 16;
constexpr uint64_t kServerBytes = uint64_t{64} << 20;  // where what comes is put, by turns
constexpr uint64_t kLookupBytesPerBlock = 64;          // 16 tokens of 4 bytes

struct Head {
  enum Kind : uint64_t { kUp = 1, kDown = 2 };
  uint64_t kind;
  uint64_t bytes;
};
using Answer = std::array<std::byte, 16>;

std::span<const std::byte> BytesOf(const Head& head) {
  return std::as_bytes(std::span<const Head, 1>(&head, 1));
}

class RawArm final : public BlockArm {
 public:
  explicit RawArm(PlainSocket socket) : socket_(std::move(socket)) {}

  bool keeps() const override { return false; }
  absl::StatusOr<std::string> Prepare(uint64_t) override { return std::string(); }

  absl::Status Put(const BatchName&, Payloads payloads) override {
    std::vector<iovec> pieces;
    uint64_t bytes = 0;
    for (const auto& payload : payloads) {
      pieces.push_back(Piece(payload));
      bytes += payload.size();
    }
    return Up(std::move(pieces), bytes);
  }

  absl::Status Get(const BatchName&, Buffers buffers) override {
    std::vector<iovec> rooms;
    uint64_t bytes = 0;
    for (const auto& buffer : buffers) {
      rooms.push_back(Room(buffer));
      bytes += buffer.size();
    }
    const Head head = {Head::kDown, bytes};
    KVTIER_RETURN_IF_ERROR(socket_.Send({Piece(BytesOf(head))}));
    return socket_.Receive(std::move(rooms));
  }

  absl::Status Drop(const BatchName&, uint32_t) override { return absl::OkStatus(); }
  absl::Status StoreChain(uint32_t) override { return absl::OkStatus(); }

  absl::Status PrepareLookup(Shape shape, uint32_t blocks) override {
    request_.assign(blocks * kLookupBytesPerBlock, std::byte{1});
    found_ = FoundOf(shape, blocks);
    return absl::OkStatus();
  }
  absl::StatusOr<uint32_t> Lookup() override {
    KVTIER_RETURN_IF_ERROR(Up({Piece(request_)}, request_.size()));
    return found_;
  }

 private:
  absl::Status Up(std::vector<iovec> pieces, uint64_t bytes) {
    const Head head = {Head::kUp, bytes};
    pieces.insert(pieces.begin(), Piece(BytesOf(head)));
    KVTIER_RETURN_IF_ERROR(socket_.Send(std::move(pieces)));
    Answer answer;
    return socket_.Receive({Room(answer)});
  }

  PlainSocket socket_;
  std::vector<std::byte> request_;
  uint32_t found_ = 0;
};

// Calls `transfer` with pieces of the memory, turn by turn, until they are `bytes` together.
absl::Status ByPieces(WarmMemory& memory, uint64_t* turn, uint64_t bytes,
                      const std::function<absl::Status(std::span<std::byte>)>& transfer) {
  while (bytes > 0) {
    const uint64_t offset = *turn % memory.size();
    const uint64_t step = std::min(bytes, memory.size() - offset);
    KVTIER_RETURN_IF_ERROR(transfer({memory.data() + offset, step}));
    *turn += step;
    bytes -= step;
  }
  return absl::OkStatus();
}

absl::Status ServeOne(PlainSocket& socket, WarmMemory& memory, uint64_t* turn) {
  Head head = {};
  KVTIER_RETURN_IF_ERROR(
      socket.Receive({Room(std::as_writable_bytes(std::span<Head, 1>(&head, 1)))}));
  const bool up = head.kind == Head::kUp;
  KVTIER_RETURN_IF_ERROR(
      ByPieces(memory, turn, head.bytes, [&socket, up](std::span<std::byte> bytes) {
        return up ? socket.Receive({Room(bytes)}) : socket.Send({Piece(bytes)});
      }));
  const Answer answer = {};
  return up ? socket.Send({Piece(answer)}) : absl::OkStatus();
}

void Serve(PlainSocket socket) {
  WarmMemory memory(kServerBytes);
  uint64_t turn = 0;
  while (ServeOne(socket, memory, &turn).ok()) {
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<BlockArm>> MakeRawArm(const std::string& address) {
  KVTIER_ASSIGN_OR_RETURN(PlainSocket socket, PlainSocket::Connect(address));
  return std::make_unique<RawArm>(std::move(socket));
}

absl::Status RunRawServer(const std::string& address) {
  KVTIER_ASSIGN_OR_RETURN(PlainSocket listener, PlainSocket::Listen(address));
  ThreadPool clients(kMostClients);
  while (true) {
    KVTIER_ASSIGN_OR_RETURN(PlainSocket socket, listener.Accept());
    // std::function wants what it holds to be copyable.
    auto shared = std::make_shared<PlainSocket>(std::move(socket));
    clients.Run([shared] { Serve(std::move(*shared)); });
  }
}

}  // namespace kvtier::bench
