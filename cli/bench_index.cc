#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <functional>

#include "cli/bench_lookup.h"
#include "common/check.h"
#include "common/executor.h"
#include "gpu/device_memory.h"
#include "storage/block_index.h"
#include "storage/tier_manager.h"

namespace kvtier::cli {
namespace {

constexpr uint32_t kBlockBytes = kBlockTokens * 4;
constexpr uint32_t kPromptBlocks = 8192;
constexpr SpaceId kSpace = 1;
constexpr int kRounds = 15;

double Nanoseconds(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count();
}

double MedianNanoseconds(const std::function<void()>& work) {
  std::vector<double> times;
  for (int round = 0; round < kRounds; ++round) times.push_back(Nanoseconds(work));
  return Median(std::move(times));
}

// Anonymous memory of this process.
absl::StatusOr<uint64_t> ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  uint64_t size = 0, resident = 0, shared = 0;
  if (!(statm >> size >> resident >> shared)) {
    return absl::UnavailableError("/proc/self/statm cannot be read");
  }
  return (resident - shared) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

std::vector<uint32_t> PromptTokens(uint32_t number, uint32_t blocks) {
  std::vector<uint32_t> tokens(uint64_t{blocks} * kBlockTokens);
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = static_cast<uint32_t>((i + 1) * 2654435761u) ^ number;
  }
  return tokens;
}

PromptCursor CursorOver(const std::vector<uint32_t>& tokens) {
  const std::string_view bytes(reinterpret_cast<const char*>(tokens.data()), tokens.size() * 4);
  return PromptCursor(Digest128::Of("bench"), {bytes}, kBlockBytes);
}

// Prompts of kPromptBlocks blocks until the index has at least `blocks`, each block complete in
// RAM, in its order, and found before, as the daemon would have it.
void Fill(uint64_t blocks, BlockIndex* index) {
  for (uint32_t number = 0; index->size() < blocks; ++number) {
    const std::vector<uint32_t> tokens = PromptTokens(number, kPromptBlocks);
    PromptCursor cursor = CursorOver(tokens);
    std::vector<BlockIdentity> identities;
    cursor.Next(cursor.blocks(), &identities);
    EntryId id = kNoEntry;
    for (uint32_t depth = 0; depth < identities.size() && index->size() < blocks; ++depth) {
      const EntryId previous = id;
      id = index->Insert(identities[depth], kSpace, 0, depth, 1, previous);
      index->SetLocation(id, 0, TierKind::kRam, index->size());
      index->Enlist(id, TierKind::kRam);
      index->Use(id, previous);
      index->entry(id).hit = index->entry(id).ssd_hit = true;
    }
  }
}

std::vector<EntryId> Path(const BlockIndex& index, const std::vector<uint32_t>& tokens) {
  PromptCursor cursor = CursorOver(tokens);
  std::vector<EntryId> path(cursor.blocks());
  EntryId block = kNoEntry;
  BlockKey key = cursor.root();
  for (EntryId& found : path) {
    found = block = index.FindChild(block, key, cursor.NextIdentity(), kSpace);
    KVTIER_CHECK(block != kNoEntry);
    key = index.entry(block).key;
  }
  return path;
}

// What one hit of `blocks` blocks costs, part by part. Only the first block's key is hashed: from
// there each block knows its child, and the comparison says whether it is the one.
void BenchCost(const BlockIndex& index, uint32_t blocks, BenchReport* report) {
  const std::vector<uint32_t> tokens = PromptTokens(0, blocks);
  const std::vector<EntryId> path = Path(index, tokens);
  const double total = MedianNanoseconds([&] {
    PromptCursor cursor = CursorOver(tokens);
    EntryId last = index.FindChild(kNoEntry, cursor.root(), cursor.NextIdentity(), kSpace);
    KVTIER_CHECK(index.FollowUsed(&last, cursor.Ahead(), blocks, false) == blocks - 1);
  });
  const double verify = MedianNanoseconds([&] {
    for (uint32_t i = 0; i < blocks; ++i) {
      const Entry& entry = index.entry(path[i]);
      const void* stored = entry.identity;
      KVTIER_CHECK(std::memcmp(stored, tokens.data() + i * kBlockTokens, kBlockBytes) == 0);
    }
  });
  const std::string_view first(reinterpret_cast<const char*>(tokens.data()), kBlockBytes);
  BlockKey sink = CursorOver(tokens).root();
  const double hash = MedianNanoseconds([&] { sink = ChildKey(sink, first); });
  const double hash_all = MedianNanoseconds([&] {
    std::vector<BlockIdentity> identities;
    identities.reserve(blocks);
    PromptCursor cursor = CursorOver(tokens);
    cursor.Next(cursor.blocks(), &identities);
  });
  const double walk = std::max(0.0, total - verify - hash);
  const std::string name = absl::StrCat("lookup_cost_", blocks);
  report->AddFact(name + "_hash", hash / 1000, "us", "hash + walk + verify", total / 1000);
  report->AddFact(name + "_walk", walk / 1000, "us", "hash + walk + verify", total / 1000);
  report->AddFact(name + "_verify", verify / 1000, "us", "hash + walk + verify", total / 1000);
  report->AddFact(name + "_hash_all", hash_all / 1000, "us", "hash + walk + verify", total / 1000);
}

absl::Status BenchMemory(uint64_t blocks, const Output& output, BenchReport* report) {
  output.Progress(absl::StrCat("bench lookup: an index of ", WithCommas(blocks), " blocks"));
  KVTIER_ASSIGN_OR_RETURN(const uint64_t before, ResidentBytes());
  BlockIndex index;
  Fill(blocks, &index);
  malloc_trim(0);
  KVTIER_ASSIGN_OR_RETURN(const uint64_t after, ResidentBytes());
  const auto count = static_cast<double>(index.size());
  report->AddFact("index_blocks", count, "blocks");
  report->AddFact("index_bytes_per_block",
                  static_cast<double>(index.memory_bytes() - index.identity_bytes()) / count, "B",
                  "256 B", 256);
  report->AddFact("index_token_bytes_per_block",
                  static_cast<double>(index.identity_bytes()) / count, "B");
  report->AddFact("index_process_bytes_per_block", static_cast<double>(after - before) / count,
                  "B");
  for (uint32_t length : {512u, kPromptBlocks}) {
    if (index.size() >= length) BenchCost(index, length, report);
  }
  return absl::OkStatus();
}

// The daemon's own work for a prompt of which nothing is held: it must not grow with the prompt.
absl::Status BenchMiss(BenchReport* report) {
  const std::unique_ptr<DeviceMemory> memory = MakeHostMemory();
  const SteadyClock clock;
  ManualExecutor executor;
  TierManager manager({}, nullptr,
                      std::make_unique<MemoryTier>(TierKind::kRam, memory.get(), uint64_t{1} << 20),
                      nullptr, {&executor, &executor, &executor}, &clock);
  const ModelSpec spec = BenchModel("kvtier-bench-miss", 256);
  KVTIER_RETURN_IF_ERROR(manager.AddModel(spec));
  const std::string root = CanonicalRoot(SpecId(spec), {}, PromptKind::kTokens, kBlockBytes);
  std::vector<double> costs;
  // The daemon hashes a first step of blocks before it looks: hence 64 too.
  for (uint32_t blocks : {1u, 64u, 65536u}) {
    const std::vector<uint32_t> tokens = PromptTokens(1, blocks);
    const std::string_view bytes(reinterpret_cast<const char*>(tokens.data()), tokens.size() * 4);
    absl::Status status;
    costs.push_back(MedianNanoseconds([&] {
      for (int call = 0; call < 1000; ++call) {
        PromptRef prompt{SpecId(spec), root,
                         PromptCursor(Digest128::Of(root), {bytes}, kBlockBytes)};
        status.Update(manager.Lookup(prompt, {}).status());
      }
    }));
    KVTIER_RETURN_IF_ERROR(status);
  }
  report->AddFact("server_miss_1_block", costs[0] / 1e6, "us");
  report->AddFact("server_miss_64_blocks", costs[1] / 1e6, "us");
  report->AddFact("server_miss_65536_blocks", costs[2] / 1e6, "us", "miss of 64 blocks",
                  costs[1] / 1e6);
  return absl::OkStatus();
}

}  // namespace

absl::Status BenchIndex(uint64_t index_blocks, const Output& output, BenchReport* report) {
  KVTIER_RETURN_IF_ERROR(BenchMemory(index_blocks, output, report));
  return BenchMiss(report);
}

}  // namespace kvtier::cli
