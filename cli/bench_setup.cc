#include "cli/bench_setup.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <random>

namespace kvtier::cli {
namespace {

constexpr const char* kDaemonMemory = "1GiB";
constexpr int kStartSeconds = 60;

// A loopback address that is free now.
absl::StatusOr<std::string> FreeLoopbackAddress() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  const bool bound = bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                     getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  close(fd);
  if (!bound) return absl::UnavailableError("no free port on 127.0.0.1");
  return absl::StrCat("127.0.0.1:", ntohs(address.sin_port));
}

}  // namespace

ModelSpec BenchModel(const std::string& name, uint64_t part_bytes) {
  ModelSpec spec;
  spec.name = name;
  spec.block_tokens = kBlockTokens;
  spec.pack_order = PackOrder::kOpaque;
  spec.layout_fingerprint = "bench";
  spec.explicit_part_bytes = {part_bytes};
  return spec;
}

TransferMemory::TransferMemory() : from(bench::kTransferBytes), to(bench::kTransferBytes) {
  for (uint64_t i = 0; i < bench::kTransferBlocks; ++i) {
    payloads.push_back(from.block(i));
    buffers.push_back(to.block(i));
  }
}

absl::StatusOr<std::string> DaemonPath() {
  KVTIER_ASSIGN_OR_RETURN(const std::string own_path, bench::OwnPath());
  const std::filesystem::path path = std::filesystem::path(own_path).parent_path() / "kvtierd";
  if (access(path.c_str(), X_OK) == 0) return path.string();
  return absl::NotFoundError(absl::StrCat(path.string(),
                                          " is not there: build it, install it beside "
                                          "this program, or name a running daemon with --server"));
}

absl::Status WaitForServer(const std::string& address, bench::ChildProcess* child) {
  ClientOptions options;
  options.address = address;
  options.connect_deadline = std::chrono::seconds(1);
  absl::Status reached = absl::UnavailableError(address);
  for (int second = 0; second < kStartSeconds && !reached.ok(); ++second) {
    KVTIER_RETURN_IF_ERROR(child->CheckRunning());
    reached = Client::Connect(options).status();
  }
  return reached;
}

Namespace FreshNamespace() {
  std::random_device random;
  return Namespace{absl::StrCat("bench-", random(), "-", random()), "", ""};
}

absl::StatusOr<std::unique_ptr<PrivateDaemon>> PrivateDaemon::Start(const Output& output) {
  std::unique_ptr<PrivateDaemon> daemon(new PrivateDaemon);
  KVTIER_ASSIGN_OR_RETURN(const std::string program, DaemonPath());
  KVTIER_ASSIGN_OR_RETURN(daemon->directory_, bench::TemporaryDirectory::Make());
  const std::string& directory = daemon->directory_->path();
  daemon->address_ = "unix:" + directory + "/kvtier.sock";
  output.Progress(
      absl::StrCat("bench: starting ", program, " with ", kDaemonMemory, " of RAM in ", directory));
  KVTIER_ASSIGN_OR_RETURN(daemon->process_,
                          bench::ChildProcess::Start({program, "--data-dir", directory + "/data",
                                                      "--listen", daemon->address_, "--ram-bytes",
                                                      kDaemonMemory, "--log-level", "warning"}));
  KVTIER_RETURN_IF_ERROR(WaitForServer(daemon->address_, daemon->process_.get()));
  return daemon;
}

absl::StatusOr<std::unique_ptr<BenchSetup>> BenchSetup::Start(const BenchOptions& options,
                                                              const Output& output) {
  std::unique_ptr<BenchSetup> setup(new BenchSetup(options, output));
  KVTIER_ASSIGN_OR_RETURN(const std::string own_path, bench::OwnPath());
  KVTIER_ASSIGN_OR_RETURN(setup->directory_, bench::TemporaryDirectory::Make());
  KVTIER_RETURN_IF_ERROR(setup->StartDaemon());
  KVTIER_RETURN_IF_ERROR(setup->StartCeilingServer(own_path));
  return setup;
}

absl::Status BenchSetup::StartDaemon() {
  if (!options_.server.empty()) {
    daemon_address_ = options_.server;
    return ConnectClient().status();
  }
  KVTIER_ASSIGN_OR_RETURN(daemon_, PrivateDaemon::Start(output_));
  daemon_address_ = daemon_->address();
  return absl::OkStatus();
}

absl::Status BenchSetup::StartCeilingServer(const std::string& own_path) {
  ceiling_address_ = "unix:" + directory_->path() + "/ceiling.sock";
  if (daemon_address_.rfind("unix:", 0) != 0) {
    KVTIER_ASSIGN_OR_RETURN(ceiling_address_, FreeLoopbackAddress());
  }
  KVTIER_ASSIGN_OR_RETURN(
      ceiling_server_,
      bench::ChildProcess::Start({own_path, kCeilingServerCommand, "--address", ceiling_address_}));
  return WaitForServer(ceiling_address_, ceiling_server_.get());
}

absl::StatusOr<std::unique_ptr<Client>> BenchSetup::ConnectClient(ClientOptions options) const {
  options.address = daemon_address_;
  // What takes longer than an engine would wait is still a figure.
  options.lookup_deadline = std::chrono::seconds(10);
  return Client::Connect(options);
}

absl::StatusOr<std::unique_ptr<bench::CeilingClient>> BenchSetup::ConnectCeiling() const {
  return bench::CeilingClient::Connect(ceiling_address_);
}

absl::Status BenchSetup::Stop() {
  KVTIER_RETURN_IF_ERROR(ceiling_server_->Stop());
  if (daemon_ == nullptr) return absl::OkStatus();
  return daemon_->Stop();
}

}  // namespace kvtier::cli
