// A client of the data service made of nothing but the generated stub, as any other language's is.
#pragma once

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kvtier/v1/kvtier.grpc.pb.h"
#include "tests/support/test_server.h"

namespace kvtier {

// `bytes` bytes that differ by seed.
std::string PayloadBytes(uint64_t seed, uint64_t bytes);

class ServiceClient {
 public:
  using StoreStream = grpc::ClientWriter<v1::StoreRequest>;
  using FetchStream = grpc::ClientReader<v1::FetchResponse>;

  // With a connection of its own.
  explicit ServiceClient(const std::string& address);

  v1::KvCache::Stub& stub() { return *stub_; }

  // A model of opaque parts; returns its id.
  std::string Register(const std::string& name, const std::vector<uint64_t>& part_bytes,
                       uint32_t block_tokens = 4, uint32_t groups = 1);
  grpc::Status Lookup(const v1::LookupRequest& request, v1::LookupResponse* response);
  // Leading blocks found; fails the test on an error.
  uint32_t Found(const v1::Prompt& prompt);
  uint64_t Lease(const v1::Prompt& prompt, uint32_t lease_ms);

  // Stores `payloads` from first_block on in messages of at most `chunk` bytes of payload.
  grpc::Status Store(const v1::Prompt& prompt, uint32_t first_block,
                     const std::vector<std::string>& payloads, v1::StoreResponse* response,
                     v1::Part part = {}, uint64_t chunk = 1 << 20,
                     v1::Durability durability = v1::DURABILITY_UNSPECIFIED);
  // The same, and every block must be STORED.
  void StoreAll(const v1::Prompt& prompt, uint32_t first_block,
                const std::vector<std::string>& payloads, v1::Part part = {});

  // One element per block that the server spoke of; empty for a miss.
  struct Fetched {
    std::vector<std::optional<std::string>> blocks;
    uint64_t messages = 0;
    grpc::Status status;
  };
  // Checks order, offsets, sizes and checksums on the way.
  Fetched Fetch(const v1::FetchRequest& request);

 private:
  std::unique_ptr<v1::KvCache::Stub> stub_;
};

// `blocks` blocks of `block_tokens` tokens that differ by seed.
v1::Prompt TokenPrompt(const std::string& model_id, uint32_t seed, uint32_t blocks,
                       uint32_t block_tokens = 4);
v1::FetchRequest FetchOf(const v1::Prompt& prompt, uint32_t first, uint32_t last);
v1::FetchRequest FetchOf(uint64_t lease_id, uint32_t first, uint32_t last);
v1::Piece PieceOf(uint32_t block, const std::string& part, uint64_t offset, uint64_t bytes);
v1::StoreRequest HeaderOf(const v1::Prompt& prompt, uint32_t first_block, uint32_t count);

// The code, each of `texts` in the message, and a request id.
void ExpectError(const grpc::Status& status, grpc::StatusCode code,
                 const std::vector<std::string>& texts);

}  // namespace kvtier
