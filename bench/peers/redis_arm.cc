// Redis, written for speed: no library, payload goes between the socket and the caller's memory.
#include <xxhash.h>

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/peers/block_arm.h"
#include "bench/peers/plain_socket.h"

namespace kvtier::bench {
namespace {

constexpr uint64_t kChainBytes = 256;
constexpr uint64_t kBytesUnderWay = uint64_t{1} << 20;  // of GETs that are sent together
constexpr const char* kEnd = "\r\n";
constexpr const char* kStored = "+OK\r\n";

// As long as 128 bits in hexadecimal.
std::string BlockName(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  return absl::StrFormat("%08x%08x%08x%08x", a, b, c, d);
}
std::string BlockName(const BatchName& batch, uint32_t block) {
  return BlockName(batch.serial, batch.client, batch.batch, block);
}
constexpr uint32_t kChainSerial = 0xffffffff;
constexpr uint32_t kNoSerial = 0xfffffffe;

// A command's head: how many arguments come, and the first of them.
std::string Command(size_t arguments, const std::string& name) {
  return absl::StrCat("*", arguments, kEnd, "$", name.size(), kEnd, name, kEnd);
}
std::string Argument(const std::string& text) {
  return absl::StrCat("$", text.size(), kEnd, text, kEnd);
}
std::string ValueHead(uint64_t bytes) { return absl::StrCat("$", bytes, kEnd); }

class RedisArm final : public BlockArm {
 public:
  RedisArm(PlainSocket socket, RedisMode mode) : socket_(std::move(socket)), mode_(mode) {}

  absl::StatusOr<std::string> Prepare(uint64_t) override { return std::string(); }

  absl::Status Put(const BatchName& name, Payloads payloads) override {
    for (uint32_t i = 0; i < payloads.size(); ++i) {
      const std::string key = BlockName(name, i);
      if (mode_ == RedisMode::kXxh3) sums_[key] = Sum(payloads[i]);
      KVTIER_RETURN_IF_ERROR(Set(key, payloads[i]));
    }
    return absl::OkStatus();
  }

  // A few commands are under way together, but not many bytes: what Redis cannot send at once it
  // copies to fresh memory, which costs more than waiting for the next command.
  absl::Status Get(const BatchName& name, Buffers buffers) override {
    const size_t together = std::max<size_t>(1, kBytesUnderWay / buffers.front().size());
    size_t asked = 0;
    for (size_t i = 0; i < buffers.size(); ++i) {
      if (i == asked) {
        const size_t end = std::min(buffers.size(), asked + together);
        KVTIER_RETURN_IF_ERROR(AskFor(name, asked, end));
        asked = end;
      }
      KVTIER_RETURN_IF_ERROR(ReceiveValue(BlockName(name, i), buffers[i]));
    }
    return absl::OkStatus();
  }

  absl::Status Drop(const BatchName& name, uint32_t blocks) override {
    std::string command = Command(blocks + 1, "DEL");
    for (uint32_t i = 0; i < blocks; ++i) absl::StrAppend(&command, Argument(BlockName(name, i)));
    sums_.clear();
    KVTIER_RETURN_IF_ERROR(socket_.Send({Piece(command)}));
    return Expect(absl::StrCat(":", blocks, kEnd));
  }

  absl::Status StoreChain(uint32_t blocks) override {
    const std::vector<std::byte> payload(kChainBytes, std::byte{7});
    for (uint32_t i = 0; i < blocks; ++i) {
      KVTIER_RETURN_IF_ERROR(Set(BlockName(kChainSerial, 0, 0, i), payload));
    }
    return absl::OkStatus();
  }

  absl::Status PrepareLookup(Shape shape, uint32_t blocks) override {
    const bool each = mode_ == RedisMode::kEach;
    found_ = FoundOf(shape, blocks);
    request_ = each ? "" : Command(blocks + 1, "EXISTS");
    answer_ = each ? "" : absl::StrCat(":", found_, kEnd);
    for (uint32_t i = 0; i < blocks; ++i) {
      const std::string key = BlockName(i < found_ ? kChainSerial : kNoSerial, 0, 0, i);
      if (each) absl::StrAppend(&request_, Command(2, "EXISTS"));
      if (each) absl::StrAppend(&answer_, i < found_ ? ":1" : ":0", kEnd);
      absl::StrAppend(&request_, Argument(key));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<uint32_t> Lookup() override {
    KVTIER_RETURN_IF_ERROR(socket_.Send({Piece(request_)}));
    KVTIER_RETURN_IF_ERROR(Expect(answer_));
    return found_;
  }

 private:
  static uint64_t Sum(std::span<const std::byte> bytes) {
    return XXH3_64bits(bytes.data(), bytes.size());
  }

  absl::Status Set(const std::string& key, std::span<const std::byte> payload) {
    const std::string head =
        absl::StrCat(Command(3, "SET"), Argument(key), ValueHead(payload.size()));
    KVTIER_RETURN_IF_ERROR(socket_.Send({Piece(head), Piece(payload), Piece(kEnd)}));
    return Expect(kStored);
  }

  absl::Status AskFor(const BatchName& name, size_t first, size_t end) {
    std::string commands;
    for (size_t i = first; i < end; ++i) {
      absl::StrAppend(&commands, Command(2, "GET"), Argument(BlockName(name, i)));
    }
    return socket_.Send({Piece(commands)});
  }

  absl::Status ReceiveValue(const std::string& key, std::span<std::byte> buffer) {
    const std::string expected = ValueHead(buffer.size());
    std::string head(expected.size(), ' ');
    std::string end(2, ' ');
    const absl::Status received = socket_.Receive({Room(&head), Room(buffer), Room(&end)});
    if (head != expected) return absl::InternalError(absl::StrCat("GET was answered with ", head));
    if (mode_ == RedisMode::kXxh3 && received.ok() && sums_[key] != Sum(buffer)) {
      return absl::DataLossError(absl::StrCat("the checksum of ", key, " is wrong"));
    }
    return received;
  }

  absl::Status Expect(const std::string& answer) {
    std::string got(answer.size(), ' ');
    KVTIER_RETURN_IF_ERROR(Annotate(socket_.Receive({Room(&got)}), got));
    if (got == answer) return absl::OkStatus();
    return absl::InternalError(absl::StrCat("the answer is ", got, ", not ", answer));
  }

  PlainSocket socket_;
  const RedisMode mode_;
  std::map<std::string, uint64_t> sums_;
  std::string request_;
  std::string answer_;
  uint32_t found_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<BlockArm>> MakeRedisArm(const std::string& address, RedisMode mode) {
  KVTIER_ASSIGN_OR_RETURN(PlainSocket socket, PlainSocket::Connect(address));
  return std::make_unique<RedisArm>(std::move(socket), mode);
}

}  // namespace kvtier::bench
