#include "client/transport.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/impl/codegen/client_unary_call.h>
#include <grpcpp/impl/codegen/rpc_method.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/channel_arguments.h>
#include <grpcpp/support/slice.h>
#include <grpcpp/support/sync_stream.h>

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/numbers.h"
#include "client/retry_delay.h"
#include "common/channel_args.h"
#include "common/mutex.h"

namespace kvtier::client_internal {
namespace {

using ::grpc::ByteBuffer;
using ::grpc::internal::RpcMethod;

struct RpcEntry {
  const char* name;
  const char* path;
  RpcMethod::RpcType type;
};
constexpr std::array<RpcEntry, kRpcs> kEntries = {{
    {"RegisterModel", "/kvtier.v1.KvCache/RegisterModel", RpcMethod::NORMAL_RPC},
    {"Lookup", "/kvtier.v1.KvCache/Lookup", RpcMethod::NORMAL_RPC},
    {"Fetch", "/kvtier.v1.KvCache/Fetch", RpcMethod::SERVER_STREAMING},
    {"Store", "/kvtier.v1.KvCache/Store", RpcMethod::CLIENT_STREAMING},
    {"Release", "/kvtier.v1.KvCache/Release", RpcMethod::NORMAL_RPC},
    {"Renew", "/kvtier.v1.KvCache/Renew", RpcMethod::NORMAL_RPC},
}};

// How long a finished call waits for gRPC to let go of the caller's memory before it breaks the
// connection. Usually nothing is held at that time.
constexpr Duration kLetGo = std::chrono::milliseconds(50);

// Counts the slices of the caller's memory that gRPC still refers to.
class LentMemory {
 public:
  ::grpc::Slice Lend(std::string_view bytes) {
    {
      MutexLock lock(mutex_);
      ++lent_;
    }
    return ::grpc::Slice(grpc_slice_new_with_user_data(const_cast<char*>(bytes.data()),
                                                       bytes.size(), &LentMemory::Return, this),
                         ::grpc::Slice::STEAL_REF);
  }

  // False when the time was up.
  bool WaitReturned(Duration limit) {
    const TimePoint start = std::chrono::steady_clock::now();
    MutexLock lock(mutex_);
    while (lent_ > 0) {
      const Duration left = limit - (std::chrono::steady_clock::now() - start);
      if (left <= Duration::zero()) return false;
      returned_.WaitFor(mutex_, left);
    }
    return true;
  }
  void WaitReturned() {
    MutexLock lock(mutex_);
    while (lent_ > 0) returned_.Wait(mutex_);
  }

 private:
  static void Return(void* self) {
    auto* lent = static_cast<LentMemory*>(self);
    MutexLock lock(lent->mutex_);
    --lent->lent_;
    lent->returned_.NotifyOne();
  }

  Mutex mutex_;
  CondVar returned_;
  int lent_ KVTIER_GUARDED_BY(mutex_) = 0;
};

ByteBuffer ToByteBuffer(const Outgoing& message, LentMemory* lent) {
  std::vector<::grpc::Slice> slices;
  slices.reserve(message.size());
  for (std::string_view bytes : message) {
    if (bytes.size() < kLentBytes) {
      slices.emplace_back(bytes.data(), bytes.size());
    } else {
      slices.push_back(lent->Lend(bytes));
    }
  }
  return ByteBuffer(slices.data(), slices.size());
}

// Reads messages in place; keeps its vectors from one message to the next.
class MessageReader {
 public:
  absl::Status Visit(const ByteBuffer& message, const OnMessage& visit) {
    slices_.clear();
    views_.clear();
    if (message.Valid() && !message.Dump(&slices_).ok()) {
      return absl::InternalError("a received message cannot be read");
    }
    for (const ::grpc::Slice& slice : slices_) {
      views_.emplace_back(reinterpret_cast<const char*>(slice.begin()), slice.size());
    }
    absl::Status status = visit(views_);
    slices_.clear();  // lets go of the message's memory, so that it is used again
    return status;
  }

 private:
  std::vector<::grpc::Slice> slices_;
  std::vector<std::string_view> views_;
};

std::string_view FindMetadata(const std::multimap<::grpc::string_ref, ::grpc::string_ref>& metadata,
                              const char* name) {
  const auto found = metadata.find(name);
  if (found == metadata.end()) return {};
  return std::string_view(found->second.data(), found->second.size());
}

absl::Status ToStatus(Rpc rpc, const ::grpc::Status& status, const ::grpc::ClientContext& context) {
  if (status.ok()) return absl::OkStatus();
  std::string message =
      absl::StrCat(kEntries[static_cast<int>(rpc)].name, ": ", status.error_message());
  const std::string_view request_id =
      FindMetadata(context.GetServerInitialMetadata(), "kvtier-request-id");
  if (!request_id.empty()) absl::StrAppend(&message, " (request ", std::string(request_id), ")");
  absl::Status result(static_cast<absl::StatusCode>(status.error_code()), message);
  const std::string_view delay =
      FindMetadata(context.GetServerTrailingMetadata(), "retry-delay-ms");
  if (!delay.empty()) SetRetryDelay(&result, delay);
  return result;
}

// A channel and its methods, made together because gRPC registers methods per channel.
struct Connection {
  explicit Connection(std::shared_ptr<::grpc::Channel> made) : channel(std::move(made)) {
    methods.reserve(kRpcs);
    for (const RpcEntry& entry : kEntries) methods.emplace_back(entry.path, entry.type, channel);
  }
  const RpcMethod& method(Rpc rpc) const { return methods[static_cast<int>(rpc)]; }

  std::shared_ptr<::grpc::Channel> channel;
  std::vector<RpcMethod> methods;
};

std::shared_ptr<Connection> MakeConnection(const std::string& address) {
  ::grpc::ChannelArguments args;
  for (const ChannelArg& arg : kTransportArgs) args.SetInt(arg.name, arg.value);
  args.SetMaxReceiveMessageSize(kMaxMessageBytes);
  args.SetMaxSendMessageSize(kMaxMessageBytes);
  // A connection of our own, that we may break.
  args.SetInt("grpc.use_local_subchannel_pool", 1);
  // Soon back when the daemon is.
  args.SetInt("grpc.initial_reconnect_backoff_ms", 100);
  args.SetInt("grpc.min_reconnect_backoff_ms", 1000);
  args.SetInt("grpc.max_reconnect_backoff_ms", 1000);
  return std::make_shared<Connection>(
      ::grpc::CreateCustomChannel(address, ::grpc::InsecureChannelCredentials(), args));
}

std::chrono::system_clock::time_point DeadlineIn(Duration limit) {
  return std::chrono::system_clock::now() +
         std::chrono::duration_cast<std::chrono::system_clock::duration>(limit);
}

class GrpcTransport final : public Transport {
 public:
  explicit GrpcTransport(const std::string& address)
      : address_(address), connection_(MakeConnection(address)) {}

  bool WaitConnected(Duration limit) override {
    return connection()->channel->WaitForConnected(DeadlineIn(limit));
  }

  CallResult Unary(Rpc rpc, const Outgoing& request, Duration limit,
                   const OnMessage& on_reply) override {
    LentMemory lent;
    CallResult result;
    std::shared_ptr<Connection> connection = this->connection();
    {
      ::grpc::ClientContext context;
      context.set_deadline(DeadlineIn(limit));
      const ByteBuffer message = ToByteBuffer(request, &lent);
      ByteBuffer reply;
      const ::grpc::Status status = ::grpc::internal::BlockingUnaryCall(
          connection->channel.get(), connection->method(rpc), &context, message, &reply);
      result.status = ToStatus(rpc, status, context);
      if (status.ok()) {
        result.received = true;
        result.status = MessageReader().Visit(reply, on_reply);
      }
    }
    TakeBack(&lent, std::move(connection));
    return result;
  }

  CallResult ServerStream(Rpc rpc, const Outgoing& request, Duration limit,
                          const OnMessage& on_message) override {
    LentMemory lent;
    CallResult result;
    std::shared_ptr<Connection> connection = this->connection();
    {
      ::grpc::ClientContext context;
      context.set_deadline(DeadlineIn(limit));
      result = ReadAll(connection.get(), rpc, &context, ToByteBuffer(request, &lent), on_message);
    }
    TakeBack(&lent, std::move(connection));
    return result;
  }

  CallResult ClientStream(Rpc rpc, Duration limit, const NextMessage& next,
                          const OnMessage& on_reply) override {
    LentMemory lent;
    CallResult result;
    std::shared_ptr<Connection> connection = this->connection();
    {
      ::grpc::ClientContext context;
      context.set_deadline(DeadlineIn(limit));
      ByteBuffer reply;
      const ::grpc::Status status = WriteAll(connection.get(), rpc, &context, next, &lent, &reply);
      result.status = ToStatus(rpc, status, context);
      if (status.ok()) {
        result.received = true;
        result.status = MessageReader().Visit(reply, on_reply);
      }
    }
    TakeBack(&lent, std::move(connection));
    return result;
  }

 private:
  std::shared_ptr<Connection> connection() {
    MutexLock lock(mutex_);
    return connection_;
  }

  static CallResult ReadAll(Connection* connection, Rpc rpc, ::grpc::ClientContext* context,
                            const ByteBuffer& request, const OnMessage& on_message) {
    using Factory = ::grpc::internal::ClientReaderFactory<ByteBuffer>;
    const std::unique_ptr<::grpc::ClientReader<ByteBuffer>> reader(
        Factory::Create(connection->channel.get(), connection->method(rpc), context, request));
    CallResult result;
    MessageReader messages;
    ByteBuffer message;
    absl::Status visited;
    while (visited.ok() && reader->Read(&message)) {
      result.received = true;
      visited = messages.Visit(message, on_message);
      message.Clear();
    }
    if (!visited.ok()) {
      context->TryCancel();
      while (reader->Read(&message)) message.Clear();
    }
    result.status = ToStatus(rpc, reader->Finish(), *context);
    if (!visited.ok()) result.status = visited;
    return result;
  }

  static ::grpc::Status WriteAll(Connection* connection, Rpc rpc, ::grpc::ClientContext* context,
                                 const NextMessage& next, LentMemory* lent, ByteBuffer* reply) {
    using Factory = ::grpc::internal::ClientWriterFactory<ByteBuffer>;
    const std::unique_ptr<::grpc::ClientWriter<ByteBuffer>> writer(
        Factory::Create(connection->channel.get(), connection->method(rpc), context, reply));
    Outgoing outgoing;
    bool open = true;
    while (open && next(&outgoing)) {
      open = writer->Write(ToByteBuffer(outgoing, lent));
      outgoing.clear();
    }
    if (open) writer->WritesDone();
    return writer->Finish();
  }

  // Returns when gRPC has let go of the caller's memory. A peer that has stopped reading can leave
  // our last bytes unsent for ever, also after the call was given up; only ending the connection
  // frees them.
  void TakeBack(LentMemory* lent, std::shared_ptr<Connection> used) {
    if (lent->WaitReturned(kLetGo)) return;
    {
      MutexLock lock(mutex_);
      if (connection_ == used) connection_ = MakeConnection(address_);
    }
    used.reset();  // the last call that gives it up closes it
    lent->WaitReturned();
  }

  const std::string address_;
  Mutex mutex_;
  std::shared_ptr<Connection> connection_ KVTIER_GUARDED_BY(mutex_);
};

bool IsAddress(const std::string& address) {
  if (address.rfind("unix:", 0) == 0) return address.size() > 5;
  const size_t colon = address.rfind(':');
  uint32_t port = 0;
  return colon != std::string::npos && colon > 0 &&
         absl::SimpleAtoi(address.substr(colon + 1), &port) && port > 0 && port < 65536;
}

}  // namespace

std::string_view RpcName(Rpc rpc) { return kEntries[static_cast<int>(rpc)].name; }

absl::StatusOr<std::unique_ptr<Transport>> Transport::Create(const std::string& address) {
  if (!IsAddress(address)) {
    return absl::InvalidArgumentError(
        absl::StrCat("address is \"", address, "\", it must be \"unix:/path\" or \"host:port\""));
  }
  return std::make_unique<GrpcTransport>(address);
}

}  // namespace kvtier::client_internal
