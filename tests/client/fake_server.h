// A daemon that says what the test tells it to, also what no good daemon would.
#pragma once

#include <grpcpp/server.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "common/mutex.h"
#include "kvtier/v1/kvtier.grpc.pb.h"

namespace kvtier {

// Set the handlers before the first call. A call without a handler answers UNIMPLEMENTED.
class FakeServer final : public v1::KvCache::Service {
 public:
  using Lookups = std::function<grpc::Status(grpc::ServerContext*, const v1::LookupRequest&,
                                             v1::LookupResponse*)>;
  using Fetches =
      std::function<grpc::Status(const v1::FetchRequest&, grpc::ServerWriter<v1::FetchResponse>*)>;
  using Stores =
      std::function<grpc::Status(grpc::ServerReader<v1::StoreRequest>*, v1::StoreResponse*)>;

  // On a Unix socket in a directory of its own, or on `address`.
  FakeServer();
  explicit FakeServer(const std::string& address);
  ~FakeServer() override;

  const std::string& address() const { return address_; }
  void Start();
  void Stop();
  int lookups() const { return lookups_; }

  // Blocks until LetGo, for handlers that hang.
  void Hang();
  void LetGo();

  Lookups on_lookup;
  Fetches on_fetch;
  Stores on_store;

 private:
  grpc::Status Lookup(grpc::ServerContext* context, const v1::LookupRequest* request,
                      v1::LookupResponse* response) override;
  grpc::Status Fetch(grpc::ServerContext* context, const v1::FetchRequest* request,
                     grpc::ServerWriter<v1::FetchResponse>* writer) override;
  grpc::Status Store(grpc::ServerContext* context, grpc::ServerReader<v1::StoreRequest>* reader,
                     v1::StoreResponse* response) override;

  std::string directory_;
  std::string address_;
  std::unique_ptr<grpc::Server> server_;
  std::atomic<int> lookups_{0};
  Mutex mutex_;
  CondVar let_go_;
  bool hanging_ KVTIER_GUARDED_BY(mutex_) = true;
};

}  // namespace kvtier
