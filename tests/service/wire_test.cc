// The hand-written codec against the generated code, in both directions, over random messages cut
// into random slices.
#include "common/wire.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <random>

#include "kvtier/v1/kvtier.pb.h"
#include "tests/fuzz/wire_fuzz.h"
#include "tests/support/seed.h"

namespace kvtier {
namespace {

constexpr wire::Limits kWide{.tokens = 1 << 20,
                             .engine_hashes = 1 << 20,
                             .media_spans = 1 << 20,
                             .payload_bytes = 1 << 24,
                             .pieces = 1 << 20};

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  uint64_t Below(uint64_t bound) { return engine_() % bound; }
  bool OneIn(uint64_t n) { return Below(n) == 0; }
  // Numbers of every magnitude, so that varints of every length come up.
  uint64_t Number64() { return engine_() >> Below(64); }
  uint32_t Number32() { return static_cast<uint32_t>(engine_()) >> Below(32); }
  std::string Bytes(size_t size) {
    std::string out(size, '\0');
    for (char& c : out) c = static_cast<char>(engine_());
    return out;
  }
  std::string Text(size_t size) {
    std::string out(size, '\0');
    for (char& c : out) c = static_cast<char>('a' + Below(26));
    return out;
  }

 private:
  std::mt19937_64 engine_;
};

std::vector<std::string_view> Cut(std::string_view bytes, Random* random) {
  std::vector<std::string_view> slices;
  const size_t most = random->OneIn(3) ? 3 : 200;
  while (!bytes.empty()) {
    const size_t step = random->Below(most);
    slices.push_back(bytes.substr(0, step));
    bytes.remove_prefix(std::min<size_t>(step, bytes.size()));
  }
  return slices;
}

std::string Join(wire::Slices slices) {
  std::string out;
  for (std::string_view slice : slices) out.append(slice);
  return out;
}

// One text for both forms of a message, to compare them.
std::string Show(const v1::Prompt& p) {
  std::string out = absl::StrCat("model=", p.model_id(), " tenant=", p.namespace_().tenant(),
                                 " salt=", p.namespace_().salt(),
                                 " adapter=", p.namespace_().adapter(), " tokens=");
  for (uint32_t token : p.tokens()) absl::StrAppend(&out, token, ",");
  absl::StrAppend(&out, " hashes=");
  for (const std::string& hash : p.engine_hashes()) absl::StrAppend(&out, hash);
  for (const v1::MediaSpan& m : p.media()) {
    absl::StrAppend(&out, " media=", m.first_token(), "+", m.token_count(), m.digest());
  }
  return out;
}

std::string Show(const wire::Prompt& p) {
  std::string out =
      absl::StrCat("model=", p.model_id ? p.model_id->ToBytes() : "", " tenant=", p.name.tenant,
                   " salt=", p.name.salt, " adapter=", p.name.adapter, " tokens=");
  const std::string bytes = Join(p.tokens);
  EXPECT_EQ(bytes.size(), p.token_count * 4);
  for (size_t i = 0; i < bytes.size(); i += 4) {
    uint32_t token;
    std::memcpy(&token, bytes.data() + i, 4);
    absl::StrAppend(&out, token, ",");
  }
  absl::StrAppend(&out, " hashes=", p.engine_hashes);
  for (const MediaSpan& m : p.media) {
    absl::StrAppend(&out, " media=", m.first_token, "+", m.token_count, m.digest);
  }
  return out;
}

// Exactly, NaN and infinities included.
uint64_t Bits(double value) { return std::bit_cast<uint64_t>(value); }

std::string Show(const v1::LookupRequest& m) {
  return absl::StrCat(
      Show(m.prompt()), " lease=", m.lease_ms(), " promote=", static_cast<uint32_t>(m.promote_to()),
      " before_store=", m.before_store(), " rate=", Bits(m.prefill_tokens_per_second()));
}
std::string Show(const wire::LookupRequest& m) {
  return absl::StrCat(Show(m.prompt), " lease=", m.lease_ms, " promote=", m.promote_to,
                      " before_store=", m.before_store,
                      " rate=", Bits(m.prefill_tokens_per_second));
}

std::string Show(const v1::FetchRequest& m) {
  return absl::StrCat(m.has_prompt(), Show(m.prompt()), " lease=", m.lease_id(), " [",
                      m.first_block(), ",", m.last_block(), ") ", m.part().layer_group(), "/",
                      m.part().rank(), " gaps=", m.allow_gaps());
}
std::string Show(const wire::FetchRequest& m) {
  return absl::StrCat(m.has_prompt, Show(m.prompt), " lease=", m.lease_id, " [", m.first_block, ",",
                      m.last_block, ") ", m.part.layer_group, "/", m.part.rank,
                      " gaps=", m.allow_gaps);
}

template <typename Pieces>
std::string ShowPieces(const Pieces& pieces) {
  std::string out;
  for (const v1::Piece& p : pieces) {
    absl::StrAppend(&out, " piece=", p.block(), ",", static_cast<uint32_t>(p.status()), ",",
                    p.offset(), ",", p.part_bytes(), ",", p.checksum(), ",", p.payload());
  }
  return out;
}
std::string Show(const v1::FetchResponse& m) { return ShowPieces(m.pieces()); }
std::string Show(const wire::PieceList& m) {
  std::string out;
  for (size_t i = 0; i < m.size(); ++i) {
    const wire::Piece& p = m[i];
    const std::string payload = Join(m.payload(i));
    EXPECT_EQ(payload.size(), p.payload_bytes);
    absl::StrAppend(&out, " piece=", p.block, ",", p.status, ",", p.offset, ",", p.part_bytes, ",",
                    p.checksum, ",", payload);
  }
  return out;
}

std::string Show(const v1::StoreRequest& m) {
  const v1::StoreHeader& h = m.header();
  return absl::StrCat(m.has_header(), Show(h.prompt()), " ", h.first_block(), "+", h.block_count(),
                      " ", h.part().layer_group(), "/", h.part().rank(), " ",
                      static_cast<uint32_t>(h.durability()), ShowPieces(m.pieces()));
}
std::string Show(const wire::StoreRequest& m) {
  const wire::StoreHeader& h = m.header;
  return absl::StrCat(m.has_header, Show(h.prompt), " ", h.first_block, "+", h.block_count, " ",
                      h.part.layer_group, "/", h.part.rank, " ", h.durability, Show(m.pieces));
}

std::string Show(const v1::LookupResponse& m) {
  std::string out = absl::StrCat(m.blocks(), " ", m.tokens(), " ", m.lease_id());
  for (const v1::TierRun& run : m.runs()) {
    absl::StrAppend(&out, " run=", static_cast<uint32_t>(run.tier()), ":", run.blocks(), ":",
                    Bits(run.load_seconds()));
  }
  for (uint32_t blocks : m.group_blocks()) absl::StrAppend(&out, " group=", blocks);
  return out;
}
std::string Show(const wire::LookupResponse& m) {
  std::string out = absl::StrCat(m.blocks, " ", m.tokens, " ", m.lease_id);
  for (const wire::TierRun& run : m.runs) {
    absl::StrAppend(&out, " run=", run.tier, ":", run.blocks, ":", Bits(run.load_seconds));
  }
  for (uint32_t blocks : m.group_blocks) absl::StrAppend(&out, " group=", blocks);
  return out;
}

void Fill(Random* random, v1::Prompt* prompt) {
  prompt->set_model_id(random->Bytes(16));
  if (random->OneIn(2)) {
    prompt->mutable_namespace_()->set_tenant(random->Text(random->Below(128)));
    prompt->mutable_namespace_()->set_salt(random->Bytes(random->Below(129)));
    prompt->mutable_namespace_()->set_adapter(random->Text(random->Below(257)));
  }
  if (random->OneIn(3)) {
    const size_t bytes = 8 + random->Below(57);
    for (uint64_t i = random->Below(50); i > 0; --i) {
      prompt->add_engine_hashes(random->Bytes(bytes));
    }
    return;
  }
  for (uint64_t i = random->Below(2000); i > 0; --i) prompt->add_tokens(random->Number32());
  for (uint64_t i = random->Below(4); i > 0; --i) {
    v1::MediaSpan* span = prompt->add_media();
    span->set_first_token(random->Number32());
    span->set_token_count(random->Number32());
    span->set_digest(random->Bytes(random->Below(65)));
  }
}

void Fill(Random* random, v1::LookupRequest* m) {
  Fill(random, m->mutable_prompt());
  m->set_lease_ms(random->Number32());
  m->set_promote_to(static_cast<v1::Tier>(random->Below(6)));
  m->set_before_store(random->OneIn(2));
  if (random->OneIn(2)) m->set_prefill_tokens_per_second(random->Number64() * 0x1p-40);
}

void Fill(Random* random, v1::FetchRequest* m) {
  if (random->OneIn(2)) Fill(random, m->mutable_prompt());
  m->set_lease_id(random->Number64());
  m->set_first_block(random->Number32());
  m->set_last_block(random->Number32());
  m->mutable_part()->set_layer_group(random->Number32());
  m->mutable_part()->set_rank(random->Number32());
  m->set_allow_gaps(random->OneIn(2));
}

void Fill(Random* random, v1::Piece* piece) {
  piece->set_block(random->Number32());
  piece->set_status(static_cast<v1::BlockStatus>(random->Below(4)));
  piece->set_offset(random->Number64());
  piece->set_part_bytes(random->Number64());
  piece->set_checksum(random->Number64());
  piece->set_payload(random->Bytes(random->OneIn(4) ? 0 : random->Below(5000)));
}

void Fill(Random* random, v1::FetchResponse* m) {
  for (uint64_t i = random->Below(5); i > 0; --i) Fill(random, m->add_pieces());
}

void Fill(Random* random, v1::StoreRequest* m) {
  if (random->OneIn(2)) {
    v1::StoreHeader* header = m->mutable_header();
    Fill(random, header->mutable_prompt());
    header->set_first_block(random->Number32());
    header->set_block_count(random->Number32());
    header->mutable_part()->set_layer_group(random->Number32());
    header->set_durability(static_cast<v1::Durability>(random->Below(4)));
  }
  for (uint64_t i = random->Below(4); i > 0; --i) Fill(random, m->add_pieces());
}

void Fill(Random* random, v1::LookupResponse* m) {
  m->set_blocks(random->Number32());
  m->set_tokens(random->Number32());
  m->set_lease_id(random->Number64());
  for (uint64_t i = random->Below(5); i > 0; --i) {
    v1::TierRun* run = m->add_runs();
    run->set_tier(static_cast<v1::Tier>(random->Below(5)));
    run->set_blocks(random->Number32());
    if (random->OneIn(2)) run->set_load_seconds(random->Number64() * 0x1p-40);
  }
  for (uint64_t i = random->Below(5); i > 0; --i) m->add_group_blocks(random->Number32());
}

absl::Status Decode(wire::Slices slices, wire::LookupRequest* out) {
  return wire::DecodeLookupRequest(slices, kWide, out);
}
absl::Status Decode(wire::Slices slices, wire::FetchRequest* out) {
  return wire::DecodeFetchRequest(slices, kWide, out);
}
absl::Status Decode(wire::Slices slices, wire::StoreRequest* out) {
  return wire::DecodeStoreRequest(slices, kWide, out);
}
absl::Status Decode(wire::Slices slices, wire::PieceList* out) {
  return wire::DecodeFetchResponse(slices, kWide, out);
}
absl::Status Decode(wire::Slices slices, wire::LookupResponse* out) {
  return wire::DecodeLookupResponse(slices, out);
}

bool IsMalformed(const absl::Status& status) {
  return std::string(status.message()).find("malformed") != std::string::npos;
}

// Both read `bytes`: the same verdict (but for limits that only ours has) and the same contents.
template <typename Generated, typename Ours>
void ExpectSameReading(const std::string& bytes, Random* random) {
  Generated generated;
  const bool accepted = generated.ParseFromString(bytes);
  Ours ours;
  const std::vector<std::string_view> slices = Cut(bytes, random);
  const absl::Status status = Decode(slices, &ours);
  if (!status.ok() && !IsMalformed(status)) return;
  ASSERT_EQ(status.ok(), accepted) << status;
  if (!accepted) return;
  ASSERT_EQ(Show(ours), Show(generated));
}

std::string Mutated(std::string bytes, Random* random) {
  for (uint64_t i = 1 + random->Below(4); i > 0 && !bytes.empty(); --i) {
    const size_t at = random->Below(bytes.size());
    switch (random->Below(4)) {
      case 0:
        bytes[at] = static_cast<char>(random->Below(256));
        break;
      case 1:
        bytes.resize(at);
        break;
      case 2:
        bytes.erase(at, 1 + random->Below(8));
        break;
      default:
        bytes.insert(at, random->Bytes(1 + random->Below(8)));
    }
  }
  return bytes;
}

// protoc's own messages, two of them end to end (which protobuf defines as merging), unknown fields
// between, and damaged ones.
template <typename Generated, typename Ours>
void Differential(uint64_t seed) {
  Random random(seed);
  const google::protobuf::LogSilencer silencer;  // it reports each damaged text
  const std::string unknown =
      "\xf8\x3f\x96\x01\xfa\x3f\x03xyz\xfd\x3f\x01\x02\x03\x04\xfb\x3f\x08\x01\xfc\x3f";
  for (int i = 0; i < 400; ++i) {
    SCOPED_TRACE(testing::Message() << "round " << i);
    Generated message;
    Fill(&random, &message);
    std::string bytes = message.SerializeAsString();
    Ours ours;
    const std::vector<std::string_view> slices = Cut(bytes, &random);
    ASSERT_TRUE(Decode(slices, &ours).ok());
    ASSERT_EQ(Show(ours), Show(message));
    Generated second;
    Fill(&random, &second);
    const std::string merged = bytes + unknown + second.SerializeAsString();
    ASSERT_TRUE(Generated().ParseFromString(merged));
    ASSERT_NO_FATAL_FAILURE((ExpectSameReading<Generated, Ours>(merged, &random)));
    for (int k = 0; k < 10; ++k) {
      ASSERT_NO_FATAL_FAILURE(
          (ExpectSameReading<Generated, Ours>(Mutated(bytes, &random), &random)));
    }
  }
}

TEST(WireTest, ReadsLookupRequestsAsGeneratedCodeDoes) {
  Differential<v1::LookupRequest, wire::LookupRequest>(TestSeed());
}
TEST(WireTest, ReadsFetchRequestsAsGeneratedCodeDoes) {
  Differential<v1::FetchRequest, wire::FetchRequest>(TestSeed());
}
TEST(WireTest, ReadsStoreRequestsAsGeneratedCodeDoes) {
  Differential<v1::StoreRequest, wire::StoreRequest>(TestSeed());
}
TEST(WireTest, ReadsFetchResponsesAsGeneratedCodeDoes) {
  Differential<v1::FetchResponse, wire::PieceList>(TestSeed());
}
TEST(WireTest, ReadsLookupResponsesAsGeneratedCodeDoes) {
  Differential<v1::LookupResponse, wire::LookupResponse>(TestSeed());
}

// What a message's prompt is written from.
struct PromptSource {
  Namespace name;
  std::vector<MediaSpan> media;
  std::vector<uint32_t> tokens;
  std::string hashes;
  wire::PromptHead head;

  explicit PromptSource(const v1::Prompt& p)
      : name{p.namespace_().tenant(), p.namespace_().salt(), p.namespace_().adapter()},
        tokens(p.tokens().begin(), p.tokens().end()) {
    for (const v1::MediaSpan& m : p.media()) {
      media.push_back({m.first_token(), m.token_count(), m.digest()});
    }
    for (const std::string& hash : p.engine_hashes()) hashes += hash;
    head.model_id = *Digest128::FromBytes(p.model_id());
    if (p.has_namespace_()) head.name = &name;
    head.token_count = tokens.size();
    head.engine_hashes = hashes;
    if (p.engine_hashes_size() > 0) head.engine_hash_bytes = p.engine_hashes(0).size();
    head.media = media;
  }
  std::string TokenBytes() const {
    return std::string(reinterpret_cast<const char*>(tokens.data()), tokens.size() * 4);
  }
};

TEST(WireTest, GeneratedCodeReadsWhatIsWritten) {
  Random random(TestSeed());
  for (int i = 0; i < 400; ++i) {
    v1::LookupRequest lookup;
    Fill(&random, &lookup);
    const PromptSource prompt(lookup.prompt());
    v1::LookupRequest read_lookup;
    ASSERT_TRUE(read_lookup.ParseFromString(
        wire::EncodeLookupHead(prompt.head,
                               {.lease_ms = lookup.lease_ms(),
                                .promote_to = static_cast<uint32_t>(lookup.promote_to()),
                                .before_store = lookup.before_store(),
                                .prefill_tokens_per_second = lookup.prefill_tokens_per_second()}) +
        prompt.TokenBytes()));
    ASSERT_EQ(Show(read_lookup), Show(lookup));

    v1::FetchRequest fetch;
    Fill(&random, &fetch);
    if (fetch.has_prompt()) *fetch.mutable_prompt() = lookup.prompt();
    const wire::FetchHead head{
        .prompt = fetch.has_prompt() ? &prompt.head : nullptr,
        .lease_id = fetch.lease_id(),
        .first_block = fetch.first_block(),
        .last_block = fetch.last_block(),
        .part = {fetch.part().layer_group(), fetch.part().rank()},
        .allow_gaps = fetch.allow_gaps(),
    };
    v1::FetchRequest read_fetch;
    ASSERT_TRUE(read_fetch.ParseFromString(wire::EncodeFetchHead(head) +
                                           (fetch.has_prompt() ? prompt.TokenBytes() : "")));
    ASSERT_EQ(Show(read_fetch), Show(fetch));

    v1::StoreRequest store;
    *store.mutable_header()->mutable_prompt() = lookup.prompt();
    store.mutable_header()->set_first_block(random.Number32());
    store.mutable_header()->set_block_count(random.Number32());
    store.mutable_header()->mutable_part()->set_rank(random.Number32());
    store.mutable_header()->set_durability(v1::DURABILITY_DURABLE);
    const v1::StoreHeader& h = store.header();
    v1::StoreRequest read_store;
    ASSERT_TRUE(read_store.ParseFromString(
        wire::EncodeStoreHead(prompt.head, h.first_block(), h.block_count(), {0, h.part().rank()},
                              h.durability()) +
        prompt.TokenBytes()));
    ASSERT_EQ(Show(read_store), Show(store));
  }
}

template <typename Message>
void ExpectPiecesReadBack(wire::PieceField field, Random* random) {
  Message message;
  for (uint64_t i = 1 + random->Below(4); i > 0; --i) Fill(random, message.add_pieces());
  std::string bytes;
  for (const v1::Piece& p : message.pieces()) {
    char head[wire::kMaxPieceHead];
    const size_t size = wire::EncodePieceHead(field,
                                              {.block = p.block(),
                                               .status = static_cast<uint32_t>(p.status()),
                                               .offset = p.offset(),
                                               .part_bytes = p.part_bytes(),
                                               .checksum = p.checksum(),
                                               .payload_bytes = p.payload().size()},
                                              head);
    ASSERT_LE(size, sizeof(head));
    bytes.append(head, size).append(p.payload());
  }
  Message read;
  ASSERT_TRUE(read.ParseFromString(bytes));
  ASSERT_EQ(Show(read), Show(message));
}

TEST(WireTest, GeneratedCodeReadsPieces) {
  Random random(TestSeed());
  for (int i = 0; i < 500; ++i) {
    ASSERT_NO_FATAL_FAILURE(
        ExpectPiecesReadBack<v1::FetchResponse>(wire::PieceField::kFetchResponse, &random));
    ASSERT_NO_FATAL_FAILURE(
        ExpectPiecesReadBack<v1::StoreRequest>(wire::PieceField::kStoreRequest, &random));
  }
}

TEST(WireTest, PieceHeadOfTheLargestNumbersFits) {
  char head[wire::kMaxPieceHead];
  const size_t size = wire::EncodePieceHead(wire::PieceField::kStoreRequest,
                                            {UINT32_MAX, UINT32_MAX, UINT64_MAX, UINT64_MAX,
                                             UINT64_MAX, (1u << 31) - 1 - wire::kMaxPieceHead},
                                            head);
  EXPECT_LE(size, sizeof(head));
}

TEST(WireTest, GeneratedCodeReadsLookupResponses) {
  Random random(TestSeed());
  for (int i = 0; i < 500; ++i) {
    v1::LookupResponse message;
    Fill(&random, &message);
    wire::LookupResponse ours;
    ours.blocks = message.blocks();
    ours.tokens = message.tokens();
    ours.lease_id = message.lease_id();
    for (const v1::TierRun& run : message.runs()) {
      ours.runs.push_back({static_cast<uint32_t>(run.tier()), run.blocks(), run.load_seconds()});
    }
    ours.group_blocks.assign(message.group_blocks().begin(), message.group_blocks().end());
    v1::LookupResponse read;
    ASSERT_TRUE(read.ParseFromString(wire::EncodeLookupResponse(ours)));
    ASSERT_EQ(Show(read), Show(message));
  }
}

// Field 3 unpacked (tag 1d), then packed (tag 1a), then unpacked again.
TEST(WireTest, TokensPackedAndNotMix) {
  std::string prompt;
  std::string want;
  const auto token = [&](uint32_t value) {
    std::string bytes(reinterpret_cast<const char*>(&value), 4);
    want += bytes;
    return bytes;
  };
  for (uint32_t i = 0; i < 3000; ++i) (prompt += '\x1d') += token(i);
  prompt += "\x1a\x08";
  prompt += token(7);
  prompt += token(8);
  for (uint32_t i = 0; i < 5; ++i) (prompt += '\x1d') += token(i);
  std::string bytes(1, '\x0a');
  for (uint64_t left = prompt.size();; left >>= 7) {
    bytes.push_back(static_cast<char>((left & 0x7f) | (left > 0x7f ? 0x80 : 0)));
    if (left <= 0x7f) break;
  }
  bytes += prompt;
  Random random(TestSeed());
  wire::LookupRequest out;
  const std::vector<std::string_view> slices = Cut(bytes, &random);
  ASSERT_TRUE(wire::DecodeLookupRequest(slices, kWide, &out).ok());
  EXPECT_EQ(out.prompt.token_count, 3007u);
  EXPECT_TRUE(Join(out.prompt.tokens) == want);
  v1::LookupRequest generated;
  ASSERT_TRUE(generated.ParseFromString(bytes));
  EXPECT_EQ(Show(out), Show(generated));
}

absl::Status DecodeLookup(const v1::LookupRequest& request, const wire::Limits& limits) {
  const std::string bytes = request.SerializeAsString();
  const std::string_view view = bytes;
  wire::LookupRequest out;
  return wire::DecodeLookupRequest({&view, 1}, limits, &out);
}

void ExpectRefused(const absl::Status& status, const std::string& text) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(status.message()).find(text), std::string::npos) << status;
}

TEST(WireTest, LimitsNameFieldValueAndLimit) {
  const wire::Limits limits{
      .tokens = 10, .engine_hashes = 3, .media_spans = 2, .payload_bytes = 100, .pieces = 2};
  v1::LookupRequest request;
  v1::Prompt* prompt = request.mutable_prompt();
  for (int i = 0; i < 10; ++i) prompt->add_tokens(i);
  EXPECT_TRUE(DecodeLookup(request, limits).ok());
  prompt->add_tokens(1);
  ExpectRefused(DecodeLookup(request, limits), "prompt.tokens has 11 tokens, the limit is 10");

  prompt->Clear();
  for (int i = 0; i < 3; ++i) prompt->add_engine_hashes("12345678");
  EXPECT_TRUE(DecodeLookup(request, limits).ok());
  prompt->set_engine_hashes(2, "123456789");
  ExpectRefused(DecodeLookup(request, limits), "prompt.engine_hashes[2] has 9 bytes");
  prompt->set_engine_hashes(2, "12345678");
  prompt->add_engine_hashes("12345678");
  ExpectRefused(DecodeLookup(request, limits), "has 4 hashes, the limit is 3");
  prompt->Clear();
  prompt->add_engine_hashes("1234567");
  ExpectRefused(DecodeLookup(request, limits), "has 7 bytes, the limits are 8 and 64");

  prompt->Clear();
  prompt->set_model_id("short");
  ExpectRefused(DecodeLookup(request, limits), "prompt.model_id has 5 bytes, the limit is 16");
  prompt->set_model_id(std::string(16, 'm'));
  EXPECT_TRUE(DecodeLookup(request, limits).ok());
  prompt->mutable_namespace_()->set_salt(std::string(129, 's'));
  ExpectRefused(DecodeLookup(request, limits), "namespace.salt has 129 bytes, the limit is 128");
  prompt->Clear();
  for (int i = 0; i < 3; ++i) prompt->add_media();
  ExpectRefused(DecodeLookup(request, limits), "prompt.media has 3 spans, the limit is 2");
}

TEST(WireTest, PieceLimitsNameFieldValueAndLimit) {
  const wire::Limits limits{.payload_bytes = 100, .pieces = 2};
  v1::StoreRequest request;
  request.add_pieces()->set_payload(std::string(60, 'x'));
  request.add_pieces()->set_payload(std::string(40, 'x'));
  const auto decode = [&] {
    const std::string bytes = request.SerializeAsString();
    const std::string_view view = bytes;
    wire::StoreRequest out;
    return wire::DecodeStoreRequest({&view, 1}, limits, &out);
  };
  EXPECT_TRUE(decode().ok());
  request.mutable_pieces(1)->set_payload(std::string(41, 'x'));
  ExpectRefused(decode(), "pieces.payload has 101 bytes in one message, the limit is 100");
  request.mutable_pieces(1)->clear_payload();
  request.add_pieces();
  ExpectRefused(decode(), "pieces has 3 elements, the limit is 2");
}

// A length that promises more than there is must not be believed.
TEST(WireTest, PromisedLengthsTakeNoMemory) {
  const std::string bytes("\x0a\xff\xff\xff\xff\x07", 6);
  const std::string_view view = bytes;
  wire::LookupRequest out;
  EXPECT_TRUE(IsMalformed(wire::DecodeLookupRequest({&view, 1}, kWide, &out)));
}

TEST(WireTest, SeededFuzz) {
  Random random(TestSeed());
  for (int i = 0; i < 2000; ++i) {
    std::string input = random.Bytes(2);
    if (random.OneIn(4)) {
      input += random.Bytes(random.Below(300));
    } else {
      v1::StoreRequest store;
      v1::LookupRequest lookup;
      Fill(&random, &store);
      Fill(&random, &lookup);
      const std::string bytes =
          random.OneIn(2) ? store.SerializeAsString() : lookup.SerializeAsString();
      input += Mutated(bytes, &random);
    }
    FuzzWire({reinterpret_cast<const uint8_t*>(input.data()), input.size()});
  }
}

}  // namespace
}  // namespace kvtier
