// Many threads on one TierManager: stores, lookups with leases, fetches, promotions, resets and
// resizes at once. Every byte served says whose it is. Meant for ThreadSanitizer; KVTIER_STEPS sets
// the length.
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <random>
#include <tuple>

#include "gtest/gtest.h"
#include "tests/support/tier_fixture.h"

namespace kvtier {
namespace {

using std::chrono::milliseconds;

constexpr int kThreads = 4;
constexpr uint32_t kPrompts = 24;
constexpr uint32_t kBlocks = 10;

int Steps() {
  const char* text = std::getenv("KVTIER_STEPS");
  return text == nullptr ? 400 : std::atoi(text);
}

class Worker {
 public:
  Worker(TierManager* manager, const Clock* clock, std::vector<ModelSpec> specs, uint32_t seed)
      : manager_(manager), clock_(clock), specs_(std::move(specs)), random_(seed) {}

  void Run() {
    for (int step = 0; step < Steps(); ++step) {
      const uint32_t choice = random_() % 100;
      if (choice < 40) {
        Store();
      } else if (choice < 75) {
        LookupAndFetch();
      } else if (choice < 95) {
        Fetch(Below(kPrompts), 0);
      } else if (choice < 98) {
        manager_->Tick();
      } else if (choice == 98) {
        EXPECT_TRUE(manager_->ResetNamespace(SpecId(Spec()), Canonical(Spec())).ok());
      } else {
        EXPECT_TRUE(manager_->SetCapacity(TierKind::kRam, (1 + Below(4)) << 18).ok());
      }
    }
  }
  uint64_t served() const { return served_; }

 private:
  uint32_t Below(uint32_t limit) { return random_() % limit; }
  const ModelSpec& Spec() { return specs_[Below(static_cast<uint32_t>(specs_.size()))]; }
  std::string Canonical(const ModelSpec& spec) const {
    return CanonicalRoot(SpecId(spec), Namespace{}, PromptKind::kTokens, spec.block_tokens * 4);
  }
  PromptRef Prompt(const ModelSpec& spec, const std::vector<uint32_t>& tokens) const {
    std::string canonical = Canonical(spec);
    const BlockKey root = Digest128::Of(canonical);
    const std::string_view bytes(reinterpret_cast<const char*>(tokens.data()), tokens.size() * 4);
    return PromptRef{SpecId(spec), std::move(canonical),
                     PromptCursor(root, {bytes}, spec.block_tokens * 4)};
  }
  TimePoint Deadline() const { return clock_->Now() + std::chrono::seconds(20); }

  void Store() {
    const ModelSpec& spec = Spec();
    const auto tokens = Tokens(Below(kPrompts), 1 + Below(kBlocks));
    const auto keys = BlockKeys(Digest128::Of(Canonical(spec)), tokens, spec.block_tokens);
    for (uint32_t part = 0; part < PartCount(spec); ++part) {
      PromptRef prompt = Prompt(spec, tokens);
      const auto count = static_cast<uint32_t>(prompt.cursor.blocks());
      auto session = manager_->BeginStore(prompt, 0, count, part);
      ASSERT_TRUE(session.ok()) << session.status();
      for (uint32_t block = 0; block < count; ++block) {
        if ((*session)->outcome(block) != StoreOutcome::kPending) continue;
        if (!(*session)->Reserve(block, Deadline())) continue;
        const auto payload = PayloadOf(keys[block], part, 0, (*session)->part_bytes());
        std::memcpy((*session)->Buffer(block).data(), payload.data(), payload.size());
        (*session)->Commit(block, PayloadChecksum(payload.data(), payload.size()));
      }
    }
  }

  void LookupAndFetch() {
    const ModelSpec& spec = Spec();
    const uint32_t seed = Below(kPrompts);
    const auto tokens = Tokens(seed, kBlocks);
    PromptRef prompt = Prompt(spec, tokens);
    LookupOptions options;
    options.lease = std::chrono::seconds(60);
    options.client = "worker";
    if (Below(3) == 0) options.promote_to = Below(2) == 0 ? TierKind::kGpu : TierKind::kRam;
    const auto found = manager_->Lookup(prompt, options);
    ASSERT_TRUE(found.ok()) << found.status();
    if (found->lease == 0) return;
    const uint32_t part = Below(PartCount(spec));
    auto session = manager_->BeginFetch(found->lease, 0, found->blocks, part);
    ASSERT_TRUE(session.ok()) << session.status();
    for (uint32_t block = 0; block < found->blocks; ++block) {
      const auto view = (*session)->Next(block, Deadline());
      ASSERT_TRUE(view.ok()) << "a leased block missed: " << view.status();
      Check(spec, tokens, block, part, *view);
    }
    EXPECT_TRUE(manager_->Release(found->lease).ok());
  }

  void Fetch(uint32_t seed, uint32_t part) {
    const ModelSpec& spec = Spec();
    const auto tokens = Tokens(seed, kBlocks);
    PromptRef prompt = Prompt(spec, tokens);
    auto session = manager_->BeginFetch(prompt, 0, kBlocks, part);
    ASSERT_TRUE(session.ok()) << session.status();
    for (uint32_t block = 0; block < kBlocks; ++block) {
      const auto view = (*session)->Next(block, Deadline());
      if (view.ok()) {
        Check(spec, tokens, block, part, *view);
      } else {
        ASSERT_TRUE(absl::IsNotFound(view.status())) << view.status();
      }
    }
  }

  void Check(const ModelSpec& spec, const std::vector<uint32_t>& tokens, uint32_t block,
             uint32_t part, const PartView& view) {
    const auto keys = BlockKeys(Digest128::Of(Canonical(spec)), tokens, spec.block_tokens);
    const auto expected = PayloadOf(keys[block], part, 0, view.bytes.size());
    ASSERT_EQ(std::memcmp(view.bytes.data(), expected.data(), expected.size()), 0);
    ++served_;
  }

  TierManager* const manager_;
  const Clock* const clock_;
  const std::vector<ModelSpec> specs_;
  std::minstd_rand random_;
  uint64_t served_ = 0;
};

class StressTest : public ::testing::TestWithParam<std::tuple<TierSizes, Eviction>> {};

TEST_P(StressTest, NoForeignByteAndNothingLeft) {
  const SteadyClock clock;
  const std::unique_ptr<DeviceMemory> device = MakeHostMemory();
  const auto tier = [&](TierKind kind, uint64_t bytes) {
    return bytes == 0 ? nullptr : std::make_unique<MemoryTier>(kind, device.get(), bytes);
  };
  std::optional<ThreadPool> general(std::in_place, 2);
  std::optional<ThreadPool> ssd_reader(std::in_place, 2);
  std::optional<ThreadPool> ssd_writer(std::in_place, 1);
  const TierSizes sizes = std::get<TierSizes>(GetParam());
  ManagerOptions options;
  options.eviction = std::get<Eviction>(GetParam());
  std::unique_ptr<LogTier> ssd;
  if (sizes.ssd > 0) {
    ssd =
        std::make_unique<FakeLogTier>(std::make_shared<FakeMedium>(), sizes.ssd, sizes.ssd_segment);
  }
  TierManager manager(options, tier(TierKind::kGpu, sizes.gpu), tier(TierKind::kRam, sizes.ram),
                      std::move(ssd), {&*general, &*ssd_reader, &*ssd_writer}, &clock);
  manager.Restore();
  const std::vector<ModelSpec> specs = {OpaqueModel("one", {3000}),
                                        OpaqueModel("two", {2000, 5000})};
  for (const ModelSpec& spec : specs) ASSERT_TRUE(manager.AddModel(spec).ok());

  std::vector<std::unique_ptr<Worker>> workers;
  {
    ThreadPool threads(kThreads);
    for (uint32_t i = 0; i < kThreads; ++i) {
      workers.push_back(std::make_unique<Worker>(&manager, &clock, specs, 77 + i));
      threads.Run([worker = workers.back().get()] { worker->Run(); });
    }
  }
  general.reset();  // each finishes what was queued, and what that still queues
  ssd_reader.reset();
  ssd_writer.reset();
  uint64_t served = 0;
  for (const auto& worker : workers) served += worker->served();
  EXPECT_GT(served, 100u);
  manager.CheckInvariants();
  EXPECT_EQ(manager.stats().pinned_blocks, 0u);
  for (const ModelSpec& spec : specs) EXPECT_TRUE(manager.ResetModel(SpecId(spec)).ok());
  for (const TierStats& stats : manager.stats().tiers) EXPECT_EQ(stats.usage.used_bytes, 0u);
}

INSTANTIATE_TEST_SUITE_P(
    Tiers, StressTest,
    ::testing::Combine(::testing::Values(TierSizes{.ram = 1 << 20},
                                         TierSizes{
                                             .gpu = 256 << 10, .ram = 1 << 20, .ssd = 4 << 20}),
                       ::testing::Values(Eviction::kLru, Eviction::kProtected)));

}  // namespace
}  // namespace kvtier
