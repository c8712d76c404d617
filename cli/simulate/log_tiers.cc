#include "cli/simulate/log_tiers.h"

#include <algorithm>

#include "cli/simulate/ghosts.h"
#include "common/check.h"
#include "storage/sessions.h"

namespace kvtier::cli {
namespace {

constexpr Duration kLease = std::chrono::seconds(30);
// kvtierd's files have 64 MiB at most. The manager's buffer for what it reads from one to write it
// again is real memory, as much.
constexpr uint64_t kMostSegmentBlocks = (uint64_t{64} << 20) / LogTiers::kPartBytes;
constexpr uint32_t kIdentityBytes = sizeof(EntryId);  // a block is one token: its number

ModelSpec Spec() {
  ModelSpec spec;
  spec.name = "kvtier-simulate";
  spec.block_tokens = 1;
  spec.pack_order = PackOrder::kOpaque;
  spec.explicit_part_bytes = {LogTiers::kPartBytes};
  return spec;
}

const ModelId& Model() {
  static const ModelId id = SpecId(Spec());
  return id;
}

std::unique_ptr<LogTier> MakeLog(const TierSizes& sizes) {
  const uint64_t share =
      std::clamp<uint64_t>(sizes.ssd / LogTier::kSegmentsOfCapacity, 1, kMostSegmentBlocks);
  const uint64_t segment = sizes.segment > 0 ? sizes.segment : share;
  const uint64_t record = TierManager::RecordBytes(LogTiers::kPartBytes, kIdentityBytes);
  return std::make_unique<GhostLogTier>(sizes.ssd * record, segment * record);
}

}  // namespace

LogTiers::LogTiers(const TierSizes& sizes)
    : root_(CanonicalRoot(Model(), Namespace(), PromptKind::kTokens, kIdentityBytes)),
      root_key_(Digest128::Of(root_)),
      memory_(MakeGhostMemory()),
      manager_(ManagerOptions(), nullptr,
               std::make_unique<MemoryTier>(TierKind::kRam, memory_.get(), sizes.ram * kPartBytes),
               MakeLog(sizes), ManagerExecutors{&general_, &reader_, &writer_}, &clock_) {
  KVTIER_CHECK(manager_.AddModel(Spec()).ok());
  manager_.Restore();
}

PromptRef LogTiers::Prompt(std::span<const EntryId> path) const {
  const std::string_view tokens(reinterpret_cast<const char*>(path.data()), path.size_bytes());
  return PromptRef{Model(), root_, PromptCursor(root_key_, {tokens}, kIdentityBytes)};
}

uint32_t LogTiers::Request(std::span<const EntryId> path) {
  if (path.empty()) return 0;
  PromptRef prompt = Prompt(path);
  LookupOptions options;
  options.lease = kLease;
  const absl::StatusOr<LookupResult> found = manager_.Lookup(prompt, options);
  KVTIER_CHECK(found.ok());
  Fetch(*found);
  if (found->blocks < path.size()) Store(path, found->blocks);
  if (found->lease != 0) KVTIER_CHECK(manager_.Release(found->lease).ok());
  writer_.RunAll();
  return found->blocks;
}

// What RAM has is pinned there: fetching it changes nothing.
void LogTiers::Fetch(const LookupResult& found) {
  const TimePoint deadline = clock_.Now() + kLease;
  std::unique_ptr<FetchSession> session;
  uint32_t block = 0;
  for (const auto& [tier, blocks] : found.runs) {
    (tier == TierKind::kRam ? counts_.ram_hits : counts_.ssd_hits) += blocks;
    const uint32_t end = block + blocks;
    for (; block < end && tier != TierKind::kRam; ++block) {
      if (session == nullptr) {
        absl::StatusOr<std::unique_ptr<FetchSession>> begun =
            manager_.BeginFetch(found.lease, 0, found.blocks, 0);
        KVTIER_CHECK(begun.ok());
        session = *std::move(begun);
      }
      KVTIER_CHECK(session->Next(block, deadline).ok());
    }
    block = end;
  }
}

void LogTiers::Store(std::span<const EntryId> path, uint32_t first) {
  const TimePoint deadline = clock_.Now() + kLease;
  PromptRef prompt = Prompt(path);
  const auto count = static_cast<uint32_t>(path.size());
  const auto session = manager_.BeginStore(prompt, first, count - first, 0);
  KVTIER_CHECK(session.ok());
  for (uint32_t block = first; block < count; ++block) {
    if ((*session)->outcome(block) != StoreOutcome::kPending) continue;
    if (!(*session)->Reserve(block, deadline)) return;
    (*session)->Commit(block, /*checksum=*/0);
  }
}

TierCounts LogTiers::counts() const {
  const ManagerStats stats = manager_.stats();
  TierCounts counts = counts_;
  counts.ssd_writes =
      stats.tiers[static_cast<int>(TierKind::kSsd)].demotions + stats.ssd_carried_blocks;
  return counts;
}

}  // namespace kvtier::cli
