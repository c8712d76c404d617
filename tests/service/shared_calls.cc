#include "tests/service/shared_calls.h"

#include <algorithm>
#include <cstring>
#include <utility>

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

SharedCalls::Store SharedCalls::StoreOf(const v1::Prompt& prompt, uint32_t first_block,
                                        std::vector<std::string> payloads) const {
  Store store;
  store.request.set_session_id(session_->session_id());
  *store.request.mutable_header() = HeaderOf(prompt, first_block, payloads.size()).header();
  for (const std::string& payload : payloads) {
    store.checksums.push_back(PayloadChecksum(payload.data(), payload.size()));
  }
  store.payloads = std::move(payloads);
  return store;
}

grpc::Status SharedCalls::Send(const Store& store, v1::StoreResponse* response) {
  StoreRingWriter ring(session_->store());
  std::atomic<bool> ended{false};
  grpc::Status status;
  caller_.Run([&] {
    grpc::ClientContext context;
    status = client_->stub().StoreShared(&context, store.request, response);
    ended.store(true);
    ring.Wake();
  });
  Fill(store, &ring, ended);
  caller_.WaitIdle();
  return status;
}

bool SharedCalls::Fill(const Store& store, StoreRingWriter* ring, const std::atomic<bool>& stop) {
  for (size_t i = 0; i < store.payloads.size(); ++i) {
    std::span<const std::byte> part = std::as_bytes(std::span(store.payloads[i]));
    while (!part.empty()) {
      const std::span<std::byte> room = ring->Room(part.size(), stop);
      if (room.empty()) return false;
      std::memcpy(room.data(), part.data(), room.size());
      ring->Fill(room.size());
      part = part.subspan(room.size());
    }
    const std::span<std::byte> line = ring->Room(StoreRing::kLine, stop);
    if (line.empty()) return false;
    std::memcpy(line.data(), &store.checksums[i], sizeof(uint64_t));
    ring->Fill(line.size());
  }
  ring->Flush();
  return true;
}

void SharedCalls::StoreAll(const Store& store) {
  v1::StoreResponse response;
  const grpc::Status status = Send(store, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(static_cast<size_t>(response.outcomes_size()), store.payloads.size());
  for (const v1::BlockOutcome& outcome : response.outcomes()) {
    ASSERT_EQ(outcome.status(), v1::STORE_STATUS_STORED) << outcome.ShortDebugString();
  }
}

}  // namespace kvtier
