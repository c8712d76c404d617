// The processes that a benchmark talks to: a kvtierd and the ceiling server beside it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bench/ceilings.h"
#include "bench/child_process.h"
#include "cli/json_output.h"
#include "common/status.h"
#include "kvtier/client.h"

namespace kvtier::cli {

inline constexpr const char* kCeilingServerCommand = "bench-ceiling-server";

struct BenchOptions {
  std::string server;  // empty: a private kvtierd
  int rounds = 7;
  int clients = 4;  // of the rows with several clients
  uint64_t index_blocks = 1'000'000;
  std::string dir = "/var/tmp";  // where the SSD rows write
};

// One opaque part per block of 16 tokens.
inline constexpr uint32_t kBlockTokens = 16;
ModelSpec BenchModel(const std::string& name, uint64_t part_bytes);

// The payload of one transfer, and the buffers that it is fetched into. Move-only.
struct TransferMemory {
  TransferMemory();

  bench::WarmMemory from;
  bench::WarmMemory to;
  std::vector<std::span<const std::byte>> payloads;  // by block
  std::vector<std::span<std::byte>> buffers;
};

// The kvtierd beside this program. NOT_FOUND with what to do.
absl::StatusOr<std::string> DaemonPath();
// Until the child accepts connections; gives up early when it ends.
absl::Status WaitForServer(const std::string& address, bench::ChildProcess* child);

// A namespace that no earlier run has used.
Namespace FreshNamespace();

// A kvtierd of this program's own with 1 GiB of RAM, in a temporary directory. Not thread-safe.
class PrivateDaemon {
 public:
  static absl::StatusOr<std::unique_ptr<PrivateDaemon>> Start(const Output& output);
  const std::string& address() const { return address_; }
  // An error when it did not end well.
  absl::Status Stop() { return process_->Stop(); }

 private:
  PrivateDaemon() = default;

  std::string address_;
  std::unique_ptr<bench::TemporaryDirectory> directory_;
  std::unique_ptr<bench::ChildProcess> process_;
};

// Not thread-safe.
class BenchSetup {
 public:
  // Starts what is needed and waits for it. The daemon of --server must run on this host: what it
  // is compared with does.
  static absl::StatusOr<std::unique_ptr<BenchSetup>> Start(const BenchOptions& options,
                                                           const Output& output);

  const BenchOptions& options() const { return options_; }
  const Output& output() const { return output_; }
  // To the daemon; the address and the deadlines are not the caller's.
  absl::StatusOr<std::unique_ptr<Client>> ConnectClient(ClientOptions options = {}) const;
  absl::StatusOr<std::unique_ptr<bench::CeilingClient>> ConnectCeiling() const;
  // Stops the private daemon. An error when it did not end well.
  absl::Status Stop();

 private:
  BenchSetup(const BenchOptions& options, const Output& output)
      : options_(options), output_(output) {}
  absl::Status StartDaemon();
  absl::Status StartCeilingServer(const std::string& own_path);

  const BenchOptions options_;
  const Output& output_;
  std::string daemon_address_;
  std::string ceiling_address_;
  std::unique_ptr<bench::TemporaryDirectory> directory_;
  std::unique_ptr<PrivateDaemon> daemon_;  // null with --server
  std::unique_ptr<bench::ChildProcess> ceiling_server_;
};

}  // namespace kvtier::cli
