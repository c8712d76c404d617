#include "tests/client/fake_server.h"

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>
#include <stdlib.h>

#include <filesystem>

#include "common/check.h"

namespace kvtier {
namespace {

const grpc::Status kNoHandler(grpc::StatusCode::UNIMPLEMENTED, "no handler");

}  // namespace

FakeServer::FakeServer() : directory_("/tmp/kvtier-client-test-XXXXXX") {
  KVTIER_CHECK(mkdtemp(directory_.data()) != nullptr);
  address_ = "unix:" + directory_ + "/socket";
  Start();
}

FakeServer::FakeServer(const std::string& address) : address_(address) { Start(); }

FakeServer::~FakeServer() {
  Stop();
  if (!directory_.empty()) std::filesystem::remove_all(directory_);
}

void FakeServer::Start() {
  grpc::ServerBuilder builder;
  builder.AddListeningPort(address_, grpc::InsecureServerCredentials());
  builder.RegisterService(this);
  server_ = builder.BuildAndStart();
  KVTIER_CHECK(server_ != nullptr);
}

void FakeServer::Stop() {
  LetGo();
  if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
  server_.reset();
}

void FakeServer::Hang() {
  MutexLock lock(mutex_);
  while (hanging_) let_go_.Wait(mutex_);
}

void FakeServer::LetGo() {
  MutexLock lock(mutex_);
  hanging_ = false;
  let_go_.NotifyAll();
}

grpc::Status FakeServer::Lookup(grpc::ServerContext* context, const v1::LookupRequest* request,
                                v1::LookupResponse* response) {
  ++lookups_;
  return on_lookup ? on_lookup(context, *request, response) : kNoHandler;
}

grpc::Status FakeServer::Fetch(grpc::ServerContext*, const v1::FetchRequest* request,
                               grpc::ServerWriter<v1::FetchResponse>* writer) {
  return on_fetch ? on_fetch(*request, writer) : kNoHandler;
}

grpc::Status FakeServer::Store(grpc::ServerContext*, grpc::ServerReader<v1::StoreRequest>* reader,
                               v1::StoreResponse* response) {
  return on_store ? on_store(reader, response) : kNoHandler;
}

}  // namespace kvtier
