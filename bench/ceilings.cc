#include "bench/ceilings.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel_posix.h>
#include <grpcpp/impl/codegen/client_unary_call.h>
#include <grpcpp/impl/codegen/rpc_method.h>
#include <grpcpp/impl/codegen/rpc_service_method.h>
#include <grpcpp/impl/codegen/server_callback_handlers.h>
#include <grpcpp/impl/codegen/service_type.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>
#include <grpcpp/support/slice.h>
#include <grpcpp/support/sync_stream.h>
#include <malloc.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "client/connect.h"
#include "common/channel_args.h"
#include "common/check.h"
#include "common/copy_past.h"
#include "common/mutex.h"

namespace kvtier::bench {
namespace {

using ::grpc::ByteBuffer;
using ::grpc::internal::RpcMethod;
using ::grpc::internal::RpcServiceMethod;

constexpr uint64_t kMessage = uint64_t{1} << 20;
constexpr uint64_t kPage = 4096;

constexpr const char* kUnaryPath = "/kvtier.bench.Ceiling/Unary";
constexpr const char* kDownPath = "/kvtier.bench.Ceiling/Down";
constexpr const char* kUpPath = "/kvtier.bench.Ceiling/Up";
constexpr const char* kUpCopyPath = "/kvtier.bench.Ceiling/UpCopy";

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// ---------------------------------------------------------------------- messages

// All that is sent comes from one piece of memory that lives as long as the process.
std::byte* StaticMemory() {
  static WarmMemory* const memory = new WarmMemory(kTransferBytes);
  return memory->data();
}

ByteBuffer StaticMessage(uint64_t offset, uint64_t bytes) {
  KVTIER_CHECK(offset + bytes <= kTransferBytes);
  const ::grpc::Slice slice(grpc_slice_from_static_buffer(StaticMemory() + offset, bytes),
                            ::grpc::Slice::STEAL_REF);
  return ByteBuffer(&slice, 1);
}

// A request that says how many bytes are wanted in its first eight.
ByteBuffer Asking(uint64_t wanted) {
  const ::grpc::Slice slice(&wanted, sizeof(wanted));
  return ByteBuffer(&slice, 1);
}

uint64_t Wanted(const ByteBuffer& request) {
  std::vector<::grpc::Slice> slices;
  uint64_t wanted = 0;
  char* to = reinterpret_cast<char*>(&wanted);
  size_t left = sizeof(wanted);
  KVTIER_CHECK(request.Dump(&slices).ok());
  for (const ::grpc::Slice& slice : slices) {
    const size_t step = std::min(left, slice.size());
    std::memcpy(to, slice.begin(), step);
    to += step;
    left -= step;
  }
  KVTIER_CHECK(left == 0);
  return wanted;
}

// Warmed memory that receivers copy into, kept from one stream to the next.
class TargetPool {
 public:
  std::unique_ptr<WarmMemory> Take() {
    MutexLock lock(mutex_);
    if (free_.empty()) return std::make_unique<WarmMemory>(kTransferBytes);
    std::unique_ptr<WarmMemory> target = std::move(free_.back());
    free_.pop_back();
    return target;
  }
  void Give(std::unique_ptr<WarmMemory> target) {
    MutexLock lock(mutex_);
    free_.push_back(std::move(target));
  }

 private:
  Mutex mutex_;
  std::vector<std::unique_ptr<WarmMemory>> free_ KVTIER_GUARDED_BY(mutex_);
};

TargetPool& Targets() {
  static TargetPool* const pool = new TargetPool;
  return *pool;
}

// What a receiver does with its messages.
class Sink {
 public:
  explicit Sink(Receiver receiver)
      : target_(receiver == Receiver::kCopies ? Targets().Take() : nullptr) {}
  ~Sink() {
    if (target_ != nullptr) Targets().Give(std::move(target_));
  }
  Sink(const Sink&) = delete;
  Sink& operator=(const Sink&) = delete;

  void Take(const ByteBuffer& message) {
    received_ += message.Length();
    if (target_ == nullptr) return;
    KVTIER_CHECK(message.Dump(&slices_).ok());
    for (const ::grpc::Slice& slice : slices_) Copy(slice);
    slices_.clear();
  }
  uint64_t Finish() {
    FinishCopies();
    return received_;
  }

 private:
  void Copy(const ::grpc::Slice& slice) {
    if (offset_ + slice.size() > kTransferBytes) offset_ = 0;
    CopyPast(target_->data() + offset_, std::as_bytes(std::span(slice.begin(), slice.end())));
    offset_ += slice.size();
  }

  std::unique_ptr<WarmMemory> target_;
  std::vector<::grpc::Slice> slices_;
  uint64_t offset_ = 0;
  uint64_t received_ = 0;
};

// ---------------------------------------------------------------------- server

class DownStream final : public ::grpc::ServerWriteReactor<ByteBuffer> {
 public:
  explicit DownStream(uint64_t bytes) : left_(bytes) { WriteNext(); }
  void OnWriteDone(bool ok) override {
    if (ok) {
      WriteNext();
    } else {
      Finish(::grpc::Status::CANCELLED);
    }
  }
  void OnDone() override { delete this; }

 private:
  void WriteNext() {
    if (left_ == 0) return Finish(::grpc::Status::OK);
    message_ = StaticMessage(offset_, kMessage);
    offset_ = (offset_ + kMessage) % kTransferBytes;
    left_ -= kMessage;
    StartWrite(&message_);
  }

  uint64_t left_;
  uint64_t offset_ = 0;
  ByteBuffer message_;
};

class UpStream final : public ::grpc::ServerReadReactor<ByteBuffer> {
 public:
  UpStream(Receiver receiver, ByteBuffer* reply) : sink_(receiver), reply_(reply) {
    StartRead(&message_);
  }
  void OnReadDone(bool ok) override {
    if (!ok) {
      *reply_ = Asking(sink_.Finish());
      return Finish(::grpc::Status::OK);
    }
    sink_.Take(message_);
    message_.Clear();
    StartRead(&message_);
  }
  void OnDone() override { delete this; }

 private:
  Sink sink_;
  ByteBuffer* const reply_;
  ByteBuffer message_;
};

// Methods on raw bytes, without generated code.
class CeilingService final : public ::grpc::Service {
 public:
  CeilingService() {
    AddUnary();
    AddDown();
    AddUp(kUpPath, Receiver::kDrops);
    AddUp(kUpCopyPath, Receiver::kCopies);
  }

 private:
  void Add(const char* path, RpcMethod::RpcType type, ::grpc::internal::MethodHandler* handler) {
    AddMethod(new RpcServiceMethod(path, type, nullptr));
    MarkMethodRawCallback(methods_++, handler);
  }

  void AddUnary() {
    using Handler = ::grpc::internal::CallbackUnaryHandler<ByteBuffer, ByteBuffer>;
    Add(kUnaryPath, RpcMethod::NORMAL_RPC,
        new Handler([](::grpc::CallbackServerContext* context, const ByteBuffer* request,
                       ByteBuffer* reply) {
          *reply = StaticMessage(0, Wanted(*request));
          ::grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
          reactor->Finish(::grpc::Status::OK);
          return reactor;
        }));
  }

  void AddDown() {
    using Handler = ::grpc::internal::CallbackServerStreamingHandler<ByteBuffer, ByteBuffer>;
    Add(kDownPath, RpcMethod::SERVER_STREAMING,
        new Handler([](::grpc::CallbackServerContext*, const ByteBuffer* request) {
          return new DownStream(Wanted(*request));
        }));
  }

  void AddUp(const char* path, Receiver receiver) {
    using Handler = ::grpc::internal::CallbackClientStreamingHandler<ByteBuffer, ByteBuffer>;
    Add(path, RpcMethod::CLIENT_STREAMING,
        new Handler([receiver](::grpc::CallbackServerContext*, ByteBuffer* reply) {
          return new UpStream(receiver, reply);
        }));
  }

  size_t methods_ = 0;
};

// ---------------------------------------------------------------------- client

absl::Status ToStatus(const char* what, const ::grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("ceiling ", what, ": ", status.error_message()));
}

absl::Status CheckCount(const char* what, uint64_t got, uint64_t expected) {
  if (got == expected) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("ceiling ", what, ": ", got, " bytes arrived instead of ", expected));
}

class GrpcCeilingClient final : public CeilingClient {
 public:
  explicit GrpcCeilingClient(std::shared_ptr<::grpc::Channel> channel)
      : channel_(std::move(channel)),
        unary_(kUnaryPath, RpcMethod::NORMAL_RPC, channel_),
        down_(kDownPath, RpcMethod::SERVER_STREAMING, channel_),
        up_(kUpPath, RpcMethod::CLIENT_STREAMING, channel_),
        up_copy_(kUpCopyPath, RpcMethod::CLIENT_STREAMING, channel_) {}

  absl::Status Unary(uint64_t request_bytes, uint64_t reply_bytes) override {
    std::memcpy(StaticMemory(), &reply_bytes, sizeof(reply_bytes));
    const ByteBuffer request =
        StaticMessage(0, std::max<uint64_t>(request_bytes, sizeof(reply_bytes)));
    ByteBuffer reply;
    ::grpc::ClientContext context;
    KVTIER_RETURN_IF_ERROR(ToStatus(
        "unary",
        ::grpc::internal::BlockingUnaryCall(channel_.get(), unary_, &context, request, &reply)));
    return CheckCount("unary", reply.Length(), reply_bytes);
  }

  absl::Status StreamDown(uint64_t bytes, Receiver receiver) override {
    using Factory = ::grpc::internal::ClientReaderFactory<ByteBuffer>;
    ::grpc::ClientContext context;
    const std::unique_ptr<::grpc::ClientReader<ByteBuffer>> reader(
        Factory::Create(channel_.get(), down_, &context, Asking(bytes)));
    Sink sink(receiver);
    ByteBuffer message;
    while (reader->Read(&message)) {
      sink.Take(message);
      message.Clear();
    }
    KVTIER_RETURN_IF_ERROR(ToStatus("stream down", reader->Finish()));
    return CheckCount("stream down", sink.Finish(), bytes);
  }

  absl::Status StreamUp(uint64_t bytes, Receiver receiver) override {
    using Factory = ::grpc::internal::ClientWriterFactory<ByteBuffer>;
    ::grpc::ClientContext context;
    ByteBuffer reply;
    const std::unique_ptr<::grpc::ClientWriter<ByteBuffer>> writer(Factory::Create(
        channel_.get(), receiver == Receiver::kDrops ? up_ : up_copy_, &context, &reply));
    for (uint64_t sent = 0; sent < bytes; sent += kMessage) {
      if (!writer->Write(StaticMessage(sent % kTransferBytes, kMessage))) break;
    }
    writer->WritesDone();
    KVTIER_RETURN_IF_ERROR(ToStatus("stream up", writer->Finish()));
    return CheckCount("stream up", Wanted(reply), bytes);
  }

 private:
  const std::shared_ptr<::grpc::Channel> channel_;
  const RpcMethod unary_;
  const RpcMethod down_;
  const RpcMethod up_;
  const RpcMethod up_copy_;
};

}  // namespace

// ---------------------------------------------------------------------- memory

WarmMemory::WarmMemory(uint64_t bytes)
    : memory_(static_cast<std::byte*>(std::aligned_alloc(kPage, bytes))), bytes_(bytes) {
  KVTIER_CHECK(memory_ != nullptr && bytes % kPage == 0);
  std::memset(memory_.get(), 1, bytes);
}

void WarmMemory::Free::operator()(std::byte* memory) const { std::free(memory); }

double MemcpySeconds(WarmMemory& from, WarmMemory& to) {
  auto start = std::chrono::steady_clock::now();
  for (uint64_t i = 0; i < kTransferBlocks; ++i) {
    std::memcpy(to.block(i).data(), from.block(i).data(), kTransferBlock);
  }
  const double through_cache = SecondsSince(start);
  start = std::chrono::steady_clock::now();
  for (uint64_t i = 0; i < kTransferBlocks; ++i) {
    CopyPast(to.block(i).data(), from.block(i));
  }
  FinishCopies();
  return std::min(through_cache, SecondsSince(start));
}

// ---------------------------------------------------------------------- public parts

absl::StatusOr<std::unique_ptr<CeilingClient>> CeilingClient::Connect(const std::string& address) {
  ::grpc::ChannelArguments args;
  for (const ChannelArg& arg : kTransportArgs) args.SetInt(arg.name, arg.value);
  KVTIER_ASSIGN_OR_RETURN(const int fd,
                          client_internal::ConnectSocket(address, std::chrono::milliseconds(100)));
  return std::make_unique<GrpcCeilingClient>(
      ::grpc::CreateCustomInsecureChannelFromFd(address, fd, args));
}

void KeepFreedMemory() {
  mallopt(M_MMAP_THRESHOLD, 64 << 20);
  mallopt(M_TRIM_THRESHOLD, 512 << 20);
}

absl::Status RunCeilingServer(const std::string& address) {
  // Before gRPC makes threads, so that all leave these signals to sigwait.
  sigset_t stop;
  sigemptyset(&stop);
  sigaddset(&stop, SIGTERM);
  sigaddset(&stop, SIGINT);
  sigprocmask(SIG_BLOCK, &stop, nullptr);
  StaticMemory();
  CeilingService service;
  ::grpc::ServerBuilder builder;
  for (const ChannelArg& arg : kTransportArgs) builder.AddChannelArgument(arg.name, arg.value);
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder.AddListeningPort(address, ::grpc::InsecureServerCredentials());
  builder.RegisterService(&service);
  const std::unique_ptr<::grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) {
    return absl::UnavailableError(absl::StrCat("cannot listen on ", address));
  }
  int signal = 0;
  sigwait(&stop, &signal);
  server->Shutdown(std::chrono::system_clock::now());
  return absl::OkStatus();
}

}  // namespace kvtier::bench
