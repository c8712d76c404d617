#include "tests/service/service_client.h"

#include <algorithm>
#include <cstring>

#include "common/block_key.h"

namespace kvtier {
namespace {

// Takes one piece; the pieces of a block come in order and say the same of it.
void AddPiece(const v1::Piece& piece, uint32_t first, ServiceClient::Fetched* out) {
  const uint64_t index = piece.block() - first;
  if (piece.status() == v1::BLOCK_STATUS_MISS) {
    ASSERT_EQ(index, out->blocks.size());
    ASSERT_TRUE(piece.payload().empty());
    out->blocks.emplace_back();
    return;
  }
  ASSERT_EQ(piece.status(), v1::BLOCK_STATUS_OK);
  if (piece.offset() == 0) {
    ASSERT_EQ(index, out->blocks.size());
    out->blocks.emplace_back("");
  }
  ASSERT_EQ(index + 1, out->blocks.size());
  std::string& bytes = *out->blocks.back();
  ASSERT_EQ(piece.offset(), bytes.size());
  ASSERT_LE(piece.offset() + piece.payload().size(), piece.part_bytes());
  bytes += piece.payload();
  if (bytes.size() < piece.part_bytes()) return;
  ASSERT_EQ(piece.checksum(), PayloadChecksum(bytes.data(), bytes.size()));
}

}  // namespace

std::string PayloadBytes(uint64_t seed, uint64_t bytes) {
  std::string out(bytes, '\0');
  uint64_t x = seed * 0x9e3779b97f4a7c15 + 1;
  for (uint64_t i = 0; i < bytes; i += 8) {
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    std::memcpy(out.data() + i, &x, std::min<uint64_t>(8, bytes - i));
  }
  return out;
}

ServiceClient::ServiceClient(const std::string& address) {
  grpc::ChannelArguments args;
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  stub_ = v1::KvCache::NewStub(
      grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), args));
}

std::string ServiceClient::Register(const std::string& name,
                                    const std::vector<uint64_t>& part_bytes, uint32_t block_tokens,
                                    uint32_t groups) {
  v1::RegisterModelRequest request;
  v1::ModelSpec* spec = request.mutable_spec();
  spec->set_name(name);
  spec->set_block_tokens(block_tokens);
  spec->mutable_explicit_part_bytes()->Add(part_bytes.begin(), part_bytes.end());
  spec->set_explicit_groups(groups);
  spec->set_tensor_parallel(part_bytes.size() / groups);
  spec->set_layout_fingerprint("test");
  spec->set_pack_order(v1::PACK_ORDER_OPAQUE);
  v1::RegisterModelResponse response;
  grpc::ClientContext context;
  const grpc::Status status = stub_->RegisterModel(&context, request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response.model_id();
}

grpc::Status ServiceClient::Lookup(const v1::LookupRequest& request, v1::LookupResponse* response) {
  grpc::ClientContext context;
  return stub_->Lookup(&context, request, response);
}

uint32_t ServiceClient::Found(const v1::Prompt& prompt) {
  v1::LookupRequest request;
  *request.mutable_prompt() = prompt;
  v1::LookupResponse response;
  const grpc::Status status = Lookup(request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response.blocks();
}

uint64_t ServiceClient::Lease(const v1::Prompt& prompt, uint32_t lease_ms) {
  v1::LookupRequest request;
  *request.mutable_prompt() = prompt;
  request.set_lease_ms(lease_ms);
  v1::LookupResponse response;
  const grpc::Status status = Lookup(request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response.lease_id();
}

grpc::Status ServiceClient::Store(const v1::Prompt& prompt, uint32_t first_block,
                                  const std::vector<std::string>& payloads,
                                  v1::StoreResponse* response, v1::Part part, uint64_t chunk,
                                  v1::Durability durability) {
  grpc::ClientContext context;
  std::unique_ptr<StoreStream> stream = stub_->Store(&context, response);
  v1::StoreRequest header = HeaderOf(prompt, first_block, payloads.size());
  *header.mutable_header()->mutable_part() = part;
  header.mutable_header()->set_durability(durability);
  bool writable = stream->Write(header);
  v1::StoreRequest message;
  uint64_t room = chunk;
  for (size_t i = 0; i < payloads.size() && writable; ++i) {
    for (uint64_t offset = 0; offset < payloads[i].size();) {
      const uint64_t bytes = std::min<uint64_t>(room, payloads[i].size() - offset);
      *message.add_pieces() = PieceOf(first_block + i, payloads[i], offset, bytes);
      offset += bytes;
      room -= bytes;
      if (room > 0) continue;
      writable = stream->Write(message);
      message.Clear();
      room = chunk;
    }
  }
  if (message.pieces_size() > 0 && writable) stream->Write(message);
  stream->WritesDone();
  return stream->Finish();
}

void ServiceClient::StoreAll(const v1::Prompt& prompt, uint32_t first_block,
                             const std::vector<std::string>& payloads, v1::Part part) {
  v1::StoreResponse response;
  const grpc::Status status = Store(prompt, first_block, payloads, &response, part);
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(response.outcomes_size(), static_cast<int>(payloads.size()));
  for (const v1::BlockOutcome& outcome : response.outcomes()) {
    ASSERT_EQ(outcome.status(), v1::STORE_STATUS_STORED) << outcome.ShortDebugString();
  }
}

ServiceClient::Fetched ServiceClient::Fetch(const v1::FetchRequest& request) {
  Fetched out;
  grpc::ClientContext context;
  std::unique_ptr<FetchStream> stream = stub_->Fetch(&context, request);
  v1::FetchResponse message;
  while (stream->Read(&message)) {
    ++out.messages;
    uint64_t payload_bytes = 0;
    for (const v1::Piece& piece : message.pieces()) {
      payload_bytes += piece.payload().size();
      AddPiece(piece, request.first_block(), &out);
    }
    EXPECT_LE(payload_bytes, uint64_t{1} << 20);
  }
  out.status = stream->Finish();
  return out;
}

v1::Prompt TokenPrompt(const std::string& model_id, uint32_t seed, uint32_t blocks,
                       uint32_t block_tokens) {
  v1::Prompt prompt;
  prompt.set_model_id(model_id);
  for (uint32_t i = 0; i < blocks * block_tokens; ++i) prompt.add_tokens(seed * 1'000'003 + i);
  return prompt;
}

v1::FetchRequest FetchOf(const v1::Prompt& prompt, uint32_t first, uint32_t last) {
  v1::FetchRequest request;
  *request.mutable_prompt() = prompt;
  request.set_first_block(first);
  request.set_last_block(last);
  return request;
}

v1::FetchRequest FetchOf(uint64_t lease_id, uint32_t first, uint32_t last) {
  v1::FetchRequest request;
  request.set_lease_id(lease_id);
  request.set_first_block(first);
  request.set_last_block(last);
  return request;
}

v1::Piece PieceOf(uint32_t block, const std::string& part, uint64_t offset, uint64_t bytes) {
  v1::Piece piece;
  piece.set_block(block);
  piece.set_offset(offset);
  piece.set_part_bytes(part.size());
  piece.set_checksum(PayloadChecksum(part.data(), part.size()));
  piece.set_payload(part.substr(offset, bytes));
  return piece;
}

v1::StoreRequest HeaderOf(const v1::Prompt& prompt, uint32_t first_block, uint32_t count) {
  v1::StoreRequest request;
  *request.mutable_header()->mutable_prompt() = prompt;
  request.mutable_header()->set_first_block(first_block);
  request.mutable_header()->set_block_count(count);
  return request;
}

void ExpectError(const grpc::Status& status, grpc::StatusCode code,
                 const std::vector<std::string>& texts) {
  EXPECT_EQ(status.error_code(), code) << status.error_message();
  EXPECT_NE(status.error_message().find(" [request "), std::string::npos) << status.error_message();
  for (const std::string& text : texts) {
    EXPECT_NE(status.error_message().find(text), std::string::npos)
        << "wanted: " << text << "\nis: " << status.error_message();
  }
}

}  // namespace kvtier
