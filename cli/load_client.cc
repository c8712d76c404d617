#include "cli/load_client.h"

#include <algorithm>
#include <utility>

#include "cli/replay.h"
#include "cli/replay_payload.h"
#include "common/prompt.h"

namespace kvtier::cli {
namespace {

constexpr uint64_t kPromptBytes = uint64_t{256} << 20;

class LoadClient final : public LoadTarget {
 public:
  LoadClient(const LoadClientOptions& options, Client* client, const RegisteredModel& model)
      : options_(options),
        client_(client),
        root_(Digest128::Of(CanonicalRoot(model.id, options.name, PromptKind::kTokens,
                                          options.block_tokens * sizeof(uint32_t)))) {
    prompt_.model = model.id;
    prompt_.name = options.name;
  }

  void Prepare(LoadOp op, const TraceRequest& request) override {
    op_ = op;
    const uint64_t most = std::max<uint64_t>(1, kPromptBytes / options_.block_bytes);
    const size_t blocks =
        std::min<uint64_t>(UsedBlocks(request, options_.block_tokens, options_.full_only), most);
    tokens_.resize(blocks * options_.block_tokens);
    for (size_t i = 0; i < blocks; ++i) {
      BlockTokens(request.hash_ids[i],
                  std::span(tokens_).subspan(i * options_.block_tokens, options_.block_tokens));
    }
    keys_ = BlockKeys(root_, tokens_, options_.block_tokens);
    prompt_.tokens = tokens_;
    if (op == LoadOp::kStore) FillPayloads();
  }

  absl::StatusOr<LoadOutcome> Run() override {
    if (keys_.empty()) return LoadOutcome();
    if (op_ == LoadOp::kLookup) return Lookup();
    return op_ == LoadOp::kFetch ? Fetch() : Store();
  }

 private:
  void FillPayloads() {
    buffer_.resize(std::max<size_t>(buffer_.size(), keys_.size() * options_.block_bytes));
    payloads_.clear();
    for (size_t i = 0; i < keys_.size(); ++i) {
      const std::span<std::byte> payload =
          std::span(buffer_).subspan(i * options_.block_bytes, options_.block_bytes);
      FillPayload(keys_[i], payload);
      payloads_.push_back(payload);
    }
  }

  absl::StatusOr<LoadOutcome> Lookup() {
    KVTIER_ASSIGN_OR_RETURN(const PrefixMatch match, client_->Lookup(prompt_));
    return LoadOutcome{.asked_blocks = keys_.size(), .blocks = match.blocks};
  }

  absl::StatusOr<LoadOutcome> Fetch() {
    std::vector<uint64_t> good_bytes(keys_.size(), 0);  // seen so far, each as it must be
    const PieceVisitor check = [&](const PieceView& piece) {
      if (piece.block < keys_.size() &&
          PayloadMatches(keys_[piece.block], options_.block_bytes, piece.offset, piece.bytes)) {
        good_bytes[piece.block] += piece.bytes.size();
      }
    };
    FetchParams params;
    params.last_block = static_cast<uint32_t>(keys_.size());
    KVTIER_ASSIGN_OR_RETURN(const FetchReport report, client_->FetchViews(prompt_, params, check));
    LoadOutcome outcome{.asked_blocks = keys_.size()};
    for (size_t i = 0; i < report.blocks.size(); ++i) {
      const FetchedBlock& block = report.blocks[i];
      if (block.status != FetchStatus::kOk) continue;
      ++outcome.blocks;
      outcome.bytes += block.bytes;
      outcome.wrong_blocks += block.bytes != options_.block_bytes || good_bytes[i] != block.bytes;
    }
    return outcome;
  }

  absl::StatusOr<LoadOutcome> Store() {
    LoadOutcome outcome{.asked_blocks = keys_.size()};
    const absl::StatusOr<StoreReport> report = client_->Store(prompt_, {}, payloads_);
    if (absl::IsResourceExhausted(report.status())) return outcome;
    KVTIER_RETURN_IF_ERROR(report.status());
    for (const StoredBlock& block : report->blocks) {
      outcome.blocks += block.verdict == StoreVerdict::kStored;
    }
    outcome.bytes = outcome.blocks * options_.block_bytes;
    return outcome;
  }

  const LoadClientOptions options_;
  Client* const client_;
  const BlockKey root_;
  LoadOp op_ = LoadOp::kLookup;
  Prompt prompt_;
  std::vector<uint32_t> tokens_;
  std::vector<BlockKey> keys_;
  std::vector<std::byte> buffer_;  // kept, because first touch of memory costs more than filling it
  std::vector<std::span<const std::byte>> payloads_;
};

}  // namespace

ModelSpec LoadModel(const LoadClientOptions& options) {
  ReplayOptions replay;
  replay.block_bytes = options.block_bytes;
  replay.block_tokens = options.block_tokens;
  return ReplayModel(replay);
}

std::unique_ptr<LoadTarget> MakeLoadClient(const LoadClientOptions& options, Client* client,
                                           const RegisteredModel& model) {
  return std::make_unique<LoadClient>(options, client, model);
}

}  // namespace kvtier::cli
