#include "cli/bench_lookup.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <vector>

#include "cli/bench_curve.h"
#include "common/wire.h"

namespace kvtier::cli {
namespace {

constexpr uint64_t kPartBytes = 256;
constexpr uint32_t kLongest = 65'536;  // blocks: 1,048,576 tokens
constexpr double kTarget = 1.3;        // of a bare call, up to 512 blocks
constexpr double kLongTarget = 1.6;

enum class Shape { kHit, kMiss, kPartial };

struct Case {
  std::string name;
  uint32_t blocks;
  Shape shape;
  int calls;  // of each arm in a round
  double target;
};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (uint32_t blocks : {1u, 16u, 64u, 512u, 8192u}) {
    const int calls = blocks <= 512 ? 200 : 40;
    const double target = blocks <= 512 ? kTarget : kLongTarget;
    const std::string name = absl::StrCat("lookup_", blocks);
    cases.push_back({name + "_hit", blocks, Shape::kHit, calls, target});
    cases.push_back({name + "_miss", blocks, Shape::kMiss, calls, target});
    if (blocks > 1) cases.push_back({name + "_partial", blocks, Shape::kPartial, calls, target});
  }
  // How the cost grows with the prompt; 8,192 blocks are above.
  for (uint32_t blocks : {64u, 256u, 1024u, 4096u, 16384u, kLongest}) {
    const int calls = blocks <= 1024 ? 100 : 20;
    cases.push_back({absl::StrCat("lookup_tokens_", blocks * kBlockTokens, "_hit"), blocks,
                     Shape::kHit, calls, 0});
  }
  return cases;
}

std::vector<uint32_t> ChainTokens() {
  std::vector<uint32_t> tokens(kLongest * kBlockTokens);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<uint32_t>(i * 2654435761u);
  return tokens;
}

std::vector<uint32_t> CaseTokens(const std::vector<uint32_t>& chain, const Case& the_case) {
  std::vector<uint32_t> tokens(chain.begin(), chain.begin() + the_case.blocks * kBlockTokens);
  if (the_case.shape == Shape::kMiss) tokens[0] ^= 1;
  if (the_case.shape == Shape::kPartial) tokens[tokens.size() / 2] ^= 1;
  return tokens;
}

uint32_t ExpectedBlocks(const Case& the_case) {
  if (the_case.shape == Shape::kMiss) return 0;
  return the_case.shape == Shape::kHit ? the_case.blocks : the_case.blocks / 2;
}

absl::Status StoreChain(Client& client, const Prompt& prompt) {
  const std::vector<std::byte> payload(kPartBytes, std::byte{7});
  const std::vector<std::span<const std::byte>> payloads(kLongest, payload);
  KVTIER_ASSIGN_OR_RETURN(const StoreReport stored,
                          client.Store(prompt, {.first_missing = 0}, payloads));
  for (const StoredBlock& block : stored.blocks) {
    if (block.verdict == StoreVerdict::kRejected) {
      return absl::InternalError(absl::StrCat("a block of the prompt was rejected, reason ",
                                              static_cast<int>(block.refusal)));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<double> Microseconds(const std::function<absl::Status()>& call) {
  const auto start = std::chrono::steady_clock::now();
  KVTIER_RETURN_IF_ERROR(call());
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
      .count();
}

// One case: both arms take turns, call by call.
class CaseRun {
 public:
  CaseRun(const Case& the_case, const Prompt& prompt, Client* client, bench::CeilingClient* ceiling)
      : case_(the_case), prompt_(prompt), client_(client), ceiling_(ceiling) {
    wire::PromptHead head;
    head.model_id = prompt.model;
    head.name = &prompt.name;
    head.token_count = prompt.tokens.size();
    request_bytes_ = wire::EncodeLookupHead(head, {}).size() + prompt.tokens.size_bytes();
    wire::LookupResponse reply;
    reply.blocks = ExpectedBlocks(the_case);
    reply.tokens = reply.blocks * kBlockTokens;
    if (reply.blocks > 0) reply.runs = {{2, reply.blocks, 0}};
    reply.group_blocks = {reply.blocks};
    reply_bytes_ = wire::EncodeLookupResponse(reply).size();
  }

  absl::Status Round() {
    std::vector<double> ours;
    std::vector<double> bare;
    for (int call = 0; call < case_.calls; ++call) {
      KVTIER_ASSIGN_OR_RETURN(const double bare_us, Microseconds([this] {
                                return ceiling_->Unary(request_bytes_, reply_bytes_);
                              }));
      KVTIER_ASSIGN_OR_RETURN(const double our_us, Microseconds([this] { return Lookup(); }));
      bare.push_back(bare_us);
      ours.push_back(our_us);
    }
    bare_.push_back(Median(std::move(bare)));
    ours_.push_back(Median(std::move(ours)));
    return absl::OkStatus();
  }

  void Report(BenchReport* report) {
    report->AddLatency(case_.name, ours_, "bare unary call", bare_, case_.target);
    if (case_.shape != Shape::kHit || case_.target == 0) return;
    report->AddFact(absl::StrCat("curve_", case_.name), CurveMicroseconds(case_.blocks), "us",
                    case_.name, Median(ours_));
  }
  void Forget() {
    ours_.clear();
    bare_.clear();
  }

 private:
  absl::Status Lookup() {
    KVTIER_ASSIGN_OR_RETURN(const PrefixMatch match, client_->Lookup(prompt_));
    if (match.blocks == ExpectedBlocks(case_)) return absl::OkStatus();
    return absl::InternalError(
        absl::StrCat(case_.name, ": found ", match.blocks, " blocks, not ", ExpectedBlocks(case_)));
  }

  const Case& case_;
  const Prompt& prompt_;
  Client* const client_;
  bench::CeilingClient* const ceiling_;
  uint64_t request_bytes_ = 0;
  uint64_t reply_bytes_ = 0;
  std::vector<double> ours_;
  std::vector<double> bare_;
};

absl::Status BenchCase(const BenchSetup& setup, const Case& the_case, const Prompt& prompt,
                       Client* client, bench::CeilingClient* ceiling, BenchReport* report) {
  CaseRun run(the_case, prompt, client, ceiling);
  KVTIER_RETURN_IF_ERROR(run.Round());  // warms up
  run.Forget();
  for (int round = 0; round < setup.options().rounds; ++round) {
    KVTIER_RETURN_IF_ERROR(run.Round());
  }
  run.Report(report);
  return absl::OkStatus();
}

}  // namespace

absl::Status BenchLookup(BenchSetup& setup, BenchReport* report) {
  KVTIER_ASSIGN_OR_RETURN(const std::unique_ptr<Client> client, setup.ConnectClient());
  KVTIER_ASSIGN_OR_RETURN(const std::unique_ptr<bench::CeilingClient> ceiling,
                          setup.ConnectCeiling());
  KVTIER_ASSIGN_OR_RETURN(const RegisteredModel model,
                          client->RegisterModel(BenchModel("kvtier-bench-lookup", kPartBytes)));
  const std::vector<uint32_t> chain = ChainTokens();
  Prompt prompt;
  prompt.model = model.id;
  prompt.name = FreshNamespace();
  prompt.tokens = chain;
  setup.output().Progress(absl::StrCat("bench lookup: storing a prompt of ", kLongest, " blocks"));
  KVTIER_RETURN_IF_ERROR(StoreChain(*client, prompt));
  for (const Case& the_case : Cases()) {
    setup.output().Progress(absl::StrCat("bench lookup: ", the_case.name));
    const std::vector<uint32_t> tokens = CaseTokens(chain, the_case);
    prompt.tokens = tokens;
    KVTIER_RETURN_IF_ERROR(BenchCase(setup, the_case, prompt, client.get(), ceiling.get(), report));
  }
  return absl::OkStatus();
}

}  // namespace kvtier::cli
