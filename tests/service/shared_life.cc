// One client's life: stores prompts through shared memory, looks prompts up with a lease, reads
// them where they lie, and compares each byte with what its identity says. Its output is a byte for
// each step. Exit code 3: a foreign byte.
//
// usage: shared_life ADDRESS SHARED_MEMORY_SOCKET SEED
#include <unistd.h>

#include <cstdlib>
#include <random>
#include <string>

#include "tests/service/shared_calls.h"

namespace kvtier {
namespace {

constexpr uint64_t kPart = 30'000;
constexpr uint32_t kBlocks = 8;
constexpr uint32_t kPrompts = 100;  // more than RAM holds
constexpr int kRounds = 6;
constexpr int kForeignByte = 3;

void Stepped() {
  if (write(STDOUT_FILENO, ".", 1) != 1) std::_Exit(1);  // nobody listens any more
}

// Of a block: it says whose it is.
std::vector<std::string> PayloadsOf(uint32_t prompt) {
  std::vector<std::string> out;
  for (uint32_t i = 0; i < kBlocks; ++i) out.push_back(PayloadBytes(prompt * 1000 + i, kPart));
  return out;
}

void StoreOne(SharedCalls* calls, const std::string& model, uint32_t prompt) {
  v1::StoreResponse response;
  const SharedCalls::Store store =
      calls->StoreOf(TokenPrompt(model, prompt, kBlocks), 0, PayloadsOf(prompt));
  Stepped();
  const grpc::Status status = calls->Send(store, &response);
  if (!status.ok() && status.error_code() != grpc::StatusCode::RESOURCE_EXHAUSTED) std::_Exit(1);
  Stepped();
}

// `client`'s Lease makes a lease that the life may not live to release.
void ReadOne(ServiceClient* client, SharedCalls* calls, const std::string& model, uint32_t prompt) {
  v1::LookupRequest lookup;
  *lookup.mutable_prompt() = TokenPrompt(model, prompt, kBlocks);
  lookup.set_lease_ms(60'000);
  v1::LookupResponse found;
  if (!client->Lookup(lookup, &found).ok()) std::_Exit(1);
  Stepped();
  if (found.blocks() == 0) return;
  const SharedCalls::Fetched fetched =
      calls->Fetch(calls->FetchOf(found.lease_id(), 0, found.blocks()));
  Stepped();
  const std::vector<std::string> want = PayloadsOf(prompt);
  if (fetched.bytes.size() != found.blocks()) std::_Exit(1);
  for (uint32_t i = 0; i < found.blocks(); ++i) {
    if (!fetched.bytes[i] || *fetched.bytes[i] != want[i]) std::_Exit(kForeignByte);
  }
  v1::ReleaseRequest release;
  release.set_lease_id(found.lease_id());
  v1::ReleaseResponse released;
  grpc::ClientContext context;
  if (!client->stub().Release(&context, release, &released).ok()) std::_Exit(1);
  Stepped();
}

int Live(const std::string& address, const std::string& socket, uint64_t seed) {
  std::mt19937_64 random(seed);
  ServiceClient client(address);
  RawSharedClient session = RawSharedClient::Joined(socket);
  SharedCalls calls(&client, &session);
  const std::string model = client.Register("m", {kPart});
  for (int i = 0; i < kRounds; ++i) {
    const auto prompt = static_cast<uint32_t>(random() % kPrompts);
    StoreOne(&calls, model, prompt);
    ReadOne(&client, &calls, model, prompt);
    ReadOne(&client, &calls, model, static_cast<uint32_t>(random() % kPrompts));
  }
  return ::testing::Test::HasFailure() ? 1 : 0;
}

}  // namespace
}  // namespace kvtier

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  return kvtier::Live(argv[1], argv[2], std::strtoull(argv[3], nullptr, 10));
}
