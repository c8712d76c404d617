#include "service/grpc_server.h"

#include <grpc/support/log.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "common/channel_args.h"
#include "common/log.h"
#include "service/data_dir.h"

namespace kvtier {
namespace {

constexpr int kSecondMs = 1000;
constexpr int kMetadataBytes = 16 << 10;
constexpr uint64_t kMessageBytes = uint64_t{8} << 20;
constexpr uint64_t kMessageSlack = uint64_t{1} << 20;  // what a request holds besides its prompt
constexpr uint64_t kTokenBytes = 4;
constexpr uint64_t kEngineHashBytes = 64 + 2;  // the longest, with its tag and length
// HTTP/2 would let calls over the limit wait; above the service's own limit they are told instead.
constexpr int kStreamsPerLimit = 2;

int ReceiveLimit(const Config& config) {
  const uint64_t prompt =
      std::max(config.max_tokens * kTokenBytes, config.max_engine_hashes * kEngineHashBytes);
  return static_cast<int>(std::max(kMessageBytes, prompt) + kMessageSlack);
}

void Harden(const Config& config, grpc::ServerBuilder* builder) {
  for (const ChannelArg& arg : kTransportArgs) builder->AddChannelArgument(arg.name, arg.value);
  builder->SetMaxReceiveMessageSize(ReceiveLimit(config));
  builder->SetDefaultCompressionAlgorithm(GRPC_COMPRESS_NONE);
  builder->SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  builder->SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  grpc::ResourceQuota quota("kvtierd");
  quota.Resize(config.max_connections_memory_bytes);
  builder->SetResourceQuota(quota);
  // A port in use must be an error, not a share of its connections.
  builder->AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS,
                              static_cast<int>(config.max_streams_per_client) * kStreamsPerLimit);
  builder->AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMetadataBytes);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 60 * kSecondMs);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20 * kSecondMs);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                              10 * kSecondMs);
}

// Sockets made while it lives are for this user only. Of the whole process: only while starting.
class PrivateFiles {
 public:
  PrivateFiles() : previous_(umask(0177)) {}
  ~PrivateFiles() { umask(previous_); }

 private:
  const mode_t previous_;
};

std::string BoundAddress(const std::string& address, int port) {
  if (address.rfind("unix:", 0) == 0) return address;
  return absl::StrCat(address.substr(0, address.rfind(':') + 1), port);
}

void ForwardGrpcLine(gpr_log_func_args* line) {
  const LogLevel level =
      line->severity == GPR_LOG_SEVERITY_DEBUG ? LogLevel::kDebug : LogLevel::kWarning;
  Log(level, "grpc", {{"text", line->message}});
}

}  // namespace

absl::StatusOr<GrpcServer> StartGrpcServer(const std::string& field,
                                           const std::vector<std::string>& addresses,
                                           grpc::Service* service, const Config& config) {
  for (const std::string& text : addresses) {
    KVTIER_ASSIGN_OR_RETURN(const Address address, ParseAddress(text));
    if (address.unix_path.empty()) continue;
    KVTIER_RETURN_IF_ERROR(Annotate(RemoveStaleSocket(address.unix_path), field));
  }
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  Harden(config, &builder);
  std::vector<int> ports(addresses.size(), 0);
  for (size_t i = 0; i < addresses.size(); ++i) {
    builder.AddListeningPort(addresses[i], grpc::InsecureServerCredentials(), &ports[i]);
  }
  builder.RegisterService(service);
  GrpcServer out;
  {
    const PrivateFiles private_files;
    out.server = builder.BuildAndStart();
  }
  if (out.server == nullptr) {
    const size_t failed = std::find(ports.begin(), ports.end(), 0) - ports.begin();
    const std::string& address = addresses[std::min(failed, addresses.size() - 1)];
    return absl::UnavailableError(absl::StrCat(
        field, ": cannot listen on ", address,
        ": it is in use, or no address of this host (the log has the system's words)"));
  }
  for (size_t i = 0; i < addresses.size(); ++i) {
    out.addresses.push_back(BoundAddress(addresses[i], ports[i]));
  }
  return out;
}

void RouteGrpcLog() { gpr_set_log_function(ForwardGrpcLine); }

}  // namespace kvtier
