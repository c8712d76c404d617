#include "client/transport.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/create_channel_posix.h>
#include <grpcpp/impl/codegen/client_unary_call.h>
#include <grpcpp/impl/codegen/rpc_method.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/channel_arguments.h>
#include <grpcpp/support/slice.h>
#include <grpcpp/support/sync_stream.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <map>
#include <utility>

#include "client/connect.h"
#include "client/retry_delay.h"
#include "common/channel_args.h"
#include "common/executor.h"
#include "common/mutex.h"

namespace kvtier::client_internal {
namespace {

using ::grpc::ByteBuffer;
using ::grpc::internal::RpcMethod;

struct RpcEntry {
  const char* path;
  RpcMethod::RpcType type;
};
constexpr std::array<RpcEntry, kRpcs> kEntries = {{
    {"/kvtier.v1.KvCache/RegisterModel", RpcMethod::NORMAL_RPC},
    {"/kvtier.v1.KvCache/Lookup", RpcMethod::NORMAL_RPC},
    {"/kvtier.v1.KvCache/Fetch", RpcMethod::SERVER_STREAMING},
    {"/kvtier.v1.KvCache/Store", RpcMethod::CLIENT_STREAMING},
    {"/kvtier.v1.KvCache/Release", RpcMethod::NORMAL_RPC},
    {"/kvtier.v1.KvCache/Renew", RpcMethod::NORMAL_RPC},
    {"/kvtier.v1.KvCache/FetchShared", RpcMethod::SERVER_STREAMING},
    {"/kvtier.v1.KvCache/StoreShared", RpcMethod::NORMAL_RPC},
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

  bool AllReturned() {
    MutexLock lock(mutex_);
    return lent_ == 0;
  }

 private:
  static void Return(void* self) {
    auto* lent = static_cast<LentMemory*>(self);
    MutexLock lock(lent->mutex_);
    --lent->lent_;
  }

  Mutex mutex_;
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

// A socket with its channel and methods. It is ours rather than gRPC's, because gRPC does not end a
// connection while a write to it is stuck.
class Connection {
 public:
  // Takes the socket over.
  Connection(const std::string& address, int fd) : fd_(dup(fd)) {
    ::grpc::ChannelArguments args;
    for (const ChannelArg& arg : kTransportArgs) args.SetInt(arg.name, arg.value);
    args.SetMaxReceiveMessageSize(kMaxMessageBytes);
    args.SetMaxSendMessageSize(kMaxMessageBytes);
    channel_ = ::grpc::CreateCustomInsecureChannelFromFd(address, fd, args);
    methods_.reserve(kRpcs);
    for (const RpcEntry& entry : kEntries) methods_.emplace_back(entry.path, entry.type, channel_);
  }
  ~Connection() {
    if (fd_ >= 0) close(fd_);
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  ::grpc::Channel* channel() const { return channel_.get(); }
  const RpcMethod& method(Rpc rpc) const { return methods_[static_cast<int>(rpc)]; }

  // No further call shall use it.
  void Retire() { retired_ = true; }
  bool retired() const { return retired_; }
  // Ends it, whatever is under way.
  void Break() {
    Retire();
    shutdown(fd_, SHUT_RDWR);
  }

 private:
  const int fd_;  // the socket too, so that breaking it never meets a number that was used again
  std::shared_ptr<::grpc::Channel> channel_;
  std::vector<RpcMethod> methods_;
  std::atomic<bool> retired_{false};
};

// Breaks the connection of a call that has not ended soon after its deadline: a write to a peer
// that stands still does not notice the deadline by itself.
class CallWatch {
 public:
  // Keeps one call watched while it lives.
  class Watched {
   public:
    Watched(CallWatch* watch, std::shared_ptr<Connection> connection, Duration limit)
        : watch_(watch), id_(watch->Add(std::move(connection), limit)) {}
    ~Watched() { watch_->Remove(id_); }
    Watched(const Watched&) = delete;
    Watched& operator=(const Watched&) = delete;

   private:
    CallWatch* const watch_;
    const uint64_t id_;
  };

  CallWatch() : ticker_(kPeriod, [this] { BreakOverdue(); }) {}

 private:
  static constexpr Duration kPeriod = std::chrono::milliseconds(50);
  static constexpr Duration kGrace = std::chrono::milliseconds(250);
  struct Call {
    std::shared_ptr<Connection> connection;
    TimePoint end;
  };

  uint64_t Add(std::shared_ptr<Connection> connection, Duration limit) {
    const TimePoint end = std::chrono::steady_clock::now() + limit + kGrace;
    MutexLock lock(mutex_);
    calls_[next_id_] = Call{std::move(connection), end};
    return next_id_++;
  }

  void Remove(uint64_t id) {
    std::shared_ptr<Connection> ended;  // closed, if at all, without the lock
    MutexLock lock(mutex_);
    const auto call = calls_.find(id);
    ended = std::move(call->second.connection);
    calls_.erase(call);
  }

  void BreakOverdue() {
    const TimePoint now = std::chrono::steady_clock::now();
    MutexLock lock(mutex_);
    for (auto& [id, call] : calls_) {
      if (now >= call.end) call.connection->Break();
    }
  }

  Mutex mutex_;
  std::map<uint64_t, Call> calls_ KVTIER_GUARDED_BY(mutex_);
  uint64_t next_id_ KVTIER_GUARDED_BY(mutex_) = 0;
  Ticker ticker_;  // last: it uses what is above
};

std::chrono::system_clock::time_point DeadlineIn(Duration limit) {
  return std::chrono::system_clock::now() +
         std::chrono::duration_cast<std::chrono::system_clock::duration>(limit);
}

class GrpcTransport final : public Transport {
 public:
  explicit GrpcTransport(const std::string& address) : address_(address) {}

  absl::Status Connect(Duration limit) override { return UsableConnection(limit).status(); }

  CallResult Unary(Rpc rpc, const Outgoing& request, Duration limit,
                   const OnMessage& on_reply) override {
    return OnConnection(rpc, limit, [&](Exchange& exchange) {
      ByteBuffer reply;
      const ::grpc::Status status = ::grpc::internal::BlockingUnaryCall(
          exchange.connection->channel(), exchange.connection->method(rpc), &exchange.context,
          ToByteBuffer(request, exchange.lent), &reply);
      return EndWithReply(exchange, status, reply, on_reply);
    });
  }

  CallResult ServerStream(Rpc rpc, const Outgoing& request, Duration limit,
                          const OnMessage& on_message) override {
    return OnConnection(rpc, limit, [&](Exchange& exchange) {
      return ReadAll(exchange, ToByteBuffer(request, exchange.lent), on_message);
    });
  }

  CallResult ClientStream(Rpc rpc, Duration limit, const NextMessage& next,
                          const OnMessage& on_reply) override {
    return OnConnection(rpc, limit, [&](Exchange& exchange) {
      ByteBuffer reply;
      const ::grpc::Status status = WriteAll(exchange, next, &reply);
      return EndWithReply(exchange, status, reply, on_reply);
    });
  }

 private:
  // One call under way.
  struct Exchange {
    Rpc rpc;
    Connection* connection;
    LentMemory* lent;
    ::grpc::ClientContext context;
    bool answered = false;  // the daemon itself has answered, be it with an error
  };

  CallResult OnConnection(Rpc rpc, Duration limit,
                          const std::function<CallResult(Exchange&)>& call) {
    const auto deadline = DeadlineIn(limit);
    CallResult result;
    const absl::StatusOr<std::shared_ptr<Connection>> connection = UsableConnection(limit);
    if (!connection.ok()) {
      result.status = connection.status();
      return result;
    }
    LentMemory lent;
    {
      const CallWatch::Watched watched(&watch_, *connection, limit);
      Exchange exchange{rpc, connection->get(), &lent, {}};
      exchange.context.set_deadline(deadline);
      result = call(exchange);
      if (absl::IsUnavailable(result.status) && !exchange.answered) (*connection)->Retire();
    }
    TakeBack(&lent, connection->get());
    return result;
  }

  absl::StatusOr<std::shared_ptr<Connection>> UsableConnection(Duration limit) {
    {
      MutexLock lock(mutex_);
      if (connection_ != nullptr && !connection_->retired()) return connection_;
    }
    KVTIER_ASSIGN_OR_RETURN(const int fd, ConnectSocket(address_, limit));
    auto fresh = std::make_shared<Connection>(address_, fd);
    MutexLock lock(mutex_);
    if (connection_ == nullptr || connection_->retired()) connection_ = std::move(fresh);
    return connection_;
  }

  static absl::Status StatusOf(Exchange& exchange, const ::grpc::Status& status) {
    if (status.ok()) return absl::OkStatus();
    std::string message = absl::StrCat(std::string(kRpcNames[static_cast<int>(exchange.rpc)]), ": ",
                                       status.error_code() == ::grpc::StatusCode::UNIMPLEMENTED
                                           ? "nobody serves kvtier's data API at this address"
                                           : status.error_message());
    const std::string_view request_id =
        FindMetadata(exchange.context.GetServerInitialMetadata(), "kvtier-request-id");
    exchange.answered = !request_id.empty();
    if (!request_id.empty()) absl::StrAppend(&message, " (request ", std::string(request_id), ")");
    absl::Status result(static_cast<absl::StatusCode>(status.error_code()), message);
    const std::string_view delay =
        FindMetadata(exchange.context.GetServerTrailingMetadata(), "retry-delay-ms");
    if (!delay.empty()) SetRetryDelay(&result, delay);
    return result;
  }

  static CallResult EndWithReply(Exchange& exchange, const ::grpc::Status& status,
                                 const ByteBuffer& reply, const OnMessage& on_reply) {
    CallResult result;
    result.status = StatusOf(exchange, status);
    if (!status.ok()) return result;
    result.received = true;
    result.status = MessageReader().Visit(reply, on_reply);
    return result;
  }

  static CallResult ReadAll(Exchange& exchange, const ByteBuffer& request,
                            const OnMessage& on_message) {
    using Factory = ::grpc::internal::ClientReaderFactory<ByteBuffer>;
    const std::unique_ptr<::grpc::ClientReader<ByteBuffer>> reader(
        Factory::Create(exchange.connection->channel(), exchange.connection->method(exchange.rpc),
                        &exchange.context, request));
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
      exchange.context.TryCancel();
      while (reader->Read(&message)) message.Clear();
    }
    result.status = StatusOf(exchange, reader->Finish());
    if (!visited.ok()) result.status = visited;
    return result;
  }

  // Metadata waits for the first message, that for the second, and the end goes with the last: so a
  // short stream is one or two writes to the socket instead of four.
  static ::grpc::Status WriteAll(Exchange& exchange, const NextMessage& next, ByteBuffer* reply) {
    using Factory = ::grpc::internal::ClientWriterFactory<ByteBuffer>;
    exchange.context.set_initial_metadata_corked(true);
    const std::unique_ptr<::grpc::ClientWriter<ByteBuffer>> writer(
        Factory::Create(exchange.connection->channel(), exchange.connection->method(exchange.rpc),
                        &exchange.context, reply));
    ::grpc::WriteOptions options;
    options.set_buffer_hint();
    Outgoing outgoing;
    for (bool open = true; open; outgoing.clear()) {
      const bool more = next(&outgoing);
      if (!more) options.set_last_message();
      open = writer->Write(ToByteBuffer(outgoing, exchange.lent), options) && more;
      options.clear_buffer_hint();
    }
    return writer->Finish();
  }

  // Returns when gRPC has let go of the caller's memory. A peer that has stopped reading can leave
  // our last bytes unsent for ever, also after the call was given up: then the connection is
  // broken.
  static void TakeBack(LentMemory* lent, Connection* connection) {
    if (lent->AllReturned()) return;
    // gRPC works only while a thread waits in it.
    ::grpc::CompletionQueue queue;
    bool broken = false;
    const TimePoint patience = std::chrono::steady_clock::now() + kLetGo;
    while (!lent->AllReturned()) {
      if (!broken && std::chrono::steady_clock::now() >= patience) {
        connection->Break();
        broken = true;
      }
      void* tag = nullptr;
      bool ok = false;
      queue.AsyncNext(&tag, &ok, DeadlineIn(std::chrono::milliseconds(1)));
    }
    queue.Shutdown();
  }

  CallWatch watch_;
  const std::string address_;
  Mutex mutex_;
  std::shared_ptr<Connection> connection_ KVTIER_GUARDED_BY(mutex_);
};

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> Transport::Create(const std::string& address) {
  KVTIER_RETURN_IF_ERROR(CheckAddress(address));
  return std::make_unique<GrpcTransport>(address);
}

}  // namespace kvtier::client_internal
