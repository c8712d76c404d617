#include "service/call.h"

#include <grpcpp/security/auth_context.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/match.h"
#include "common/check.h"
#include "common/log.h"

namespace kvtier {
namespace {

// What the caller has to put right is of interest to it; the rest to who runs the daemon.
LogLevel LevelOf(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kOk:
      return LogLevel::kDebug;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kCancelled:
      return LogLevel::kInfo;
    default:
      return LogLevel::kWarning;
  }
}

}  // namespace

ServiceCore::ServiceCore(ServiceOptions options, TierManager* manager, CallRegistry* registry,
                         Executor* executor, const Clock* clock, RpcStatsTable* stats)
    : options(std::move(options)),
      manager(manager),
      registry(registry),
      executor(executor),
      clock(clock),
      stats(stats),
      models(manager) {}

ServiceCore::~ServiceCore() {
  constexpr Duration kPatience = std::chrono::seconds(10);
  KVTIER_CHECK(lent.WaitReturned(kPatience));
}

void LentSlices::Lend() {
  MutexLock lock(mutex_);
  ++lent_;
}

void LentSlices::Return() {
  MutexLock lock(mutex_);
  if (--lent_ == 0) returned_.NotifyAll();
}

bool LentSlices::WaitReturned(Duration timeout) {
  const auto end = std::chrono::steady_clock::now() + timeout;
  MutexLock lock(mutex_);
  while (lent_ > 0) {
    const Duration left = end - std::chrono::steady_clock::now();
    if (left <= Duration::zero()) return false;
    returned_.WaitFor(mutex_, left);
  }
  return true;
}

Call::Call(ServiceCore* core, Rpc rpc, grpc::CallbackServerContext* context)
    : core_(core),
      rpc_(rpc),
      context_(context),
      arrival_(core->clock->Now()),
      request_id_(core->request_ids.Take(context)) {}

TimePoint Call::Deadline(Duration default_deadline) const {
  const auto given = context_->deadline();
  if (given == std::chrono::system_clock::time_point::max()) return arrival_ + default_deadline;
  // No client waits a day; this keeps the sum from overflowing.
  constexpr Duration kMost = std::chrono::hours(24);
  const auto left = given - std::chrono::system_clock::now();
  return arrival_ + std::min<Duration>(kMost, left);
}

// All clients of a Unix socket have the same peer name. There the address of what gRPC keeps per
// connection tells them apart.
std::string Call::ClientName() const {
  std::string peer = context_->peer();
  if (!absl::StartsWith(peer, "unix")) return peer;
  const auto auth = context_->auth_context();
  if (auth == nullptr) return peer;
  const auto properties = auth->FindPropertyValues("transport_security_type");
  if (properties.empty()) return peer;
  return absl::StrCat(peer, "#", absl::Hex(reinterpret_cast<uintptr_t>(properties[0].data())));
}

grpc::Status Call::End(const absl::Status& status) {
  RpcStats& stats = core_->stats->of(rpc_);
  const Duration latency = core_->clock->Now() - arrival_;
  stats.by_code[static_cast<int>(status.code())].Add();
  stats.latency.Record(latency);
  const LogLevel level = LevelOf(status.code());
  if (level >= GetLogLevel()) {
    Log(level, status.ok() ? "call" : "call failed",
        {{"rpc", kRpcNames[static_cast<int>(rpc_)]},
         {"request_id", request_id_},
         {"code", absl::StatusCodeToString(status.code())},
         {"error", std::string(status.message())},
         {"us", std::chrono::duration_cast<std::chrono::microseconds>(latency).count()}});
  }
  if (status.code() == absl::StatusCode::kResourceExhausted) {
    context_->AddTrailingMetadata("retry-delay-ms", absl::StrCat(core_->options.retry_delay_ms));
  }
  return ToGrpcStatus(status, request_id_);
}

MessageSlices::MessageSlices(const grpc::ByteBuffer& message) {
  if (message.Valid()) {
    const grpc::Status dumped = message.Dump(&slices_);
    // Fails only for a message that is still compressed; read as empty, it is refused.
    if (!dumped.ok()) slices_.clear();
  }
  views_.reserve(slices_.size());
  for (const grpc::Slice& slice : slices_) {
    views_.emplace_back(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
}

}  // namespace kvtier
