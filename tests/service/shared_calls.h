// FetchShared and StoreShared from the client's side: calls by the generated stub, bytes by maps of
// its own.
#pragma once

#include <atomic>
#include <optional>
#include <string>
#include <vector>

#include "common/executor.h"
#include "common/store_ring.h"
#include "tests/service/service_client.h"
#include "tests/support/raw_shared_client.h"

namespace kvtier {

class SharedCalls {
 public:
  // `session` and `client` must outlive it.
  SharedCalls(ServiceClient* client, RawSharedClient* session)
      : client_(client), session_(session) {}

  v1::FetchSharedRequest FetchOf(uint64_t lease, uint32_t first, uint32_t last) const;

  struct Fetched {
    std::vector<v1::SharedBlock> blocks;
    std::vector<std::optional<std::string>> bytes;  // of those that are OK, copied out of the map
    uint64_t messages = 0;
    grpc::Status status;
  };
  // Maps the regions that it names. Checks order and checksums.
  Fetched Fetch(const v1::FetchSharedRequest& request);

  struct Store {
    v1::StoreSharedRequest request;
    std::vector<std::string> payloads;
    std::vector<uint64_t> checksums;  // of each
  };
  Store StoreOf(const v1::Prompt& prompt, uint32_t first_block,
                std::vector<std::string> payloads) const;
  // Fills the region's ring while the call runs.
  grpc::Status Send(const Store& store, v1::StoreResponse* response);
  // And every block must be STORED.
  void StoreAll(const Store& store);
  // False when it was stopped.
  static bool Fill(const Store& store, StoreRingWriter* ring, const std::atomic<bool>& stop);

 private:
  ServiceClient* const client_;
  RawSharedClient* const session_;
  ThreadPool caller_{1};
};

}  // namespace kvtier
