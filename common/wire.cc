#include "common/wire.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "common/check.h"

namespace kvtier::wire {

static_assert(std::endian::native == std::endian::little, "fixed fields are copied as they lie");

namespace {

enum WireType : uint32_t {
  kVarint = 0,
  kFixed64 = 1,
  kLengthDelimited = 2,
  kStartGroup = 3,
  kEndGroup = 4,
  kFixed32 = 5,
};

constexpr uint32_t Tag(uint32_t field, WireType type) { return field << 3 | type; }

// protobuf's own bound on groups within groups.
constexpr size_t kMaxGroupDepth = 100;

// Reads primitives off slices that together are one message. Every method is false when the message
// ends too early or is no protobuf.
class Reader {
 public:
  explicit Reader(Slices slices) : slices_(slices) {
    for (std::string_view slice : slices) limit_ += slice.size();
    Advance(0);
  }

  bool AtLimit() const { return position_ == limit_; }
  uint64_t position() const { return position_; }
  uint64_t limit() const { return limit_; }
  uint64_t left() const { return limit_ - position_; }
  void set_limit(uint64_t limit) { limit_ = limit; }

  bool ReadTag(uint32_t* tag) {
    uint64_t value;
    if (!ReadVarint(5, &value)) return false;
    *tag = static_cast<uint32_t>(value);
    return *tag >> 3 != 0;
  }

  // Of a field that must lie within the limit.
  bool ReadLength(uint64_t* length) { return ReadVarint(5, length) && *length <= left(); }

  bool ReadVarint64(uint64_t* value) { return ReadVarint(10, value); }

  bool ReadVarint32(uint32_t* value) {
    uint64_t wide;
    if (!ReadVarint64(&wide)) return false;
    *value = static_cast<uint32_t>(wide);  // as protobuf does
    return true;
  }

  template <typename T>
  bool ReadFixed(T* value) {
    return ReadBytes(sizeof(T), reinterpret_cast<char*>(value));
  }

  bool ReadBytes(uint64_t bytes, char* to) {
    if (bytes > left()) return false;
    while (bytes > 0) {
      const std::string_view piece = rest_.substr(0, bytes);
      std::memcpy(to, piece.data(), piece.size());
      to += piece.size();
      bytes -= piece.size();
      Advance(piece.size());
    }
    return true;
  }

  bool ReadViews(uint64_t bytes, std::vector<std::string_view>* out) {
    if (bytes > left()) return false;
    while (bytes > 0) {
      const std::string_view piece = rest_.substr(0, bytes);
      out->push_back(piece);
      bytes -= piece.size();
      Advance(piece.size());
    }
    return true;
  }

  bool SkipBytes(uint64_t bytes) {
    if (bytes > left()) return false;
    while (bytes > 0) {
      const uint64_t step = std::min<uint64_t>(bytes, rest_.size());
      bytes -= step;
      Advance(step);
    }
    return true;
  }

  // The rest of a field whose tag was just read.
  bool SkipField(uint32_t tag) {
    if ((tag & 7) == kStartGroup) return SkipGroup(tag >> 3);
    return SkipScalar(tag);
  }

 private:
  void Advance(uint64_t bytes) {
    position_ += bytes;
    rest_.remove_prefix(bytes);
    while (rest_.empty() && next_ < slices_.size()) rest_ = slices_[next_++];
  }

  bool ReadVarint(int max_bytes, uint64_t* value) {
    *value = 0;
    for (int i = 0; i < max_bytes; ++i) {
      if (left() == 0) return false;
      const uint8_t byte = static_cast<uint8_t>(rest_.front());
      Advance(1);
      *value |= uint64_t{byte & 0x7fu} << (7 * i);
      if (byte < 0x80) return true;
    }
    return false;
  }

  bool SkipScalar(uint32_t tag) {
    uint64_t value;
    switch (tag & 7) {
      case kVarint:
        return ReadVarint64(&value);
      case kFixed64:
        return SkipBytes(8);
      case kLengthDelimited:
        return ReadLength(&value) && SkipBytes(value);
      case kFixed32:
        return SkipBytes(4);
      default:
        return false;
    }
  }

  // Without recursion, so that a hostile message cannot run the stack down.
  bool SkipGroup(uint32_t field) {
    std::array<uint32_t, kMaxGroupDepth> open;
    open[0] = field;
    size_t depth = 1;
    while (depth > 0) {
      uint32_t tag;
      if (AtLimit() || !ReadTag(&tag)) return false;
      if ((tag & 7) == kStartGroup) {
        if (depth == kMaxGroupDepth) return false;
        open[depth++] = tag >> 3;
      } else if ((tag & 7) == kEndGroup) {
        if (open[--depth] != tag >> 3) return false;
      } else if (!SkipScalar(tag)) {
        return false;
      }
    }
    return true;
  }

  Slices slices_;
  size_t next_ = 0;
  std::string_view rest_;  // of the current slice
  uint64_t position_ = 0;
  uint64_t limit_ = 0;
};

// One code point of well-formed UTF-8 at the front of `text`: its length, or 0.
size_t Utf8Step(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return 1;
  const size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  // Overlong forms, surrogates, beyond U+10FFFF.
  if (lead == 0xe0 && byte(1) < 0xa0) return 0;
  if (lead == 0xed && byte(1) > 0x9f) return 0;
  if (lead == 0xf0 && byte(1) < 0x90) return 0;
  if (lead == 0xf4 && byte(1) > 0x8f) return 0;
  return length;
}

bool IsUtf8(std::string_view text) {
  while (!text.empty()) {
    const size_t step = Utf8Step(text);
    if (step == 0) return false;
    text.remove_prefix(step);
  }
  return true;
}

// Tokens that came one by one are gathered in runs of this many bytes.
constexpr size_t kUnpackedRun = 4096;

}  // namespace

// Walks the fields of one message. Methods are false once something is wrong; status() says what.
class MessageDecoder {
 public:
  MessageDecoder(Slices slices, const Limits& limits) : reader_(slices), limits_(limits) {}

  bool Lookup(LookupRequest* out);
  bool Fetch(FetchRequest* out);
  bool Store(StoreRequest* out);
  bool FetchedPieces(PieceList* out);
  bool LookupReply(LookupResponse* out);
  bool FetchShared(FetchSharedRequest* out);
  bool StoreShared(StoreSharedRequest* out);

  absl::Status Result(bool ok) const {
    if (ok) return absl::OkStatus();
    if (!error_.ok()) return error_;
    return absl::InvalidArgumentError(absl::StrCat(
        "the message is not a valid kvtier.v1 message: malformed at byte ", reader_.position()));
  }

 private:
  // Calls on_field(tag) for each field up to the current limit.
  template <typename F>
  bool Fields(F&& on_field) {
    while (!reader_.AtLimit()) {
      uint32_t tag;
      if (!reader_.ReadTag(&tag) || !on_field(tag)) return false;
    }
    return true;
  }

  // The same for the embedded message that comes next.
  template <typename F>
  bool Embedded(F&& on_field) {
    uint64_t length;
    if (!reader_.ReadLength(&length)) return false;
    const uint64_t outer = reader_.limit();
    reader_.set_limit(reader_.position() + length);
    if (!Fields(on_field)) return false;
    reader_.set_limit(outer);
    return true;
  }

  bool Over(const char* field, uint64_t value, uint64_t limit, const char* unit) {
    error_ = absl::InvalidArgumentError(
        absl::StrCat(field, " has ", value, unit, ", the limit is ", limit));
    return false;
  }

  bool Bytes(const char* field, uint64_t limit, std::string* out);
  bool Text(const char* field, uint64_t limit, std::string* out);
  bool Bool(bool* out);
  template <typename Request>
  bool LeasedBlocks(uint32_t tag, Request* out);
  bool PromptMessage(Prompt* out);
  bool Model(Prompt* out);
  bool NamespaceMessage(Namespace* out);
  bool PackedTokens(Prompt* out);
  bool UnpackedToken(Prompt* out);
  bool EngineHash(Prompt* out);
  bool Media(Prompt* out);
  bool PartMessage(Part* out);
  bool HeaderMessage(StoreHeader* out);
  bool PieceMessage(PieceList* out);
  bool Payload(PieceList* list, PieceList::Entry* entry);
  bool SessionId(std::string* out);
  bool Run(LookupResponse* out);
  bool GroupBlocks(LookupResponse* out);

  Reader reader_;
  const Limits& limits_;
  uint64_t payload_bytes_ = 0;
  absl::Status error_;
};

bool MessageDecoder::Bytes(const char* field, uint64_t limit, std::string* out) {
  uint64_t length;
  if (!reader_.ReadLength(&length)) return false;
  if (length > limit) return Over(field, length, limit, " bytes");
  out->resize(length);
  return reader_.ReadBytes(length, out->data());
}

bool MessageDecoder::Text(const char* field, uint64_t limit, std::string* out) {
  if (!Bytes(field, limit, out)) return false;
  if (IsUtf8(*out)) return true;
  error_ = absl::InvalidArgumentError(absl::StrCat(field, " is not UTF-8"));
  return false;
}

bool MessageDecoder::Bool(bool* out) {
  uint64_t value;
  if (!reader_.ReadVarint64(&value)) return false;
  *out = value != 0;
  return true;
}

// Which blocks of a lease: fields 2 to 6 of FetchRequest and of FetchSharedRequest.
template <typename Request>
bool MessageDecoder::LeasedBlocks(uint32_t tag, Request* out) {
  switch (tag) {
    case Tag(2, kFixed64):
      return reader_.ReadFixed(&out->lease_id);
    case Tag(3, kVarint):
      return reader_.ReadVarint32(&out->first_block);
    case Tag(4, kVarint):
      return reader_.ReadVarint32(&out->last_block);
    case Tag(5, kLengthDelimited):
      return PartMessage(&out->part);
    case Tag(6, kVarint):
      return Bool(&out->allow_gaps);
    default:
      return reader_.SkipField(tag);
  }
}

bool MessageDecoder::Lookup(LookupRequest* out) {
  return Fields([&](uint32_t tag) {
    switch (tag) {
      case Tag(1, kLengthDelimited):
        return PromptMessage(&out->prompt);
      case Tag(2, kVarint):
        return reader_.ReadVarint32(&out->lease_ms);
      case Tag(3, kVarint):
        return reader_.ReadVarint32(&out->promote_to);
      case Tag(4, kVarint):
        return Bool(&out->before_store);
      case Tag(5, kFixed64):
        return reader_.ReadFixed(&out->prefill_tokens_per_second);
      default:
        return reader_.SkipField(tag);
    }
  });
}

bool MessageDecoder::Fetch(FetchRequest* out) {
  return Fields([&](uint32_t tag) {
    switch (tag) {
      case Tag(1, kLengthDelimited):
        out->has_prompt = true;
        return PromptMessage(&out->prompt);
      default:
        return LeasedBlocks(tag, out);
    }
  });
}

bool MessageDecoder::Store(StoreRequest* out) {
  return Fields([&](uint32_t tag) {
    switch (tag) {
      case Tag(1, kLengthDelimited):
        out->has_header = true;
        return HeaderMessage(&out->header);
      case Tag(2, kLengthDelimited):
        return PieceMessage(&out->pieces);
      default:
        return reader_.SkipField(tag);
    }
  });
}

bool MessageDecoder::FetchedPieces(PieceList* out) {
  return Fields([&](uint32_t tag) {
    if (tag == Tag(1, kLengthDelimited)) return PieceMessage(out);
    return reader_.SkipField(tag);
  });
}

bool MessageDecoder::LookupReply(LookupResponse* out) {
  return Fields([&](uint32_t tag) {
    switch (tag) {
      case Tag(1, kVarint):
        return reader_.ReadVarint32(&out->blocks);
      case Tag(2, kVarint):
        return reader_.ReadVarint32(&out->tokens);
      case Tag(3, kLengthDelimited):
        return Run(out);
      case Tag(4, kFixed64):
        return reader_.ReadFixed(&out->lease_id);
      case Tag(5, kLengthDelimited):
        return GroupBlocks(out);
      case Tag(5, kVarint):
        return reader_.ReadVarint32(&out->group_blocks.emplace_back());
      default:
        return reader_.SkipField(tag);
    }
  });
}

bool MessageDecoder::PromptMessage(Prompt* out) {
  return Embedded([&](uint32_t tag) {
    switch (tag) {
      case Tag(1, kLengthDelimited):
        return Model(out);
      case Tag(2, kLengthDelimited):
        return NamespaceMessage(&out->name);
      case Tag(3, kLengthDelimited):
        return PackedTokens(out);
      case Tag(3, kFixed32):
        return UnpackedToken(out);
      case Tag(4, kLengthDelimited):
        return EngineHash(out);
      case Tag(5, kLengthDelimited):
        return Media(out);
      default:
        return reader_.SkipField(tag);
    }
  });
}

bool MessageDecoder::Model(Prompt* out) {
  uint64_t length;
  if (!reader_.ReadLength(&length)) return false;
  out->model_id.reset();
  if (length == 0) return true;  // the same as not given
  char bytes[Digest128::kBytes];
  if (length != sizeof(bytes)) {
    return Over("prompt.model_id", length, Digest128::kBytes, " bytes");
  }
  if (!reader_.ReadBytes(length, bytes)) return false;
  out->model_id = Digest128::FromBytes(std::string_view(bytes, sizeof(bytes)));
  return true;
}

bool MessageDecoder::NamespaceMessage(Namespace* out) {
  return Embedded([&](uint32_t tag) {
    switch (tag) {
      case Tag(1, kLengthDelimited):
        return Text("namespace.tenant", 128, &out->tenant);
      case Tag(2, kLengthDelimited):
        return Bytes("namespace.salt", 128, &out->salt);
      case Tag(3, kLengthDelimited):
        return Text("namespace.adapter", 256, &out->adapter);
      default:
        return reader_.SkipField(tag);
    }
  });
}

bool MessageDecoder::PackedTokens(Prompt* out) {
  uint64_t length;
  if (!reader_.ReadLength(&length) || length % 4 != 0) return false;
  const uint64_t count = out->token_count + length / 4;
  if (count > limits_.tokens) return Over("prompt.tokens", count, limits_.tokens, " tokens");
  out->token_count = count;
  return reader_.ReadViews(length, &out->tokens);
}

bool MessageDecoder::UnpackedToken(Prompt* out) {
  char token[4];
  if (!reader_.ReadBytes(sizeof(token), token)) return false;
  if (out->token_count == limits_.tokens) {
    return Over("prompt.tokens", out->token_count + 1, limits_.tokens, " tokens");
  }
  ++out->token_count;
  const bool goes_on = !out->unpacked.empty() && out->unpacked.front().size() < kUnpackedRun &&
                       out->tokens.back().data() == out->unpacked.front().data();
  if (!goes_on) {
    out->unpacked.emplace_front().reserve(kUnpackedRun);  // never moves after this
    out->tokens.emplace_back();
  }
  std::string& run = out->unpacked.front();
  run.append(token, sizeof(token));
  out->tokens.back() = run;
  return true;
}

bool MessageDecoder::EngineHash(Prompt* out) {
  uint64_t length;
  if (!reader_.ReadLength(&length)) return false;
  if (out->engine_hash_count == limits_.engine_hashes) {
    return Over("prompt.engine_hashes", out->engine_hash_count + 1, limits_.engine_hashes,
                " hashes");
  }
  if (length < 8 || length > 64) {
    error_ = absl::InvalidArgumentError(absl::StrCat("prompt.engine_hashes[",
                                                     out->engine_hash_count, "] has ", length,
                                                     " bytes, the limits are 8 and 64"));
    return false;
  }
  if (out->engine_hash_count > 0 && length != out->engine_hash_bytes) {
    error_ = absl::InvalidArgumentError(absl::StrCat(
        "prompt.engine_hashes[", out->engine_hash_count, "] has ", length,
        " bytes, the ones before it have ", out->engine_hash_bytes, ": all must be of one length"));
    return false;
  }
  out->engine_hash_bytes = static_cast<uint32_t>(length);
  ++out->engine_hash_count;
  const size_t end = out->engine_hashes.size();
  out->engine_hashes.resize(end + length);
  return reader_.ReadBytes(length, out->engine_hashes.data() + end);
}

bool MessageDecoder::Media(Prompt* out) {
  if (out->media.size() == limits_.media_spans) {
    return Over("prompt.media", out->media.size() + 1, limits_.media_spans, " spans");
  }
  MediaSpan& span = out->media.emplace_back();
  return Embedded([&](uint32_t tag) {
    switch (tag) {
      case Tag(1, kVarint):
        return reader_.ReadVarint32(&span.first_token);
      case Tag(2, kVarint):
        return reader_.ReadVarint32(&span.token_count);
      case Tag(3, kLengthDelimited):
        return Bytes("prompt.media.digest", 64, &span.digest);
      default:
        return reader_.SkipField(tag);
    }
  });
}

bool MessageDecoder::PartMessage(Part* out) {
  return Embedded([&](uint32_t tag) {
    switch (tag) {
      case Tag(1, kVarint):
        return reader_.ReadVarint32(&out->layer_group);
      case Tag(2, kVarint):
        return reader_.ReadVarint32(&out->rank);
      default:
        return reader_.SkipField(tag);
    }
  });
}

bool MessageDecoder::HeaderMessage(StoreHeader* out) {
  return Embedded([&](uint32_t tag) {
    switch (tag) {
      case Tag(1, kLengthDelimited):
        return PromptMessage(&out->prompt);
      case Tag(2, kVarint):
        return reader_.ReadVarint32(&out->first_block);
      case Tag(3, kVarint):
        return reader_.ReadVarint32(&out->block_count);
      case Tag(4, kLengthDelimited):
        return PartMessage(&out->part);
      case Tag(5, kVarint):
        return reader_.ReadVarint32(&out->durability);
      default:
        return reader_.SkipField(tag);
    }
  });
}

bool MessageDecoder::PieceMessage(PieceList* out) {
  if (out->pieces_.size() == limits_.pieces) {
    return Over("pieces", out->pieces_.size() + 1, limits_.pieces, " elements");
  }
  PieceList::Entry& entry = out->pieces_.emplace_back();
  Piece& piece = entry.piece;
  return Embedded([&](uint32_t tag) {
    switch (tag) {
      case Tag(1, kVarint):
        return reader_.ReadVarint32(&piece.block);
      case Tag(2, kVarint):
        return reader_.ReadVarint32(&piece.status);
      case Tag(3, kVarint):
        return reader_.ReadVarint64(&piece.offset);
      case Tag(4, kVarint):
        return reader_.ReadVarint64(&piece.part_bytes);
      case Tag(5, kFixed64):
        return reader_.ReadFixed(&piece.checksum);
      case Tag(15, kLengthDelimited):
        return Payload(out, &entry);
      default:
        return reader_.SkipField(tag);
    }
  });
}

bool MessageDecoder::Payload(PieceList* list, PieceList::Entry* entry) {
  uint64_t length;
  if (!reader_.ReadLength(&length)) return false;
  payload_bytes_ += length;
  if (payload_bytes_ > limits_.payload_bytes) {
    return Over("pieces.payload", payload_bytes_, limits_.payload_bytes, " bytes in one message");
  }
  entry->piece.payload_bytes = length;
  entry->first_slice = list->slices_.size();
  if (!reader_.ReadViews(length, &list->slices_)) return false;
  entry->slice_count = list->slices_.size() - entry->first_slice;
  return true;
}

bool MessageDecoder::SessionId(std::string* out) {
  if (!Bytes("session_id", kSessionIdBytes, out)) return false;
  if (out->empty() || out->size() == kSessionIdBytes) return true;
  return Over("session_id", out->size(), kSessionIdBytes, " bytes");
}

bool MessageDecoder::FetchShared(FetchSharedRequest* out) {
  return Fields([&](uint32_t tag) {
    switch (tag) {
      case Tag(1, kLengthDelimited):
        return SessionId(&out->session_id);
      default:
        return LeasedBlocks(tag, out);
    }
  });
}

bool MessageDecoder::StoreShared(StoreSharedRequest* out) {
  return Fields([&](uint32_t tag) {
    switch (tag) {
      case Tag(1, kLengthDelimited):
        return SessionId(&out->session_id);
      case Tag(2, kLengthDelimited):
        out->has_header = true;
        return HeaderMessage(&out->header);
      case Tag(3, kVarint):
        return Bool(&out->unverified);
      default:
        return reader_.SkipField(tag);
    }
  });
}

bool MessageDecoder::Run(LookupResponse* out) {
  TierRun& run = out->runs.emplace_back();
  return Embedded([&](uint32_t tag) {
    switch (tag) {
      case Tag(1, kVarint):
        return reader_.ReadVarint32(&run.tier);
      case Tag(2, kVarint):
        return reader_.ReadVarint32(&run.blocks);
      case Tag(3, kFixed64):
        return reader_.ReadFixed(&run.load_seconds);
      default:
        return reader_.SkipField(tag);
    }
  });
}

bool MessageDecoder::GroupBlocks(LookupResponse* out) {
  uint64_t length;
  if (!reader_.ReadLength(&length)) return false;
  const uint64_t outer = reader_.limit();
  reader_.set_limit(reader_.position() + length);
  while (!reader_.AtLimit()) {
    if (!reader_.ReadVarint32(&out->group_blocks.emplace_back())) return false;
  }
  reader_.set_limit(outer);
  return true;
}

absl::Status DecodeLookupRequest(Slices slices, const Limits& limits, LookupRequest* out) {
  *out = LookupRequest();
  MessageDecoder decoder(slices, limits);
  return decoder.Result(decoder.Lookup(out));
}

absl::Status DecodeFetchRequest(Slices slices, const Limits& limits, FetchRequest* out) {
  *out = FetchRequest();
  MessageDecoder decoder(slices, limits);
  return decoder.Result(decoder.Fetch(out));
}

absl::Status DecodeStoreRequest(Slices slices, const Limits& limits, StoreRequest* out) {
  *out = StoreRequest();
  MessageDecoder decoder(slices, limits);
  return decoder.Result(decoder.Store(out));
}

absl::Status DecodeFetchResponse(Slices slices, const Limits& limits, PieceList* out) {
  *out = PieceList();
  MessageDecoder decoder(slices, limits);
  return decoder.Result(decoder.FetchedPieces(out));
}

absl::Status DecodeLookupResponse(Slices slices, LookupResponse* out) {
  *out = LookupResponse();
  const Limits limits;
  MessageDecoder decoder(slices, limits);
  return decoder.Result(decoder.LookupReply(out));
}

absl::Status DecodeFetchSharedRequest(Slices slices, const Limits& limits,
                                      FetchSharedRequest* out) {
  *out = FetchSharedRequest();
  MessageDecoder decoder(slices, limits);
  return decoder.Result(decoder.FetchShared(out));
}

absl::Status DecodeStoreSharedRequest(Slices slices, const Limits& limits,
                                      StoreSharedRequest* out) {
  *out = StoreSharedRequest();
  MessageDecoder decoder(slices, limits);
  return decoder.Result(decoder.StoreShared(out));
}

// ---------------------------------------------------------------------------------------------

namespace {

size_t VarintBytes(uint64_t value) {
  return (static_cast<size_t>(std::bit_width(value | 1)) + 6) / 7;
}

char* PutVarint(char* out, uint64_t value) {
  while (value >= 0x80) {
    *out++ = static_cast<char>(value | 0x80);
    value >>= 7;
  }
  *out++ = static_cast<char>(value);
  return out;
}

template <typename T>
char* PutFixed(char* out, T value) {
  std::memcpy(out, &value, sizeof(value));
  return out + sizeof(value);
}

void AppendVarint(std::string* out, uint64_t value) {
  char buffer[10];
  out->append(buffer, PutVarint(buffer, value) - buffer);
}

// Fields at their default are left out, as proto3 does.
void AppendNumber(std::string* out, uint32_t field, uint64_t value) {
  if (value == 0) return;
  AppendVarint(out, Tag(field, kVarint));
  AppendVarint(out, value);
}

void AppendFixed64(std::string* out, uint32_t field, uint64_t value) {
  if (value == 0) return;
  AppendVarint(out, Tag(field, kFixed64));
  char buffer[8];
  out->append(buffer, PutFixed(buffer, value) - buffer);
}

void AppendDouble(std::string* out, uint32_t field, double value) {
  AppendFixed64(out, field, std::bit_cast<uint64_t>(value));
}

void AppendMessage(std::string* out, uint32_t field, std::string_view body) {
  AppendVarint(out, Tag(field, kLengthDelimited));
  AppendVarint(out, body.size());
  out->append(body);
}

void AppendBytes(std::string* out, uint32_t field, std::string_view value) {
  if (!value.empty()) AppendMessage(out, field, value);
}

void AppendPart(std::string* out, uint32_t field, Part part) {
  std::string body;
  AppendNumber(&body, 1, part.layer_group);
  AppendNumber(&body, 2, part.rank);
  AppendBytes(out, field, body);
}

// The prompt up to its tokens, which come last so that they can follow the head.
std::string PromptBody(const PromptHead& prompt) {
  std::string body;
  AppendMessage(&body, 1, prompt.model_id.ToBytes());
  if (prompt.name != nullptr) {
    std::string name;
    AppendBytes(&name, 1, prompt.name->tenant);
    AppendBytes(&name, 2, prompt.name->salt);
    AppendBytes(&name, 3, prompt.name->adapter);
    AppendBytes(&body, 2, name);
  }
  for (size_t i = 0; prompt.engine_hash_bytes > 0 && i < prompt.engine_hashes.size();
       i += prompt.engine_hash_bytes) {
    AppendMessage(&body, 4, prompt.engine_hashes.substr(i, prompt.engine_hash_bytes));
  }
  for (const MediaSpan& span : prompt.media) {
    std::string media;
    AppendNumber(&media, 1, span.first_token);
    AppendNumber(&media, 2, span.token_count);
    AppendBytes(&media, 3, span.digest);
    AppendMessage(&body, 5, media);
  }
  if (prompt.token_count > 0) {
    AppendVarint(&body, Tag(3, kLengthDelimited));
    AppendVarint(&body, prompt.token_count * 4);
  }
  return body;
}

// As the last field of its message. The length counts the tokens that follow.
void AppendPrompt(std::string* out, const PromptHead& prompt) {
  const std::string body = PromptBody(prompt);
  AppendVarint(out, Tag(1, kLengthDelimited));
  AppendVarint(out, body.size() + prompt.token_count * 4);
  out->append(body);
}

}  // namespace

std::string EncodeLookupHead(const PromptHead& prompt, const LookupHead& lookup) {
  std::string out;
  AppendNumber(&out, 2, lookup.lease_ms);
  AppendNumber(&out, 3, lookup.promote_to);
  AppendNumber(&out, 4, lookup.before_store ? 1 : 0);
  AppendDouble(&out, 5, lookup.prefill_tokens_per_second);
  AppendPrompt(&out, prompt);
  return out;
}

std::string EncodeFetchHead(const FetchHead& fetch) {
  std::string out;
  AppendFixed64(&out, 2, fetch.lease_id);
  AppendNumber(&out, 3, fetch.first_block);
  AppendNumber(&out, 4, fetch.last_block);
  AppendPart(&out, 5, fetch.part);
  AppendNumber(&out, 6, fetch.allow_gaps ? 1 : 0);
  if (fetch.prompt != nullptr) AppendPrompt(&out, *fetch.prompt);
  return out;
}

std::string EncodeStoreHead(const PromptHead& prompt, uint32_t first_block, uint32_t block_count,
                            Part part, uint32_t durability, HeaderField field) {
  std::string header;
  AppendNumber(&header, 2, first_block);
  AppendNumber(&header, 3, block_count);
  AppendPart(&header, 4, part);
  AppendNumber(&header, 5, durability);
  AppendPrompt(&header, prompt);
  std::string out;
  AppendVarint(&out, Tag(static_cast<uint32_t>(field), kLengthDelimited));
  AppendVarint(&out, header.size() + prompt.token_count * 4);
  out.append(header);
  return out;
}

size_t EncodePieceHead(PieceField field, const Piece& piece, char* out) {
  KVTIER_CHECK(piece.payload_bytes < (uint64_t{1} << 31) - kMaxPieceHead);
  char fields[kMaxPieceHead];
  char* end = fields;
  const auto number = [&end](uint32_t id, uint64_t value) {
    if (value == 0) return;
    *end++ = static_cast<char>(Tag(id, kVarint));
    end = PutVarint(end, value);
  };
  number(1, piece.block);
  number(2, piece.status);
  number(3, piece.offset);
  number(4, piece.part_bytes);
  if (piece.checksum != 0) {
    *end++ = static_cast<char>(Tag(5, kFixed64));
    end = PutFixed(end, piece.checksum);
  }
  if (piece.payload_bytes > 0) {
    *end++ = static_cast<char>(Tag(15, kLengthDelimited));
    end = PutVarint(end, piece.payload_bytes);
  }
  const size_t field_bytes = end - fields;
  char* head = out;
  *head++ = static_cast<char>(Tag(static_cast<uint32_t>(field), kLengthDelimited));
  head = PutVarint(head, field_bytes + piece.payload_bytes);
  std::memcpy(head, fields, field_bytes);
  return head + field_bytes - out;
}

std::string EncodeLookupResponse(const LookupResponse& response) {
  std::string out;
  AppendNumber(&out, 1, response.blocks);
  AppendNumber(&out, 2, response.tokens);
  for (const TierRun& run : response.runs) {
    std::string body;
    AppendNumber(&body, 1, run.tier);
    AppendNumber(&body, 2, run.blocks);
    AppendDouble(&body, 3, run.load_seconds);
    AppendMessage(&out, 3, body);
  }
  AppendFixed64(&out, 4, response.lease_id);
  if (!response.group_blocks.empty()) {
    size_t bytes = 0;
    for (uint32_t blocks : response.group_blocks) bytes += VarintBytes(blocks);
    AppendVarint(&out, Tag(5, kLengthDelimited));
    AppendVarint(&out, bytes);
    for (uint32_t blocks : response.group_blocks) AppendVarint(&out, blocks);
  }
  return out;
}

std::string EncodeFetchSharedResponse(std::span<const SharedBlock> blocks) {
  std::string out;
  std::string body;
  for (const SharedBlock& block : blocks) {
    body.clear();
    AppendNumber(&body, 1, block.block);
    AppendNumber(&body, 2, block.status);
    AppendFixed64(&body, 3, block.checksum);
    AppendNumber(&body, 4, block.region);
    AppendNumber(&body, 5, block.offset);
    AppendNumber(&body, 6, block.bytes);
    AppendMessage(&out, 1, body);
  }
  return out;
}

}  // namespace kvtier::wire
