// A TierManager over host memory with the conveniences that its tests share.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/executor.h"
#include "common/model_spec.h"
#include "common/prompt.h"
#include "gpu/device_memory.h"
#include "storage/sessions.h"
#include "storage/tier_manager.h"
#include "tests/support/fake_log_tier.h"

namespace kvtier {

struct TierSizes {
  uint64_t gpu = 0;  // 0: off
  uint64_t ram = 0;
  uint64_t ssd = 0;                 // FakeLogTier stands in for the SSD
  uint64_t ssd_segment = 16 << 10;  // its segments
};

// A model of opaque parts.
ModelSpec OpaqueModel(const std::string& name, std::vector<uint64_t> part_bytes,
                      uint32_t block_tokens = 4, uint32_t groups = 1);

// `blocks` blocks of `block_tokens` tokens, told apart by `seed`; prompts with equal seeds share
// their prefix.
std::vector<uint32_t> Tokens(uint32_t seed, uint32_t blocks, uint32_t block_tokens = 4);

// One prompt after another.
std::vector<uint32_t> Join(std::vector<uint32_t> head, const std::vector<uint32_t>& tail);

// Bytes that say whose they are: a function of the key, the part and a serial number.
std::vector<std::byte> PayloadOf(const BlockKey& key, uint32_t part, uint64_t serial,
                                 uint64_t bytes);

// The prompt keeps `tokens` by reference.
PromptRef TokenPromptOf(const ModelSpec& model, const std::vector<uint32_t>& tokens,
                        const Namespace& name = {});

class TierFixture {
 public:
  explicit TierFixture(TierSizes sizes, ManagerOptions options = {});
  ~TierFixture();

  TierManager& manager() { return *manager_; }
  ManualClock& clock() { return clock_; }
  ManualExecutor& executor() { return executor_; }  // promotions
  ManualExecutor& ssd_writer() { return ssd_writer_; }
  FakeLogTier& ssd() { return *ssd_; }
  // A crash and a new start: what is on the SSD is there again, for models that are added by
  // `models`. No session, lease or view of the old manager may be left.
  void Restart(const std::vector<ModelSpec>& models);
  TimePoint deadline() const { return clock_.Now() + std::chrono::hours(1); }

  // The prompt keeps `tokens` by reference.
  PromptRef Prompt(const ModelSpec& model, const std::vector<uint32_t>& tokens,
                   const Namespace& name = {}) const;
  BlockKey Root(const ModelSpec& model, const Namespace& name = {}) const;

  // Stores blocks [first, end of tokens) of one part with PayloadOf(key, part, serial).
  std::vector<StoreOutcome> Store(const ModelSpec& model, const std::vector<uint32_t>& tokens,
                                  uint32_t first = 0, uint32_t part = 0, uint64_t serial = 0,
                                  const Namespace& name = {});
  uint32_t Found(const ModelSpec& model, const std::vector<uint32_t>& tokens,
                 const Namespace& name = {});
  // True when the part of that block is served and is PayloadOf(key, part, serial); false for a
  // miss. Other bytes fail the test.
  bool Fetch(const ModelSpec& model, const std::vector<uint32_t>& tokens, uint32_t block,
             uint32_t part = 0, uint64_t serial = 0, const Namespace& name = {});

 private:
  void Start(const std::vector<ModelSpec>& models);

  const TierSizes sizes_;
  const ManagerOptions options_;
  ManualClock clock_;
  ManualExecutor executor_;
  ManualExecutor ssd_reader_;
  ManualExecutor ssd_writer_;
  std::unique_ptr<DeviceMemory> device_;
  std::shared_ptr<FakeMedium> medium_ = std::make_shared<FakeMedium>();
  FakeLogTier* ssd_ = nullptr;  // the manager's
  std::unique_ptr<TierManager> manager_;
};

}  // namespace kvtier
