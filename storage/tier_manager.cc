// Models, namespaces, Lookup, leases and resets. What moves payload is in tier_moves.cc.
#include "storage/tier_manager.h"

#include <algorithm>
#include <random>

#include "common/check.h"
#include "storage/sessions.h"
#include "xxhash.h"

namespace kvtier {
namespace {

// Blocks of one prompt walked per hold of the lock.
constexpr uint64_t kWalkStep = 512;
// Blocks looked at per hold of the lock while a reset sweeps the index.
constexpr EntryId kSweepStep = 16384;

absl::Status CheckPart(uint32_t part, size_t parts) {
  if (part < parts) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("part is ", part, ", the model has ", parts, " parts"));
}

absl::Status LeaseNotFound() {
  return absl::NotFoundError("lease_id is unknown or its lease has ended");
}

uint64_t RandomSeed() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

// The next block of a walk, when it goes on with whole blocks, into the answer.
bool TakeWhole(Entry* entry, uint64_t depth, LookupResult* result) {
  if (!entry->complete() || result->blocks != depth) return false;
  if (!entry->hit) entry->hit = true;
  ++result->blocks;
  if (result->runs.empty() || result->runs.back().first != entry->best) {
    result->runs.emplace_back(TierKind{entry->best}, 0u);
  }
  ++result->runs.back().second;
  return true;
}

// The blocks ahead that are as the last one, and stay so, into the answer. False when there are
// none.
bool TakeUsed(const BlockIndex& index, uint64_t until, bool protects, EntryId* previous,
              PromptCursor* cursor, LookupResult* result) {
  const uint64_t position = cursor->position();
  if (*previous == kNoEntry || result->blocks != position) return false;
  auto& [tier, blocks] = result->runs.back();
  if (index.entry(*previous).best != tier) return false;  // it has moved since it was found
  const uint64_t taken = index.FollowUsed(previous, cursor->Ahead(), until - position, protects);
  cursor->Skip(taken);
  result->blocks += taken;
  blocks += taken;
  return taken > 0;
}

}  // namespace

PinSet::~PinSet() { manager_->Unpin(blocks_); }

TierManager::TierManager(ManagerOptions options, std::unique_ptr<MemoryTier> gpu,
                         std::unique_ptr<MemoryTier> ram, std::unique_ptr<LogTier> ssd,
                         ManagerExecutors executors, const Clock* clock)
    : options_(options),
      gpu_(std::move(gpu)),
      ram_(std::move(ram)),
      ssd_(std::move(ssd)),
      tiers_{gpu_.get(), ram_.get(), ssd_.get()},
      executors_(executors),
      clock_(clock),
      lease_seed_(RandomSeed()),
      index_(options.eviction),
      write_tokens_(options.ssd_write_limit, clock->Now()) {
  KVTIER_CHECK(ram_ != nullptr);
  TellCurveOfCapacity();
}

TierManager::~TierManager() {
  EndAllLeases();
  std::vector<std::shared_ptr<const PinSet>> ended;
  {
    MutexLock lock(mutex_);
    for (auto& request : write_requests_) ended.push_back(std::move(request->pins));
    write_requests_.clear();
  }
  ended.clear();
  Erasures erasures;
  {
    MutexLock lock(mutex_);
    for (EntryId id = 0; id < index_.end(); ++id) {
      if (!index_.live(id)) continue;
      KVTIER_CHECK(!index_.entry(id).in_use());  // a session, pin or view outlived the manager
      for (TierKind kind : kMemoryTiers) {
        if (tier(kind) == nullptr) continue;
        for (const PartState& part : index_.parts(id)) {
          const Location at = part.at[static_cast<int>(kind)];
          if (at != kNoLocation) erasures.at[static_cast<int>(kind)].push_back(at);
        }
      }
    }
  }
  Erase(erasures);
}

// --- Models

absl::Status TierManager::AddModel(const ModelSpec& spec) {
  const ModelId id = SpecId(spec);
  MutexLock lock(mutex_);
  const auto known = model_numbers_.find(id);
  if (known != model_numbers_.end()) {
    if (CanonicalSpec(models_[known->second]->spec) == CanonicalSpec(spec)) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("another model has the id ", id.ToHex(), ": change spec.revision"));
  }
  auto model = std::make_unique<Model>();
  model->id = id;
  model->spec = spec;
  model->part_bytes = PartBytes(spec);
  for (uint64_t bytes : model->part_bytes) model->block_bytes += bytes;
  model->number = static_cast<uint32_t>(models_.size());
  model->groups = GroupCount(spec);
  model->ranks = PartCount(spec) / model->groups;
  model_numbers_[id] = model->number;
  models_.push_back(std::move(model));
  return absl::OkStatus();
}

absl::StatusOr<TierManager::Model*> TierManager::FindModelLocked(const ModelId& id) const {
  const auto it = model_numbers_.find(id);
  if (it == model_numbers_.end()) {
    return absl::NotFoundError(
        absl::StrCat("model_id ", id.ToHex(), " is not known here: call RegisterModel first"));
  }
  return models_[it->second].get();
}

ModelInfo TierManager::InfoLocked(const Model& model) const {
  ModelInfo info;
  info.id = model.id;
  info.spec = model.spec;
  info.blocks = model.blocks;
  for (TierKind kind : kAllTiers) {
    if (tier(kind) == nullptr) continue;
    info.capacity_blocks[static_cast<int>(kind)] =
        tier(kind)->BlocksFor(model.part_bytes, uint64_t{model.spec.block_tokens} * 4);
  }
  return info;
}

absl::StatusOr<ModelInfo> TierManager::GetModel(const ModelId& id) const {
  MutexLock lock(mutex_);
  KVTIER_ASSIGN_OR_RETURN(const Model* model, FindModelLocked(id));
  return InfoLocked(*model);
}

std::vector<ModelInfo> TierManager::ListModels() const {
  MutexLock lock(mutex_);
  std::vector<ModelInfo> out;
  for (const auto& model : models_) {
    if (!model->removed) out.push_back(InfoLocked(*model));
  }
  return out;
}

// --- Namespaces

std::optional<SpaceId> TierManager::FindSpaceLocked(const std::string& canonical) {
  const auto it = space_ids_.find(canonical);
  if (it != space_ids_.end()) return it->second;
  if (restored_spaces_.empty()) return std::nullopt;
  const auto restored = restored_spaces_.find(FingerprintOf(canonical));
  if (restored == restored_spaces_.end()) return std::nullopt;
  const SpaceId id = restored->second;
  restored_spaces_.erase(restored);
  spaces_.at(id).canonical = canonical;
  space_ids_[canonical] = id;
  return id;
}

SpaceId TierManager::TakeSpaceLocked(uint32_t model, const std::string& canonical) {
  SpaceId id = next_space_;
  if (const std::optional<SpaceId> known = FindSpaceLocked(canonical)) {
    id = *known;
  } else {
    ++next_space_;
    space_ids_[canonical] = id;
    spaces_[id] = Space{model, canonical, FingerprintOf(canonical), 0, false};
  }
  ++spaces_.at(id).refs;
  return id;
}

void TierManager::DropSpaceRefLocked(SpaceId id) {
  const auto it = spaces_.find(id);
  KVTIER_CHECK(it != spaces_.end() && it->second.refs > 0);
  if (--it->second.refs > 0) return;
  if (!it->second.reset) HideSpaceLocked(it->second);
  spaces_.erase(it);
}

void TierManager::HideSpaceLocked(const Space& space) {
  if (space.canonical.empty()) {
    restored_spaces_.erase(space.fingerprint);
  } else {
    space_ids_.erase(space.canonical);
  }
}

// --- Lookup

bool TierManager::GroupPresentLocked(EntryId block, uint32_t group) const {
  const Entry& entry = index_.entry(block);
  if (entry.complete()) return true;
  const uint32_t ranks = models_[entry.model]->ranks;
  for (const PartState& part : index_.parts(block).subspan(group * ranks, ranks)) {
    if (!part.present()) return false;
  }
  return true;
}

// Takes the next block of a walk into the answer, when it is not whole: it may be in some layer
// groups. False when no group goes on with it: then the walk ends before it.
bool TierManager::TakeGroupsLocked(EntryId block, uint64_t depth, LookupResult* result) const {
  bool goes_on = false;
  for (uint32_t group = 0; group < result->group_blocks.size(); ++group) {
    uint32_t& leading = result->group_blocks[group];
    leading = std::max(leading, result->blocks);
    if (leading < depth || !GroupPresentLocked(block, group)) continue;
    ++leading;
    goes_on = true;
  }
  return goes_on;
}

void TierManager::CountLookup(uint64_t blocks, const LookupResult& result, const Walk& walk) {
  curve_.AddLookup({walk.model->number, walk.model->block_bytes, walk.sampler->sampled()}, blocks,
                   result.blocks);
  MutexLock lock(mutex_);
  ++counts_.lookups;
  counts_.lookup_blocks += blocks;
  counts_.hit_blocks += result.blocks;
  for (const auto& [kind, hits] : result.runs) counts_.tiers[static_cast<int>(kind)].hits += hits;
}

// Goes down the prompt's leading blocks that exist, at most `limit`. Each becomes recent, and used
// when the walk is a use; it may be pinned, into walk->path: so none needs a second look. With a
// result it ends where Lookup's answer does. The lock is given up now and then, for others.
absl::Status TierManager::WalkPrompt(PromptRef& prompt, uint64_t limit, bool pin, bool is_use,
                                     LookupResult* result, Walk* walk) {
  const bool protects = options_.eviction != Eviction::kLru;
  const bool may_skip = result != nullptr && !pin && gpu_ == nullptr;
  SpaceId space = 0;
  EntryId previous = kNoEntry;
  BlockKey key = prompt.cursor.root();
  do {
    MutexLock lock(mutex_);
    if (prompt.cursor.position() == 0) {
      KVTIER_ASSIGN_OR_RETURN(walk->model, FindModelLocked(prompt.model));
      if (result != nullptr) {
        result->block_tokens = walk->model->spec.block_tokens;
        result->block_bytes = walk->model->block_bytes;
        result->group_blocks.assign(walk->model->groups, 0);
      }
      const std::optional<SpaceId> known = FindSpaceLocked(prompt.canonical_root);
      if (!known.has_value()) return absl::OkStatus();
      space = *known;
    } else if (!index_.live(previous) || index_.entry(previous).key != key) {
      previous = kNoEntry;  // it has left since, and its entry is another block's
    }
    const uint64_t stop = std::min(limit, prompt.cursor.position() + kWalkStep);
    while (prompt.cursor.position() < stop) {
      const uint64_t until = std::min(stop, walk->NextPause(prompt.cursor.position()));
      while (prompt.cursor.position() < until) {
        if (may_skip && TakeUsed(index_, until, protects, &previous, &prompt.cursor, result)) {
          key = index_.entry(previous).key;
          continue;
        }
        const EntryId block = index_.FindChild(previous, key, prompt.cursor.NextIdentity(), space);
        if (block == kNoEntry) return absl::OkStatus();
        Entry& entry = index_.entry(block);
        const uint64_t depth = prompt.cursor.position() - 1;
        if (result != nullptr && !TakeWhole(&entry, depth, result) &&
            !TakeGroupsLocked(block, depth, result)) {
          return absl::OkStatus();
        }
        if (pin) {
          AddPinLocked(block);
          walk->path.push_back(block);
        }
        if (gpu_ != nullptr || !entry.IsBeside(previous, protects)) {
          is_use ? index_.Use(block, previous) : index_.Renew(block, previous);
        }
        // A line that is not written stays in every core's cache.
        if (!entry.ssd_hit) entry.ssd_hit = true;
        previous = block;
        key = entry.key;
      }
      // What a group has beyond the last complete block was not found.
      if (result != nullptr && result->blocks == until) walk->Sample(until - 1, key);
    }
  } while (prompt.cursor.position() < limit);
  return absl::OkStatus();
}

absl::StatusOr<LookupResult> TierManager::Lookup(PromptRef& prompt, const LookupOptions& options) {
  const bool lease = options.lease > Duration::zero();
  const bool pin = lease || options.promote_to.has_value();
  LookupResult result;
  Walk walk;
  walk.sampler.emplace(curve_.Sampler());
  KVTIER_RETURN_IF_ERROR(
      WalkPrompt(prompt, prompt.cursor.blocks(), pin, !options.before_store, &result, &walk));
  for (uint32_t& leading : result.group_blocks) leading = std::max(leading, result.blocks);
  if (!options.before_store) CountLookup(prompt.cursor.blocks(), result, walk);
  if (walk.path.empty()) return result;
  auto pins = std::make_shared<const PinSet>(this, std::move(walk.path));
  if (lease) {
    MutexLock lock(mutex_);
    KVTIER_ASSIGN_OR_RETURN(result.lease, AddLeaseLocked(*walk.model, pins, options));
  }
  if (options.promote_to.has_value()) {
    StartPromotion(std::move(pins), result.blocks, *options.promote_to);
  }
  return result;
}

// --- Pins and leases

void TierManager::AddPinLocked(EntryId block) {
  Entry& entry = index_.entry(block);
  if (entry.pins++ > 0) return;
  for (TierKind kind : kMemoryTiers) index_.Unlist(block, kind);
  ++counts_.pinned_blocks;
}

void TierManager::Unpin(std::span<const EntryId> path) {
  Erasures erasures;
  {
    MutexLock lock(mutex_);
    UnpinLocked(path, &erasures);
  }
  Erase(erasures);
}

// Deepest first, so that a path's head ends up newer than its tail.
void TierManager::UnpinLocked(std::span<const EntryId> path, Erasures* erasures) {
  for (size_t i = path.size(); i-- > 0;) {
    Entry& entry = index_.entry(path[i]);
    KVTIER_CHECK(entry.pins > 0);
    if (i > 0) index_.UseAsMuch(path[i - 1], path[i]);
    if (--entry.pins > 0) continue;
    --counts_.pinned_blocks;
    SettleLocked(path[i], erasures);
  }
}

// A block whose use may have ended goes back into the orders, or away when nothing of it is left.
void TierManager::SettleLocked(EntryId block, Erasures* erasures) {
  Entry& entry = index_.entry(block);
  if (entry.in_use()) return;
  if (entry.detached) {
    for (TierKind kind : kAllTiers) DropFromTierLocked(block, kind, erasures);
  }
  if (entry.parts_present == 0) {
    RemoveLocked(block);
    return;
  }
  for (TierKind kind : kMemoryTiers) {
    if (!entry.listed(kind) && index_.AnyIn(block, kind)) {
      index_.Enlist(block, kind);
    }
  }
}

absl::StatusOr<LeaseId> TierManager::AddLeaseLocked(const Model& model,
                                                    std::shared_ptr<const PinSet> pins,
                                                    const LookupOptions& options) {
  uint32_t& open = leases_of_[options.client];
  if (open >= options_.max_leases_per_client) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "open leases of this client: ", open, ", the limit is ", options_.max_leases_per_client));
  }
  ++open;
  LeaseId id = 0;
  do {
    const uint64_t counter = lease_counter_.fetch_add(1) + 1;
    id = XXH3_64bits_withSeed(&counter, sizeof(counter), lease_seed_);
  } while (id == 0 || leases_.contains(id));
  const TimePoint expiry = clock_->Now() + options.lease;
  leases_[id] = Lease{std::move(pins),
                      model.number,
                      options.client,
                      expiry,
                      options.prefill_tokens_per_second,
                      std::make_shared<FetchClock>(clock_)};
  lease_ends_.emplace(expiry, id);
  return id;
}

void TierManager::EndAllLeases() {
  std::vector<std::shared_ptr<const PinSet>> ended;
  MutexLock lock(mutex_);
  while (!leases_.empty()) ended.push_back(RemoveLeaseLocked(leases_.begin()->first));
}

// The pins end where the caller drops them: not under the lock.
std::shared_ptr<const PinSet> TierManager::RemoveLeaseLocked(LeaseId id) {
  const auto it = leases_.find(id);
  if (it == leases_.end()) return nullptr;
  std::shared_ptr<const PinSet> pins = std::move(it->second.pins);
  lease_ends_.erase({it->second.expiry, id});
  const auto of = leases_of_.find(it->second.client);
  if (--of->second == 0) leases_of_.erase(of);
  leases_.erase(it);
  return pins;
}

absl::Status TierManager::Release(LeaseId id, uint32_t verified_blocks, SharedReading shared) {
  std::shared_ptr<const PinSet> pins;
  MutexLock lock(mutex_);
  const auto it = leases_.find(id);
  if (it == leases_.end() || it->second.expiry <= clock_->Now()) {
    return LeaseNotFound();
  }
  const size_t blocks = it->second.pins->blocks().size();
  if (verified_blocks > blocks) {
    return absl::InvalidArgumentError(absl::StrCat("verified_blocks is ", verified_blocks,
                                                   ", the lease has ", blocks, " blocks"));
  }
  CountVerifiedLocked(it->second, verified_blocks, shared);
  speeds_.RecordReading(shared.bytes, shared.seconds);
  pins = RemoveLeaseLocked(id);
  return absl::OkStatus();
}

void TierManager::CountVerifiedLocked(const Lease& lease, uint32_t blocks,
                                      const SharedReading& shared) {
  counts_.verified_blocks += blocks;
  if (blocks == 0 || lease.prefill_tokens_per_second <= 0) return;
  const uint64_t tokens = uint64_t{blocks} * models_[lease.model]->spec.block_tokens;
  counts_.prefill_seconds += static_cast<double>(tokens) / lease.prefill_tokens_per_second;
  counts_.lease_fetch_seconds +=
      std::chrono::duration<double>(lease.fetch_clock->Total()).count() + shared.seconds;
}

absl::Status TierManager::Renew(LeaseId id, Duration remaining) {
  MutexLock lock(mutex_);
  const auto it = leases_.find(id);
  if (it == leases_.end() || it->second.expiry <= clock_->Now()) {
    return LeaseNotFound();
  }
  lease_ends_.erase({it->second.expiry, id});
  it->second.expiry = clock_->Now() + remaining;
  lease_ends_.emplace(it->second.expiry, id);
  return absl::OkStatus();
}

absl::StatusOr<ModelId> TierManager::LeaseModel(LeaseId id) const {
  MutexLock lock(mutex_);
  const auto it = leases_.find(id);
  if (it == leases_.end() || it->second.expiry <= clock_->Now()) return LeaseNotFound();
  return models_[it->second.model]->id;
}

void TierManager::Tick() {
  std::vector<std::shared_ptr<const PinSet>> ended;
  {
    MutexLock lock(mutex_);
    const TimePoint now = clock_->Now();
    while (!lease_ends_.empty() && lease_ends_.begin()->first <= now) {
      ended.push_back(RemoveLeaseLocked(lease_ends_.begin()->second));
      ++counts_.expired_leases;
    }
  }
  ended.clear();
  MaintainSsd();
  MutexLock resizing(resize_mutex_);
  for (TierKind kind : kMemoryTiers) {
    if (tier(kind) != nullptr && memory_tier(kind)->pool().OverCapacity()) Shrink(kind);
  }
}

// --- Sessions

absl::StatusOr<std::unique_ptr<FetchSession>> TierManager::BeginFetch(PromptRef& prompt,
                                                                      uint32_t first, uint32_t last,
                                                                      uint32_t part) {
  if (first >= last || last > prompt.cursor.blocks()) {
    return absl::InvalidArgumentError(absl::StrCat("blocks [first_block, last_block) are [", first,
                                                   ", ", last, "), the prompt has ",
                                                   prompt.cursor.blocks(), " full blocks"));
  }
  Walk walk;
  KVTIER_RETURN_IF_ERROR(WalkPrompt(prompt, last, /*pin=*/true, /*is_use=*/true, nullptr, &walk));
  auto pins = std::make_shared<const PinSet>(this, std::move(walk.path));
  KVTIER_RETURN_IF_ERROR(CheckPart(part, walk.model->part_bytes.size()));
  return std::make_unique<FetchSession>(this, std::move(pins), first, last,
                                        static_cast<uint16_t>(part), walk.model->part_bytes[part]);
}

absl::StatusOr<std::unique_ptr<FetchSession>> TierManager::BeginFetch(LeaseId id, uint32_t first,
                                                                      uint32_t last,
                                                                      uint32_t part) {
  MutexLock lock(mutex_);
  const auto it = leases_.find(id);
  if (it == leases_.end() || it->second.expiry <= clock_->Now()) {
    return LeaseNotFound();
  }
  const Lease& lease = it->second;
  if (first >= last || last > lease.pins->blocks().size()) {
    return absl::InvalidArgumentError(absl::StrCat("blocks [first_block, last_block) are [", first,
                                                   ", ", last, "), the lease has ",
                                                   lease.pins->blocks().size(), " blocks"));
  }
  const std::vector<uint64_t>& part_bytes = models_[lease.model]->part_bytes;
  KVTIER_RETURN_IF_ERROR(CheckPart(part, part_bytes.size()));
  return std::make_unique<FetchSession>(this, lease.pins, first, last, static_cast<uint16_t>(part),
                                        part_bytes[part], lease.fetch_clock);
}

absl::StatusOr<std::unique_ptr<StoreSession>> TierManager::BeginStore(PromptRef& prompt,
                                                                      uint32_t first,
                                                                      uint32_t count,
                                                                      uint32_t part) {
  const uint64_t end = uint64_t{first} + count;
  if (count == 0 || end > prompt.cursor.blocks()) {
    return absl::InvalidArgumentError(absl::StrCat("block_count is ", count, " from first_block ",
                                                   first, ", the prompt has ",
                                                   prompt.cursor.blocks(), " full blocks"));
  }
  std::vector<std::string_view> identities;
  while (prompt.cursor.position() < end) identities.push_back(prompt.cursor.NextIdentity());

  std::vector<StoreSession::Block> blocks(count);
  std::vector<EntryId> path;
  PathSampler sampler = curve_.Sampler();
  BlockKey key = prompt.cursor.root();
  const Model* model = nullptr;
  SpaceId space = 0;
  {
    MutexLock lock(mutex_);
    KVTIER_ASSIGN_OR_RETURN(model, FindModelLocked(prompt.model));
    KVTIER_RETURN_IF_ERROR(CheckPart(part, model->part_bytes.size()));
    space = TakeSpaceLocked(model->number, prompt.canonical_root);
    EntryId block = kNoEntry;
    for (uint64_t i = 0; i < end; ++i) {
      block = index_.FindChild(block, key, identities[i], space);
      if (block == kNoEntry) break;
      AddPinLocked(block);
      path.push_back(block);
      key = index_.entry(block).key;
      sampler.Take(static_cast<uint32_t>(i), key);
      if (i < first) continue;
      blocks[i - first].entry = block;
      const PartState& state = index_.parts(block)[part];
      if (!state.present()) continue;
      blocks[i - first].outcome = StoreOutcome::kAlreadyPresent;
      blocks[i - first].present_checksum = state.checksum;
      ++counts_.already_present_blocks;
    }
  }
  for (uint64_t i = path.size(); i < end; ++i) {
    const BlockKey parent = key;
    key = ChildKey(parent, identities[i]);
    sampler.Take(static_cast<uint32_t>(i), key);
    if (i < first) continue;
    StoreSession::Block& block = blocks[i - first];
    block.key = key;
    block.parent = parent;
    block.identity = std::string(identities[i]);
  }
  return std::make_unique<StoreSession>(this, space, model->number, static_cast<uint16_t>(part),
                                        model->part_bytes[part], first, std::move(path),
                                        std::move(blocks), sampler.sampled());
}

// --- Dropping

void TierManager::SetLocationLocked(EntryId block, uint16_t part, TierKind kind,
                                    Location location) {
  uint64_t& blocks = models_[index_.entry(block).model]->blocks[static_cast<int>(kind)];
  blocks -= index_.CompleteIn(block, kind);
  index_.SetLocation(block, part, kind, location);
  blocks += index_.CompleteIn(block, kind);
}

void TierManager::DropFromTierLocked(EntryId block, TierKind kind, Erasures* erasures) {
  const int t = static_cast<int>(kind);
  if (kind != TierKind::kSsd) index_.Leave(block, kind);
  const std::span<const PartState> parts = index_.parts(block);
  for (uint16_t part = 0; part < parts.size(); ++part) {
    const Location at = parts[part].at[t];
    if (at == kNoLocation) continue;
    erasures->at[t].push_back(at);
    SetLocationLocked(block, part, kind, kNoLocation);
  }
}

void TierManager::RemoveLocked(EntryId block) {
  const Entry& entry = index_.entry(block);
  const SpaceId space = entry.space;
  if (!entry.detached) {
    if (!entry.hit) ++counts_.never_hit_blocks;
    const bool orphan = entry.depth > 0 && index_.FindKey(entry.parent) == kNoEntry;
    if (orphan) ++counts_.unreachable_blocks;
  }
  index_.Remove(block);
  DropSpaceRefLocked(space);
}

void TierManager::Erase(const Erasures& erasures) {
  for (TierKind kind : kAllTiers) {
    const std::vector<Location>& locations = erasures.at[static_cast<int>(kind)];
    if (!locations.empty()) tier(kind)->Erase(locations);
  }
}

// From here on nothing of these namespaces is found, and nothing can be stored into them: a later
// store begins a new one.
bool TierManager::MarkResetLocked(uint32_t model, const std::string* canonical) {
  bool marked = false;
  if (canonical != nullptr && !FindSpaceLocked(*canonical).has_value()) return false;
  for (auto& [id, space] : spaces_) {
    if (space.model != model || space.reset) continue;
    if (canonical != nullptr && space.canonical != *canonical) continue;
    space.reset = true;
    marked = true;
    HideSpaceLocked(space);
  }
  return marked;
}

// A block of a reset namespace that the sweep has not come to yet must not stand in the way of its
// like.
void TierManager::DetachResetLocked(const BlockKey& key, Erasures* erasures) {
  const EntryId block = index_.FindKey(key);
  if (block == kNoEntry || !spaces_[index_.entry(block).space].reset) return;
  index_.Detach(block);
  SettleLocked(block, erasures);
}

uint64_t TierManager::SweepReset() {
  uint64_t dropped = 0;
  EntryId next = 0;
  bool more = true;
  while (more) {
    Erasures erasures;
    {
      MutexLock lock(mutex_);
      const EntryId stop = std::min<uint64_t>(uint64_t{next} + kSweepStep, index_.end());
      for (; next < stop; ++next) {
        if (!index_.live(next)) continue;
        Entry& entry = index_.entry(next);
        if (entry.detached || !spaces_[entry.space].reset) continue;
        dropped += entry.complete();
        index_.Detach(next);
        SettleLocked(next, &erasures);
      }
      more = next < index_.end();
    }
    Erase(erasures);
  }
  return dropped;
}

// With the writer held up since before the namespace was marked: all that was written is of the old
// one, and of the new one nothing is yet.
absl::Status TierManager::ForgetOnSsd(const ModelId& model, const std::string* canonical) {
  if (ssd_ == nullptr) return absl::OkStatus();
  std::optional<RootFingerprint> root;
  if (canonical != nullptr) {
    root = FingerprintOf(*canonical);
    MutexLock lock(mutex_);
    if (!roots_on_ssd_.contains(*root)) return absl::OkStatus();
  }
  KVTIER_RETURN_IF_ERROR(Annotate(ssd_->Forget(model, root),
                                  "dropped, but what is on SSD may be back after a restart"));
  MutexLock lock(mutex_);
  if (root.has_value()) roots_on_ssd_.erase(*root);
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> TierManager::Reset(const ModelId& id, const std::string* canonical,
                                            bool remove) {
  MutexLock writing(ssd_write_mutex_);
  bool marked = false;
  {
    MutexLock lock(mutex_);
    KVTIER_ASSIGN_OR_RETURN(Model * model, FindModelLocked(id));
    marked = MarkResetLocked(model->number, canonical);
    if (remove) {
      model->removed = true;
      model_numbers_.erase(id);
    }
  }
  const uint64_t dropped = marked ? SweepReset() : 0;
  KVTIER_RETURN_IF_ERROR(ForgetOnSsd(id, canonical));
  return dropped;
}

absl::StatusOr<uint64_t> TierManager::ResetModel(const ModelId& id) {
  return Reset(id, nullptr, /*remove=*/false);
}

absl::StatusOr<uint64_t> TierManager::ResetNamespace(const ModelId& id,
                                                     const std::string& canonical_root) {
  return Reset(id, &canonical_root, /*remove=*/false);
}

absl::StatusOr<uint64_t> TierManager::RemoveModel(const ModelId& id) {
  return Reset(id, nullptr, /*remove=*/true);
}

// --- Figures

absl::StatusOr<HitRatioCurve> TierManager::Curve(const std::optional<ModelId>& model,
                                                 bool since_start) const {
  std::optional<uint32_t> number;
  if (model.has_value()) {
    MutexLock lock(mutex_);
    KVTIER_ASSIGN_OR_RETURN(const Model* known, FindModelLocked(*model));
    number = known->number;
  }
  return curve_.Curve(number, since_start);
}

void TierManager::TellCurveOfCapacity() {
  uint64_t bytes = 0;
  for (TierKind kind : kAllTiers) {
    if (tier(kind) != nullptr) bytes += tier(kind)->usage().capacity_bytes;
  }
  curve_.SetCapacity(bytes);
}

ManagerStats TierManager::stats() const {
  MutexLock lock(mutex_);
  ManagerStats out = counts_;
  for (TierKind kind : kAllTiers) {
    if (tier(kind) == nullptr) continue;
    TierStats& stats = out.tiers[static_cast<int>(kind)];
    stats.on = true;
    stats.usage = tier(kind)->usage();
    stats.blocks = index_.complete_in(kind);
    for (const auto& model : models_) {
      stats.payload_bytes += model->blocks[static_cast<int>(kind)] * model->block_bytes;
    }
    stats.speed = speeds_.speed(kind);
  }
  out.models = model_numbers_.size();
  out.blocks = index_.complete_blocks();
  out.index_bytes = index_.memory_bytes();
  out.identity_bytes = index_.identity_bytes();
  out.leases = leases_.size();
  out.stalled_fetches = speeds_.stalled_fetches();
  out.ssd_segments = log_.size();
  for (const auto& request : write_requests_) {
    out.ssd_waiting_blocks += request->pins->blocks().size() - request->next;
  }
  return out;
}

// No block outlives its parent. With an SSD one may in RAM, where it comes back into the order when
// its writing ends; its ancestors are on SSD then.
void TierManager::CheckOrdersLocked() const {
  if (ssd_ != nullptr) return;
  for (TierKind kind : kMemoryTiers) {
    absl::flat_hash_set<EntryId> newer;
    for (EntryId id = index_.newest(kind); id != kNoEntry; id = index_.NextOlder(id, kind)) {
      newer.insert(id);
      const Entry& entry = index_.entry(id);
      const EntryId parent = entry.depth == 0 ? kNoEntry : index_.FindKey(entry.parent);
      if (parent == kNoEntry || !index_.entry(parent).listed(kind)) continue;
      KVTIER_CHECK(newer.contains(parent));
    }
  }
}

void TierManager::CheckInvariants() const {
  MutexLock lock(mutex_);
  index_.CheckInvariants();
  std::array<uint64_t, kTiers> taken{};  // parts
  uint64_t pinned = 0, entries = 0;
  for (EntryId id = 0; id < index_.end(); ++id) {
    if (!index_.live(id)) continue;
    const Entry& entry = index_.entry(id);
    ++entries;
    pinned += entry.pins > 0;
    KVTIER_CHECK(!entry.moving && !entry.filling && !entry.writing);
    KVTIER_CHECK(entry.in_use() || entry.parts_present > 0);
    KVTIER_CHECK(spaces_.contains(entry.space));
    for (TierKind kind : kMemoryTiers) {
      const bool listed = entry.listed(kind);
      KVTIER_CHECK(listed == (!entry.in_use() && index_.AnyIn(id, kind)));
    }
    for (TierKind kind : kAllTiers) {
      const int t = static_cast<int>(kind);
      for (const PartState& part : index_.parts(id)) taken[t] += part.at[t] != kNoLocation;
    }
    const bool only_memory = ssd_ == nullptr && !entry.detached && entry.depth > 0;
    if (only_memory) KVTIER_CHECK(index_.FindKey(entry.parent) != kNoEntry);
  }
  CheckOrdersLocked();
  KVTIER_CHECK(pinned == counts_.pinned_blocks && leases_.size() == lease_ends_.size());
  uint64_t refs = 0;
  for (const auto& [id, space] : spaces_) refs += space.refs;
  KVTIER_CHECK(refs == entries);  // no store session is open
  uint64_t logged = 0;
  for (const Segment& segment : log_) {
    for (const Segment::Record& record : segment.records) logged += LivesAtLocked(record);
  }
  KVTIER_CHECK(logged == taken[static_cast<int>(TierKind::kSsd)]);
  for (TierKind kind : kMemoryTiers) {
    if (tier(kind) == nullptr) continue;
    const SlotPool& pool = memory_tier(kind)->pool();
    pool.CheckInvariants();
    KVTIER_CHECK(pool.usage().taken_slots == taken[static_cast<int>(kind)]);
  }
}

}  // namespace kvtier
