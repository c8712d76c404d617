// What the client does when the daemon is dead, slow, or wrong.
#include <gmock/gmock.h>
#include <grpcpp/server_context.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>

#include "bench/child_process.h"
#include "common/block_key.h"
#include "kvtier/client.h"
#include "tests/client/fake_server.h"

namespace kvtier {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

const grpc::Status kUnavailable(grpc::StatusCode::UNAVAILABLE, "draining");
constexpr size_t kPart = 1000;

class ClientFaultsTest : public testing::Test {
 protected:
  ClientFaultsTest() {
    options_.address = server_.address();
    options_.clock = &clock_;
    options_.lookup_deadline = seconds(20);  // where the deadline is not what is tested
    prompt_.model = Digest128::Of("model");
    prompt_.tokens = tokens_;
  }

  void Connect() {
    absl::StatusOr<std::unique_ptr<Client>> client = Client::Connect(options_);
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = std::move(*client);
  }
  void AnswerLookups(uint32_t blocks) {
    server_.on_lookup = [blocks](grpc::ServerContext*, const v1::LookupRequest&,
                                 v1::LookupResponse* response) {
      response->set_blocks(blocks);
      return grpc::Status::OK;
    };
  }
  void FailLookups(const grpc::Status& status) {
    server_.on_lookup = [status](grpc::ServerContext*, const v1::LookupRequest&,
                                 v1::LookupResponse*) { return status; };
  }
  absl::Status Lookup() { return client_->Lookup(prompt_).status(); }

  static v1::Piece* AddPiece(v1::FetchResponse* message, uint32_t block, const std::string& part,
                             size_t offset, size_t bytes) {
    v1::Piece* piece = message->add_pieces();
    piece->set_block(block);
    piece->set_status(v1::BLOCK_STATUS_OK);
    piece->set_offset(offset);
    piece->set_part_bytes(part.size());
    piece->set_checksum(PayloadChecksum(part.data(), part.size()));
    piece->set_payload(part.substr(offset, bytes));
    return piece;
  }
  absl::StatusOr<FetchReport> FetchTwo() {
    const std::vector<std::span<std::byte>> buffers = {
        std::as_writable_bytes(std::span(memory_[0])),
        std::as_writable_bytes(std::span(memory_[1]))};
    return client_->Fetch(prompt_, {.last_block = 2}, buffers);
  }

  FakeServer server_;
  ManualClock clock_;
  ClientOptions options_;
  std::unique_ptr<Client> client_;
  const std::vector<uint32_t> tokens_ = std::vector<uint32_t>(64, 9);
  Prompt prompt_;
  const std::string part_ = std::string(kPart, 'x');
  std::string memory_[2] = {std::string(kPart, '?'), std::string(kPart, '?')};
};

TEST_F(ClientFaultsTest, NobodyThereIsUnavailableWithinTheConnectDeadline) {
  server_.Stop();
  options_.connect_deadline = milliseconds(100);
  const auto start = std::chrono::steady_clock::now();
  const absl::Status status = Client::Connect(options_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr(server_.address()));
  EXPECT_LT(std::chrono::steady_clock::now() - start, seconds(5));
}

TEST_F(ClientFaultsTest, AddressesAreChecked) {
  for (const char* address : {"", "unix:", "localhost", "localhost:", ":123", "host:99999"}) {
    options_.address = address;
    EXPECT_EQ(Client::Connect(options_).status().code(), absl::StatusCode::kInvalidArgument)
        << address;
  }
}

TEST_F(ClientFaultsTest, UnavailableIsTriedAgainTwice) {
  int failures = 2;
  server_.on_lookup = [&failures](grpc::ServerContext*, const v1::LookupRequest&,
                                  v1::LookupResponse* response) {
    if (failures-- > 0) return kUnavailable;
    response->set_blocks(3);
    return grpc::Status::OK;
  };
  Connect();
  const absl::StatusOr<PrefixMatch> match = client_->Lookup(prompt_);
  ASSERT_TRUE(match.ok()) << match.status();
  EXPECT_EQ(match->blocks, 3u);
  EXPECT_EQ(client_->counters().retries, 2u);
  EXPECT_EQ(client_->counters().calls, 1u);
}

TEST_F(ClientFaultsTest, ThirdFailureIsTheAnswer) {
  FailLookups(kUnavailable);
  Connect();
  EXPECT_EQ(Lookup().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(server_.lookups(), 3);
}

TEST_F(ClientFaultsTest, OtherErrorsAreNotTriedAgain) {
  FailLookups(grpc::Status(grpc::StatusCode::NOT_FOUND, "model_id is unknown"));
  Connect();
  const absl::Status status = Lookup();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("Lookup: model_id is unknown"));
  EXPECT_EQ(server_.lookups(), 1);
  EXPECT_EQ(client_->counters().failures, 0u);
}

TEST_F(ClientFaultsTest, ErrorsCarryTheRequestIdAndTheRetryDelay) {
  bool with_delay = true;
  server_.on_lookup = [&with_delay](grpc::ServerContext* context, const v1::LookupRequest&,
                                    v1::LookupResponse*) {
    context->AddInitialMetadata("kvtier-request-id", "abc-123");
    if (with_delay) context->AddTrailingMetadata("retry-delay-ms", "250");
    return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "too many open leases");
  };
  Connect();
  const absl::Status told = Lookup();
  EXPECT_THAT(std::string(told.message()), HasSubstr("(request abc-123)"));
  EXPECT_EQ(RetryDelay(told), milliseconds(250));
  with_delay = false;
  EXPECT_EQ(RetryDelay(Lookup()), std::nullopt);
}

TEST_F(ClientFaultsTest, SlowDaemonCostsTheDeadline) {
  server_.on_lookup = [this](grpc::ServerContext*, const v1::LookupRequest&, v1::LookupResponse*) {
    server_.Hang();
    return grpc::Status::OK;
  };
  options_.lookup_deadline = milliseconds(50);
  Connect();
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(Lookup().code(), absl::StatusCode::kDeadlineExceeded);
  const auto taken = std::chrono::steady_clock::now() - start;
  EXPECT_GE(taken, milliseconds(50));
  EXPECT_LT(taken, seconds(5));
  EXPECT_EQ(server_.lookups(), 1);
}

TEST_F(ClientFaultsTest, DeadDaemonCostsNothingAfterThreeCalls) {
  AnswerLookups(1);
  Connect();
  ASSERT_TRUE(Lookup().ok());
  server_.Stop();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Lookup().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(client_->counters().calls, 4u);
  const absl::Status refused = Lookup();
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("circuit breaker"));
  EXPECT_EQ(client_->counters().calls, 4u) << "it did not reach the network";
  EXPECT_EQ(client_->counters().refused_by_breaker, 1u);

  server_.Start();
  absl::Status status = refused;
  const auto give_up = std::chrono::steady_clock::now() + seconds(30);
  while (!status.ok() && std::chrono::steady_clock::now() < give_up) {
    clock_.Advance(seconds(5));
    status = Lookup();
  }
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(Lookup().ok());
}

TEST_F(ClientFaultsTest, DamagedPayloadIsAMissTheRestIsFetched) {
  server_.on_fetch = [this](const v1::FetchRequest&, grpc::ServerWriter<v1::FetchResponse>* out) {
    v1::FetchResponse message;
    v1::Piece* damaged = AddPiece(&message, 0, part_, 0, kPart);
    (*damaged->mutable_payload())[700] ^= 4;
    AddPiece(&message, 1, part_, 0, kPart);
    out->Write(message);
    return grpc::Status::OK;
  };
  Connect();
  const absl::StatusOr<FetchReport> report = FetchTwo();
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->blocks[0].status, FetchStatus::kMiss);
  EXPECT_EQ(report->blocks[1].status, FetchStatus::kOk);
  EXPECT_EQ(memory_[1], part_);
  EXPECT_EQ(client_->counters().checksum_failures, 1u);
}

TEST_F(ClientFaultsTest, PiecesOutOfOrderAreAnErrorNotData) {
  server_.on_fetch = [this](const v1::FetchRequest&, grpc::ServerWriter<v1::FetchResponse>* out) {
    v1::FetchResponse message;
    AddPiece(&message, 0, part_, 500, 500);
    AddPiece(&message, 0, part_, 0, 500);
    out->Write(message);
    return grpc::Status::OK;
  };
  Connect();
  EXPECT_EQ(FetchTwo().status().code(), absl::StatusCode::kInternal);
}

TEST_F(ClientFaultsTest, StreamThatEndsWithinABlockIsAnError) {
  grpc::Status end = grpc::Status::OK;
  server_.on_fetch = [this, &end](const v1::FetchRequest&,
                                  grpc::ServerWriter<v1::FetchResponse>* out) {
    v1::FetchResponse message;
    AddPiece(&message, 0, part_, 0, 500);
    out->Write(message);
    return end;
  };
  Connect();
  EXPECT_EQ(FetchTwo().status().code(), absl::StatusCode::kInternal);
  end = kUnavailable;
  EXPECT_EQ(FetchTwo().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(client_->counters().retries, 0u) << "something had come";
}

TEST_F(ClientFaultsTest, MessageThatIsNoProtobufIsAnError) {
  server_.on_lookup = [](grpc::ServerContext*, const v1::LookupRequest&,
                         v1::LookupResponse* response) {
    // Field 5 (packed numbers) with a number that never ends.
    response->GetReflection()->MutableUnknownFields(response)->AddLengthDelimited(5, "\x80\x80");
    return grpc::Status::OK;
  };
  Connect();
  EXPECT_EQ(Lookup().code(), absl::StatusCode::kInternal);
}

TEST_F(ClientFaultsTest, StoreAsksFirstAndSendsOnlyWhatIsMissing) {
  AnswerLookups(2);
  v1::StoreHeader header;
  std::string payload;
  server_.on_store = [&](grpc::ServerReader<v1::StoreRequest>* reader,
                         v1::StoreResponse* response) {
    v1::StoreRequest request;
    while (reader->Read(&request)) {
      if (request.has_header()) header = request.header();
      for (const v1::Piece& piece : request.pieces()) payload += piece.payload();
    }
    response->add_outcomes()->set_status(v1::STORE_STATUS_STORED);
    v1::BlockOutcome* second = response->add_outcomes();
    second->set_status(v1::STORE_STATUS_REJECTED);
    second->set_reason(v1::REJECT_REASON_NO_SPACE);
    return grpc::Status::OK;
  };
  Connect();
  const std::string parts[4] = {"aa", "bb", "cc", "dd"};
  std::vector<std::span<const std::byte>> payloads;
  for (const std::string& part : parts) payloads.push_back(std::as_bytes(std::span(part)));
  const absl::StatusOr<StoreReport> report = client_->Store(prompt_, {}, payloads);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(server_.lookups(), 1);
  EXPECT_EQ(header.first_block(), 2u);
  EXPECT_EQ(header.block_count(), 2u);
  EXPECT_EQ(header.prompt().tokens_size(), 64);
  EXPECT_EQ(payload, "ccdd");
  EXPECT_EQ(report->sent, 2u);
  EXPECT_EQ(report->blocks[1].verdict, StoreVerdict::kAlreadyPresent);
  EXPECT_EQ(report->blocks[2].verdict, StoreVerdict::kStored);
  EXPECT_EQ(report->blocks[3].verdict, StoreVerdict::kRejected);
  EXPECT_EQ(report->blocks[3].refusal, StoreRefusal::kNoSpace);

  payload.clear();
  ASSERT_TRUE(client_->Store(prompt_, {.first_missing = 2}, payloads).ok());
  EXPECT_EQ(server_.lookups(), 1) << "the caller knew";
  EXPECT_EQ(payload, "ccdd");
}

TEST_F(ClientFaultsTest, StoreReplyOfAnotherLengthIsAnError) {
  server_.on_store = [](grpc::ServerReader<v1::StoreRequest>* reader, v1::StoreResponse*) {
    v1::StoreRequest request;
    while (reader->Read(&request)) {
    }
    return grpc::Status::OK;
  };
  Connect();
  const std::vector<std::span<const std::byte>> payloads = {std::as_bytes(std::span(part_))};
  EXPECT_EQ(client_->Store(prompt_, {.first_missing = 0}, payloads).status().code(),
            absl::StatusCode::kInternal);
}

// The payload's memory is given back to the system as soon as Store returns: whoever still reads it
// then ends this process.
class LentMemoryTest : public testing::Test {
 protected:
  static constexpr size_t kBytes = size_t{256} << 20;

  void StoreAndUnmap(Client& client) {
    void* const memory =
        mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    const std::vector<std::span<const std::byte>> payloads(
        8, std::span(static_cast<const std::byte*>(memory), kBytes / 8));
    const std::vector<uint32_t> tokens(128, 3);
    Prompt prompt;
    prompt.tokens = tokens;
    const auto start = std::chrono::steady_clock::now();
    const absl::Status status = client.Store(prompt, {.first_missing = 0}, payloads).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
    EXPECT_LT(std::chrono::steady_clock::now() - start, seconds(20));
    ASSERT_EQ(munmap(memory, kBytes), 0);
  }
  static std::unique_ptr<Client> MakeClient(const std::string& address) {
    ClientOptions options;
    options.address = address;
    options.connect_deadline = seconds(20);
    options.transfer_deadline = milliseconds(500);
    options.lookup_deadline = seconds(20);
    absl::StatusOr<std::unique_ptr<Client>> client = Client::Connect(options);
    return client.ok() ? std::move(*client) : nullptr;
  }
};

TEST_F(LentMemoryTest, IsFreeWhenTheServerDoesNotReadTheStream) {
  FakeServer server;
  server.on_store = [&server](grpc::ServerReader<v1::StoreRequest>*, v1::StoreResponse*) {
    server.Hang();
    return grpc::Status::OK;
  };
  const std::unique_ptr<Client> client = MakeClient(server.address());
  ASSERT_NE(client, nullptr);
  StoreAndUnmap(*client);
}

TEST_F(LentMemoryTest, IsFreeWhenTheServersProcessStandsStill) {
  absl::StatusOr<std::unique_ptr<bench::TemporaryDirectory>> directory =
      bench::TemporaryDirectory::Make();
  ASSERT_TRUE(directory.ok());
  const std::string address = "unix:" + (*directory)->path() + "/socket";
  absl::StatusOr<std::unique_ptr<bench::ChildProcess>> child =
      bench::ChildProcess::Start({*bench::OwnPath(), "--serve", address});
  ASSERT_TRUE(child.ok()) << child.status();
  const std::unique_ptr<Client> client = MakeClient(address);
  ASSERT_NE(client, nullptr);
  kill((*child)->pid(), SIGSTOP);
  StoreAndUnmap(*client);
  kill((*child)->pid(), SIGCONT);
  const std::vector<uint32_t> tokens(16, 3);
  Prompt prompt;
  prompt.tokens = tokens;
  absl::StatusOr<PrefixMatch> match = client->Lookup(prompt);
  ASSERT_TRUE(match.ok()) << match.status() << ": the client serves on a new connection";
  EXPECT_EQ(match->blocks, 1u);
}

// The process that stands still.
int Serve(const char* address) {
  sigset_t stop;
  sigemptyset(&stop);
  sigaddset(&stop, SIGTERM);
  sigprocmask(SIG_BLOCK, &stop, nullptr);
  FakeServer server{std::string(address)};
  server.on_lookup = [](grpc::ServerContext*, const v1::LookupRequest&,
                        v1::LookupResponse* response) {
    response->set_blocks(1);
    return grpc::Status::OK;
  };
  server.on_store = [](grpc::ServerReader<v1::StoreRequest>* reader, v1::StoreResponse*) {
    v1::StoreRequest request;
    while (reader->Read(&request)) {
    }
    return grpc::Status::OK;
  };
  int signal = 0;
  sigwait(&stop, &signal);
  return 0;
}

}  // namespace
}  // namespace kvtier

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--serve") return kvtier::Serve(argv[2]);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
