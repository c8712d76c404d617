#include "tests/support/test_server.h"

#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <utility>

#include "common/channel_args.h"
#include "common/check.h"
#include "storage/memory_tier.h"

namespace kvtier {

TestServer::TestServer(TestServerOptions options) {
  char path[] = "/tmp/kvtier-test-XXXXXX";
  KVTIER_CHECK(mkdtemp(path) != nullptr);
  directory_ = path;
  executor_ = std::make_unique<ThreadPool>(2);
  ssd_reader_ = std::make_unique<ThreadPool>(2);
  ssd_writer_ = std::make_unique<ThreadPool>(1);
  DeviceMemory* memory = nullptr;
  if (options.shared_memory) {
    shared_host_memory_ = MakeSharedHostMemory(options.max_retired_bytes);
    memory = shared_host_memory_.get();
    options.shared.socket_path = directory_ + "/kvtier.shm.sock";
    auto started = SharedMemory::Start(std::move(options.shared), shared_host_memory_.get());
    KVTIER_CHECK(started.ok());
    shared_memory_ = *std::move(started);
    options.service.shared_memory = shared_memory_.get();
  } else {
    host_memory_ = MakeHostMemory();
    memory = host_memory_.get();
  }
  auto ram = std::make_unique<MemoryTier>(TierKind::kRam, memory, options.ram_bytes);
  std::unique_ptr<FakeLogTier> ssd;
  if (options.ssd_bytes > 0) {
    ssd = std::make_unique<FakeLogTier>(std::make_shared<FakeMedium>(), options.ssd_bytes,
                                        options.ssd_bytes / 16);
  }
  ssd_ = ssd.get();
  manager_ = std::make_unique<TierManager>(
      options.manager, nullptr, std::move(ram), std::move(ssd),
      ManagerExecutors{executor_.get(), ssd_reader_.get(), ssd_writer_.get()}, &clock_);
  manager_->Restore();
  registry_ = std::make_unique<CallRegistry>(options.max_streams_per_client, &clock_);
  service_ = MakeKvCacheService(std::move(options.service), manager_.get(), registry_.get(),
                                executor_.get(), &clock_, &stats_);
  grpc::ServerBuilder builder;
  for (const ChannelArg& arg : kTransportArgs) builder.AddChannelArgument(arg.name, arg.value);
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder.AddListeningPort(address(), grpc::InsecureServerCredentials());
  builder.RegisterService(service_.get());
  server_ = builder.BuildAndStart();
  KVTIER_CHECK(server_ != nullptr);
}

TestServer::~TestServer() {
  Stop();
  executor_.reset();  // each finishes what was queued
  ssd_reader_.reset();
  ssd_writer_.reset();
  service_.reset();
  shared_memory_.reset();
  manager_.reset();
  unlink((directory_ + "/kvtier.sock").c_str());
  rmdir(directory_.c_str());
}

std::string TestServer::address() const { return "unix:" + directory_ + "/kvtier.sock"; }

void TestServer::Tick() {
  manager_->Tick();
  registry_->Sweep();
  if (shared_memory_ != nullptr) shared_memory_->Tick();
}

void TestServer::Stop() {
  if (server_ == nullptr) return;
  server_->Shutdown(std::chrono::system_clock::now());
  server_->Wait();
  server_.reset();
}

}  // namespace kvtier
