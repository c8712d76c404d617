#include "tests/service/shared_calls.h"

#include <algorithm>
#include <cstring>

#include "common/block_key.h"

namespace kvtier {

v1::FetchSharedRequest SharedCalls::FetchOf(uint64_t lease, uint32_t first, uint32_t last) const {
  v1::FetchSharedRequest request;
  request.set_session_id(session_->session_id());
  request.set_lease_id(lease);
  request.set_first_block(first);
  request.set_last_block(last);
  return request;
}

SharedCalls::Fetched SharedCalls::Fetch(const v1::FetchSharedRequest& request) {
  Fetched out;
  grpc::ClientContext context;
  const auto stream = client_->stub().FetchShared(&context, request);
  v1::FetchSharedResponse message;
  while (stream->Read(&message)) {
    ++out.messages;
    for (const v1::SharedBlock& block : message.blocks()) {
      EXPECT_EQ(block.block(), request.first_block() + out.blocks.size());
      out.blocks.push_back(block);
      out.bytes.emplace_back();
      if (block.status() != v1::BLOCK_STATUS_OK) continue;
      const std::span<const std::byte> region = session_->Map(block.region());
      if (block.offset() + block.bytes() > region.size()) {
        ADD_FAILURE() << block.ShortDebugString() << " in a region of " << region.size();
        continue;
      }
      out.bytes.back().emplace(reinterpret_cast<const char*>(region.data()) + block.offset(),
                               block.bytes());
      EXPECT_EQ(block.checksum(), PayloadChecksum(out.bytes.back()->data(), block.bytes()));
    }
  }
  out.status = stream->Finish();
  return out;
}

v1::StoreSharedRequest SharedCalls::StoreOf(const v1::Prompt& prompt, uint32_t first_block,
                                            const std::vector<std::string>& payloads,
                                            uint64_t offset) {
  v1::StoreSharedRequest request;
  request.set_session_id(session_->session_id());
  *request.mutable_header() = HeaderOf(prompt, first_block, payloads.size()).header();
  for (const std::string& payload : payloads) {
    std::memcpy(session_->store().data() + offset, payload.data(), payload.size());
    v1::SharedPayload* out = request.add_payloads();
    out->set_offset(offset);
    out->set_checksum(PayloadChecksum(payload.data(), payload.size()));
    offset += payload.size();
  }
  return request;
}

grpc::Status SharedCalls::Store(const v1::StoreSharedRequest& request,
                                v1::StoreResponse* response) {
  grpc::ClientContext context;
  return client_->stub().StoreShared(&context, request, response);
}

void SharedCalls::StoreAll(const v1::StoreSharedRequest& request) {
  v1::StoreResponse response;
  const grpc::Status status = Store(request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(response.outcomes_size(), request.payloads_size());
  for (const v1::BlockOutcome& outcome : response.outcomes()) {
    ASSERT_EQ(outcome.status(), v1::STORE_STATUS_STORED) << outcome.ShortDebugString();
  }
}

}  // namespace kvtier
