// From the arguments of the client's calls to the bytes of their requests. No gRPC here.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/running_checksum.h"
#include "common/status.h"
#include "common/wire.h"
#include "kvtier/client.h"

namespace kvtier::client_internal {

// A prompt made ready to be written: the head's fields and the tokens that follow it, where they
// lie.
class EncodedPrompt {
 public:
  // `prompt` and what it points at must outlive this. INVALID_ARGUMENT for both or neither of
  // tokens and engine hashes, for hashes of unequal or forbidden lengths, and for more than a
  // message holds.
  static absl::StatusOr<EncodedPrompt> Make(const Prompt& prompt);

  wire::PromptHead head() const;
  std::string_view tokens() const { return tokens_; }

 private:
  const Prompt* prompt_ = nullptr;
  std::string_view tokens_;
  std::string hashes_;  // end to end
  uint32_t hash_bytes_ = 0;
};

// 0 for zero. INVALID_ARGUMENT outside 1 ms to 10 min; rounds up to whole milliseconds.
absl::StatusOr<uint32_t> LeaseMilliseconds(Duration lease);

// INVALID_ARGUMENT for a range that is backwards or does not match the number of buffers.
absl::Status CheckFetchRange(const FetchParams& params);
absl::Status CheckBuffers(const FetchParams& params, size_t buffers);

// The messages of one Store stream: the header, then payload in pieces of at most 1 MiB a message,
// read from where the caller has it. Not thread-safe.
class StoreMessages {
 public:
  // Sends payloads[skip...]; block first_block + i has payloads[i]. The arguments must outlive
  // this.
  StoreMessages(const EncodedPrompt& prompt, const StoreParams& params,
                std::span<const std::span<const std::byte>> payloads, uint32_t skip);

  // The next message, its slices appended to `out`. Heads of pieces (short ones) are valid until
  // the next call, the rest as long as this lives. False at the end.
  bool Next(std::vector<std::string_view>* out);
  // Whether Next has given the last message.
  bool done() const { return header_sent_ && next_ == payloads_.size(); }
  // From the first message again.
  void Restart();

 private:
  uint64_t AddPiece(uint64_t room, char* head, std::vector<std::string_view>* out);

  const std::string_view tokens_;
  const std::span<const std::span<const std::byte>> payloads_;
  const uint32_t first_block_;
  const uint32_t skip_;
  const std::string header_;
  bool header_sent_ = false;
  size_t next_;           // payload that is being sent
  uint64_t offset_ = 0;   // within it
  RunningChecksum sent_;  // of its bytes before offset_
  std::vector<char> heads_;
};

}  // namespace kvtier::client_internal
