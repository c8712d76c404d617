// FetchShared and StoreShared from the client's side: calls by the generated stub, bytes by maps of
// its own.
#pragma once

#include <optional>
#include <string>
#include <vector>

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

  // Puts the payloads end to end into the store region, from `offset` on.
  v1::StoreSharedRequest StoreOf(const v1::Prompt& prompt, uint32_t first_block,
                                 const std::vector<std::string>& payloads, uint64_t offset = 0);
  grpc::Status Store(const v1::StoreSharedRequest& request, v1::StoreResponse* response);
  // And every block must be STORED.
  void StoreAll(const v1::StoreSharedRequest& request);

 private:
  ServiceClient* const client_;
  RawSharedClient* const session_;
};

}  // namespace kvtier
