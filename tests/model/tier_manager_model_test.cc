// Random operations against a reference model that knows every byte that may be served.
//
// KVTIER_SEED sets the seed (printed on failure), KVTIER_STEPS the number of steps per
// configuration.
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>

#include "gtest/gtest.h"
#include "tests/support/tier_fixture.h"

namespace kvtier {
namespace {

using std::chrono::milliseconds;

uint64_t FromEnvironment(const char* name, uint64_t fallback) {
  const char* text = std::getenv(name);
  return text == nullptr ? fallback : std::strtoull(text, nullptr, 10);
}

struct Config {
  const char* name;
  TierSizes sizes;
  bool roomy;  // nothing can be evicted: then all that was stored must be found
  Eviction eviction = Eviction::kLru;
};

ManagerOptions OptionsOf(const Config& config) {
  ManagerOptions options;
  options.eviction = config.eviction;
  return options;
}

class ModelTest : public ::testing::TestWithParam<Config> {
 protected:
  static constexpr uint32_t kBlockTokens = 4;

  ModelTest()
      : seed_(FromEnvironment("KVTIER_SEED", 20261129)),
        random_(seed_),
        fixture_(GetParam().sizes, OptionsOf(GetParam())) {
    specs_ = {OpaqueModel("one", {3000}), OpaqueModel("two", {2000, 5000}),
              OpaqueModel("groups", {1000, 3000}, kBlockTokens, 2)};
    for (const ModelSpec& spec : specs_) EXPECT_TRUE(fixture_.manager().AddModel(spec).ok());
    names_ = {Namespace{}, Namespace{"tenant", "salt", ""}};
    MakePrompts();
  }

  // A tree of prompts: each extends a random prefix of an earlier one.
  void MakePrompts() {
    for (uint32_t i = 0; i < 40; ++i) {
      std::vector<uint32_t> tokens;
      if (i > 0) {
        const auto& base = prompts_[Below(prompts_.size())];
        tokens.assign(base.begin(), base.begin() + Below(base.size() / 4 + 1) * 4);
      }
      const uint32_t more = static_cast<uint32_t>(1 + Below(12));
      const auto tail = Tokens(1000 + i, more, kBlockTokens);
      tokens.insert(tokens.end(), tail.begin(), tail.end());
      tokens.resize(tokens.size() - Below(kBlockTokens));  // some have a partial last block
      if (tokens.size() < kBlockTokens) tokens = tail;
      prompts_.push_back(std::move(tokens));
    }
  }

  uint64_t Below(uint64_t limit) { return random_() % limit; }

  struct Target {
    size_t spec, name;
    const std::vector<uint32_t>* tokens;
    std::vector<BlockKey> keys;
  };
  Target RandomTarget() {
    Target target{
        Below(specs_.size()), Below(names_.size()), &prompts_[Below(prompts_.size())], {}};
    target.keys = BlockKeys(fixture_.Root(specs_[target.spec], names_[target.name]), *target.tokens,
                            kBlockTokens);
    return target;
  }
  PromptRef Prompt(const Target& target) {
    return fixture_.Prompt(specs_[target.spec], *target.tokens, names_[target.name]);
  }
  uint32_t Parts(const Target& target) { return PartCount(specs_[target.spec]); }

  // --- What the model knows: for each part, the serial of the bytes that were stored and may be
  // served.
  using PartKey = std::pair<BlockKey, uint32_t>;

  void ExpectBytes(const Target& target, uint32_t block, uint32_t part, const PartView& view) {
    const auto known = serials_.find({target.keys[block], part});
    ASSERT_NE(known, serials_.end()) << "served what was never stored";
    const auto expected = PayloadOf(target.keys[block], part, known->second, view.bytes.size());
    ASSERT_EQ(view.bytes.size(), specs_[target.spec].explicit_part_bytes[part]);
    ASSERT_EQ(std::memcmp(view.bytes.data(), expected.data(), expected.size()), 0);
    ASSERT_EQ(view.checksum, PayloadChecksum(expected.data(), expected.size()));
  }

  // --- Operations

  // One part of some blocks, or every part of a whole prompt.
  void Store() {
    const Target target = RandomTarget();
    const auto blocks = static_cast<uint32_t>(target.keys.size());
    if (Below(2) == 0) {
      for (uint32_t part = 0; part < Parts(target); ++part) StoreRange(target, 0, blocks, part);
      return;
    }
    const auto first = static_cast<uint32_t>(Below(blocks));
    StoreRange(target, first, static_cast<uint32_t>(1 + Below(blocks - first)),
               static_cast<uint32_t>(Below(Parts(target))));
  }

  void StoreRange(const Target& target, uint32_t first, uint32_t count, uint32_t part) {
    PromptRef prompt = Prompt(target);
    auto session = fixture_.manager().BeginStore(prompt, first, count, part);
    ASSERT_TRUE(session.ok()) << session.status();
    for (uint32_t block = first; block < first + count; ++block) {
      StoreBlock(session->get(), target, block, part);
      if (Below(40) == 0) return;  // the client goes away
    }
  }

  void StoreBlock(StoreSession* store, const Target& target, uint32_t block, uint32_t part) {
    const PartKey key{target.keys[block], part};
    if (store->outcome(block) == StoreOutcome::kPending) {
      if (!store->Reserve(block, fixture_.deadline())) {
        ASSERT_EQ(store->outcome(block), StoreOutcome::kRejected);
        ASSERT_FALSE(GetParam().roomy && store->reason(block) == RejectReason::kNoSpace);
        return;
      }
      const uint64_t serial = ++serial_;
      const auto payload = PayloadOf(key.first, part, serial, store->part_bytes());
      std::memcpy(store->Buffer(block).data(), payload.data(), payload.size());
      if (Below(20) == 0) return store->Reject(block, RejectReason::kChecksum);
      store->Commit(block, PayloadChecksum(payload.data(), payload.size()));
      // A block that had lost its ancestors may turn out to be on a lower tier: its bytes stay.
      if (store->outcome(block) == StoreOutcome::kAlreadyPresent) {
        ASSERT_TRUE(serials_.contains(key) && GetParam().sizes.ssd > 0);
        return;
      }
      ASSERT_EQ(store->outcome(block), StoreOutcome::kStored);
      ASSERT_FALSE(GetParam().roomy && serials_.contains(key)) << "stored twice";
      serials_[key] = serial;
      return;
    }
    ASSERT_EQ(store->outcome(block), StoreOutcome::kAlreadyPresent);
    ASSERT_TRUE(serials_.contains(key)) << "called present, but was never stored";
  }

  uint32_t ModelBlocks(const Target& target) {
    uint32_t blocks = 0;
    for (const BlockKey& key : target.keys) {
      for (uint32_t part = 0; part < Parts(target); ++part) {
        if (!serials_.contains({key, part})) return blocks;
      }
      ++blocks;
    }
    return blocks;
  }

  void Lookup() {
    const Target target = RandomTarget();
    PromptRef prompt = Prompt(target);
    LookupOptions options;
    options.client = "model";
    if (Below(3) == 0) options.lease = milliseconds(1 + Below(400));
    options.before_store = Below(4) == 0;
    if (Below(4) == 0) options.promote_to = Below(2) == 0 ? TierKind::kRam : TierKind::kGpu;
    const auto result = fixture_.manager().Lookup(prompt, options);
    ASSERT_TRUE(result.ok()) << result.status();
    ASSERT_LE(result->blocks, ModelBlocks(target)) << "found what was never stored";
    if (GetParam().roomy) {
      ASSERT_EQ(result->blocks, ModelBlocks(target));
    }
    uint32_t in_runs = 0;
    for (const auto& [tier, blocks] : result->runs) in_runs += blocks;
    ASSERT_EQ(in_runs, result->blocks);
    if (result->lease != 0 && leases_.size() < 8) {
      leases_.push_back(
          {target, result->lease, result->blocks, fixture_.clock().Now() + options.lease, false});
    }
  }

  // Within its time a lease's blocks do not miss, and views stay as they were.
  void FetchByLease() {
    if (leases_.empty()) return;
    Lease& lease = leases_[Below(leases_.size())];
    if (lease.blocks == 0) return;
    const auto first = static_cast<uint32_t>(Below(lease.blocks));
    const auto part = static_cast<uint32_t>(Below(Parts(lease.target)));
    auto session = fixture_.manager().BeginFetch(lease.id, first, lease.blocks, part);
    const bool ended = lease.expiry <= fixture_.clock().Now() || lease.released;
    ASSERT_EQ(session.ok(), !ended) << session.status();
    if (ended) return;
    for (uint32_t block = first; block < lease.blocks; ++block) {
      const auto view = (*session)->Next(block, fixture_.deadline());
      ASSERT_TRUE(view.ok()) << "a leased block missed";
      if (!lease.reset) ExpectBytes(lease.target, block, part, *view);
      if (Below(10) == 0 && views_.size() < 12) {
        views_.push_back({*view, std::vector<std::byte>(view->bytes.begin(), view->bytes.end())});
      }
    }
  }

  void FetchByPrompt() {
    const Target target = RandomTarget();
    PromptRef prompt = Prompt(target);
    const auto last = static_cast<uint32_t>(1 + Below(target.keys.size()));
    const auto first = static_cast<uint32_t>(Below(last));
    const auto part = static_cast<uint32_t>(Below(Parts(target)));
    auto session = fixture_.manager().BeginFetch(prompt, first, last, part);
    ASSERT_TRUE(session.ok()) << session.status();
    for (uint32_t block = first; block < last; ++block) {
      const auto view = (*session)->Next(block, fixture_.deadline());
      if (view.ok()) {
        ExpectBytes(target, block, part, *view);
      } else {
        ASSERT_TRUE(absl::IsNotFound(view.status())) << view.status();
        if (GetParam().roomy) {
          ASSERT_GE(block, ModelBlocks(target));
        }
      }
    }
  }

  void DropView() {
    if (views_.empty()) return;
    const size_t i = Below(views_.size());
    ASSERT_EQ(
        std::memcmp(views_[i].view.bytes.data(), views_[i].copy.data(), views_[i].copy.size()), 0)
        << "bytes changed under a reader";
    views_.erase(views_.begin() + static_cast<ptrdiff_t>(i));
  }

  void EndLease() {
    if (leases_.empty()) return;
    const size_t i = Below(leases_.size());
    const bool ended = leases_[i].expiry <= fixture_.clock().Now() || leases_[i].released;
    ASSERT_EQ(fixture_.manager().Release(leases_[i].id).ok(), !ended);
    leases_[i].released = true;
    if (Below(2) == 0) leases_.erase(leases_.begin() + static_cast<ptrdiff_t>(i));
  }

  void PassTime() {
    fixture_.clock().Advance(milliseconds(Below(200)));
    fixture_.manager().Tick();
  }

  void Reset() {
    const Target target = RandomTarget();
    const std::string canonical = Prompt(target).canonical_root;
    ASSERT_TRUE(fixture_.manager().ResetNamespace(SpecId(specs_[target.spec]), canonical).ok());
    for (Lease& lease : leases_) {
      lease.reset |= lease.target.spec == target.spec && lease.target.name == target.name;
    }
    ForgetNamespace(target);
    ASSERT_EQ(fixture_.Found(specs_[target.spec], *target.tokens, names_[target.name]), 0u);
  }

  void ForgetNamespace(const Target& target) {
    for (const auto& tokens : prompts_) {
      for (const BlockKey& key : BlockKeys(fixture_.Root(specs_[target.spec], names_[target.name]),
                                           tokens, kBlockTokens)) {
        for (uint32_t part = 0; part < Parts(target); ++part) serials_.erase({key, part});
      }
    }
  }

  void Resize() {
    if (GetParam().roomy) return;
    const uint64_t bytes = GetParam().sizes.ram / 4 * (1 + Below(4));
    const auto result = fixture_.manager().SetCapacity(TierKind::kRam, bytes);
    ASSERT_TRUE(result.ok()) << result.status();
  }

  void Step() {
    const uint64_t choice = Below(100);
    if (choice < 35) return Store();
    if (choice < 55) return Lookup();
    if (choice < 65) return FetchByLease();
    if (choice < 80) return FetchByPrompt();
    if (choice < 85) return DropView();
    if (choice < 89) return EndLease();
    if (choice < 94) return PassTime();
    if (choice < 96) return fixture_.executor().RunAll();
    if (choice < 98) return Resize();
    if (Below(4) == 0) return Reset();
  }

  void CheckCapacities() {
    const ManagerStats stats = fixture_.manager().stats();
    for (TierKind kind : kAllTiers) {
      const TierStats& tier = stats.tiers[static_cast<int>(kind)];
      if (!tier.on || stats.pinned_blocks > 0) continue;
      // A segment that was in use when it was to leave goes later; see LogTier::BytesFor.
      const uint64_t late = kind == TierKind::kSsd ? 2 * GetParam().sizes.ssd_segment : 0;
      ASSERT_LE(tier.usage.used_bytes, tier.usage.capacity_bytes + late);
    }
  }

  struct Lease {
    Target target;
    LeaseId id;
    uint32_t blocks;
    TimePoint expiry;
    bool released;
    bool reset = false;
  };
  struct HeldView {
    PartView view;
    std::vector<std::byte> copy;
  };

  const uint64_t seed_;
  std::mt19937_64 random_;
  TierFixture fixture_;
  std::vector<ModelSpec> specs_;
  std::vector<Namespace> names_;
  std::vector<std::vector<uint32_t>> prompts_;
  std::map<PartKey, uint64_t> serials_;
  uint64_t serial_ = 0;
  std::vector<Lease> leases_;
  std::vector<HeldView> views_;
};

TEST_P(ModelTest, ServesOnlyWhatWasStored) {
  const uint64_t steps = FromEnvironment("KVTIER_STEPS", 4000);
  for (uint64_t step = 0; step < steps; ++step) {
    Step();
    if (HasFatalFailure()) {
      FAIL() << "at step " << step << "; repeat with KVTIER_SEED=" << seed_;
    }
    fixture_.manager().CheckInvariants();
    CheckCapacities();
  }
  const ManagerStats stats = fixture_.manager().stats();
  EXPECT_GT(stats.hit_blocks, steps / 16);  // a cache that never hits would pass all of the above
  EXPECT_GT(stats.fetched_blocks, steps / 16);
  views_.clear();
  fixture_.executor().RunAll();
}

INSTANTIATE_TEST_SUITE_P(
    Tiers, ModelTest,
    ::testing::Values(
        Config{"roomy", {.ram = 32 << 20}, true}, Config{"ram", {.ram = 800 << 10}, false},
        Config{"ram_ssd", {.ram = 400 << 10, .ssd = 2 << 20}, false},
        Config{"gpu_ram", {.gpu = 100 << 10, .ram = 800 << 10}, false},
        Config{"all", {.gpu = 100 << 10, .ram = 400 << 10, .ssd = 2 << 20}, false},
        Config{"ram_protected", {.ram = 800 << 10}, false, Eviction::kProtected},
        Config{
            "gpu_ram_protected", {.gpu = 100 << 10, .ram = 800 << 10}, false, Eviction::kProtected},
        Config{"all_protected",
               {.gpu = 100 << 10, .ram = 400 << 10, .ssd = 2 << 20},
               false,
               Eviction::kProtected}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace kvtier
