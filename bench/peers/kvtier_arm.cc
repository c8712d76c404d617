// kvtierd through its C++ client: every fetched block is verified by checksum, every hit by tokens.
#include <chrono>

#include "absl/strings/str_cat.h"
#include "bench/peers/block_arm.h"
#include "kvtier/client.h"

namespace kvtier::bench {
namespace {

constexpr uint32_t kBlockTokens = 16;
constexpr uint64_t kChainBytes = 256;
constexpr Duration kLease = std::chrono::seconds(60);

ModelSpec SpecOf(uint64_t block_bytes) {
  ModelSpec spec;
  spec.name = absl::StrCat("peers-", block_bytes);
  spec.block_tokens = kBlockTokens;
  spec.pack_order = PackOrder::kOpaque;
  spec.layout_fingerprint = "peers";
  spec.explicit_part_bytes = {block_bytes};
  return spec;
}

std::vector<uint32_t> ChainTokens(uint32_t blocks) {
  std::vector<uint32_t> tokens(blocks * kBlockTokens);
  for (uint32_t i = 0; i < tokens.size(); ++i) tokens[i] = i * 2654435761u;
  return tokens;
}

class KvtierArm final : public BlockArm {
 public:
  KvtierArm(std::unique_ptr<Client> client, bool shared)
      : client_(std::move(client)), shared_(shared) {}

  absl::StatusOr<std::string> Prepare(uint64_t block_bytes) override {
    KVTIER_ASSIGN_OR_RETURN(const RegisteredModel model,
                            client_->RegisterModel(SpecOf(block_bytes)));
    transfer_.model = model.id;
    if (client_->has_shared_memory() != shared_) {
      return absl::InternalError(shared_ ? "no shared memory" : "shared memory, unasked");
    }
    return model.id.ToHex();
  }

  // The caller of Store has looked the prompt up before, so it tells what is missing: all.
  absl::Status Put(const BatchName& name, Payloads payloads) override {
    NamePrompt(name, payloads.size());
    KVTIER_ASSIGN_OR_RETURN(const StoreReport report,
                            client_->Store(transfer_, {.first_missing = 0}, payloads));
    for (const StoredBlock& block : report.blocks) {
      if (block.verdict == StoreVerdict::kStored) continue;
      return absl::InternalError(absl::StrCat("a block was not stored: verdict ",
                                              static_cast<int>(block.verdict), ", refusal ",
                                              static_cast<int>(block.refusal)));
    }
    return absl::OkStatus();
  }

  absl::Status Get(const BatchName& name, Buffers buffers) override {
    NamePrompt(name, buffers.size());
    const auto blocks = static_cast<uint32_t>(buffers.size());
    KVTIER_ASSIGN_OR_RETURN(const FetchReport report, Fetch(blocks, buffers));
    if (report.leading == blocks) return absl::OkStatus();
    return absl::InternalError(absl::StrCat("block ", report.leading, " was missed"));
  }

  absl::Status Drop(const BatchName&, uint32_t) override { return absl::OkStatus(); }

  absl::Status StoreChain(uint32_t blocks) override {
    KVTIER_ASSIGN_OR_RETURN(const RegisteredModel model,
                            client_->RegisterModel(SpecOf(kChainBytes)));
    chain_.model = model.id;
    lookup_tokens_ = ChainTokens(blocks);
    chain_.tokens = lookup_tokens_;
    const std::vector<std::byte> payload(kChainBytes, std::byte{7});
    const std::vector<std::span<const std::byte>> payloads(blocks, payload);
    KVTIER_ASSIGN_OR_RETURN(const StoreReport report, client_->Store(chain_, {}, payloads));
    for (const StoredBlock& block : report.blocks) {
      if (block.verdict == StoreVerdict::kRejected)
        return absl::InternalError("a block was rejected");
    }
    return absl::OkStatus();
  }

  absl::Status PrepareLookup(Shape shape, uint32_t blocks) override {
    lookup_tokens_ = ChainTokens(blocks);
    if (shape == Shape::kMiss) lookup_tokens_[0] ^= 1;
    if (shape == Shape::kPartial) lookup_tokens_[lookup_tokens_.size() / 2] ^= 1;
    chain_.tokens = lookup_tokens_;
    return absl::OkStatus();
  }

  absl::StatusOr<uint32_t> Lookup() override {
    KVTIER_ASSIGN_OR_RETURN(const PrefixMatch match, client_->Lookup(chain_));
    return match.blocks;
  }

 private:
  absl::StatusOr<FetchReport> Fetch(uint32_t blocks, Buffers buffers) {
    if (!shared_) return client_->Fetch(transfer_, {.last_block = blocks}, buffers);
    KVTIER_ASSIGN_OR_RETURN(PrefixMatch match, client_->Lookup(transfer_, {.lease = kLease}));
    return client_->Fetch(match.lease, {.last_block = match.blocks}, buffers.first(match.blocks));
  }

  void NamePrompt(const BatchName& name, size_t blocks) {
    tokens_.assign(blocks * kBlockTokens, 0);
    tokens_[0] = name.serial;
    tokens_[1] = name.client;
    tokens_[2] = name.batch;
    transfer_.tokens = tokens_;
  }

  const std::unique_ptr<Client> client_;
  const bool shared_;
  Prompt transfer_;
  Prompt chain_;
  std::vector<uint32_t> tokens_;
  std::vector<uint32_t> lookup_tokens_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<BlockArm>> MakeKvtierArm(const std::string& address, bool shared) {
  ClientOptions options;
  options.address = address;
  options.shared_memory = shared;
  // What takes longer than an engine would wait is still a figure.
  options.lookup_deadline = std::chrono::seconds(10);
  KVTIER_ASSIGN_OR_RETURN(std::unique_ptr<Client> client, Client::Connect(options));
  return std::make_unique<KvtierArm>(std::move(client), shared);
}

}  // namespace kvtier::bench
