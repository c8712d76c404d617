#include "gpu/slot_pool.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <thread>
#include <utility>

#include "common/check.h"
#include "common/executor.h"
#include "common/log.h"

#ifndef KVTIER_POISON_FREED
#define KVTIER_POISON_FREED 0
#endif

namespace kvtier {
namespace {

// Overwrites freed slots, so that a use after free shows as a wrong checksum.
constexpr bool kPoisonFreed = KVTIER_POISON_FREED != 0;
constexpr int kPoison = 0xDB;

constexpr uint64_t kGranule = DeviceMemory::kRegionGranule;
constexpr uint64_t kMinExtentBytes = uint64_t{64} << 10;
constexpr uint64_t kMaxExtentBytes = uint64_t{64} << 20;
constexpr uint64_t kExtentsPerPool = 16;
constexpr unsigned kPrefaultThreads = 4;

uint64_t StrideOf(uint64_t bytes) {
  constexpr uint64_t kAlignment = SlotPool::kStrideAlignment;
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

uint64_t ExtentTarget(uint64_t capacity) {
  const uint64_t target = std::clamp(capacity / kExtentsPerPool, kMinExtentBytes, kMaxExtentBytes);
  return target / kGranule * kGranule;
}

// How many slots an extent of this class gets when `available` bytes can be had for it.
uint32_t ExtentSlots(uint64_t capacity, uint64_t stride, uint64_t available) {
  const uint64_t full = std::max<uint64_t>(1, ExtentTarget(capacity) / stride);
  return static_cast<uint32_t>(std::min(full, available / kGranule * kGranule / stride));
}

uint64_t RegionBytes(uint64_t slots, uint64_t stride) {
  return DeviceMemory::RoundUp(slots * stride);
}

}  // namespace

Slot::Slot(Slot&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)), id_(other.id_), bytes_(other.bytes_) {}

Slot& Slot::operator=(Slot&& other) noexcept {
  if (this == &other) return *this;
  if (pool_ != nullptr) pool_->Free(id_);
  pool_ = std::exchange(other.pool_, nullptr);
  id_ = other.id_;
  bytes_ = other.bytes_;
  return *this;
}

Slot::~Slot() {
  if (pool_ != nullptr) pool_->Free(id_);
}

SlotId Slot::Release() {
  KVTIER_CHECK(pool_ != nullptr);
  pool_ = nullptr;
  return id_;
}

SlotPool::SlotPool(DeviceMemory* device, uint64_t capacity_bytes)
    : device_(device), capacity_(capacity_bytes), truncates_(device->truncatable()) {}

SlotPool::~SlotPool() {
  MutexLock lock(mutex_);
  KVTIER_CHECK(taken_slots_ == 0);
  for (const Extent& extent : extents_) {
    KVTIER_CHECK(extent.state != ExtentState::kDraining);
    if (extent.state == ExtentState::kServing) device_->Free(extent.region);
  }
  for (const Stock& stock : stock_) device_->Free(stock.region);
}

// Taking memory

absl::Status SlotPool::Prefault(const Progress& progress) {
  const unsigned threads = std::clamp(std::thread::hardware_concurrency(), 1u, kPrefaultThreads);
  std::vector<absl::Status> results(threads - 1);
  absl::Status status;
  {
    ThreadPool helpers(static_cast<int>(results.size()));
    for (absl::Status& result : results) {
      helpers.Run([this, &result] { result = PrefaultRest(nullptr); });
    }
    status = PrefaultRest(progress);
  }
  for (const absl::Status& result : results) {
    if (status.ok()) status = result;
  }
  KVTIER_RETURN_IF_ERROR(status);
  if (progress) {
    const Usage now = usage();
    progress(now.backed_bytes, now.capacity_bytes);
  }
  return absl::OkStatus();
}

absl::Status SlotPool::PrefaultRest(const Progress& progress) {
  while (true) {
    KVTIER_ASSIGN_OR_RETURN(const bool more, PrefaultOne());
    if (!more) return absl::OkStatus();
    if (!progress) continue;
    const Usage now = usage();
    progress(now.backed_bytes, now.capacity_bytes);
  }
}

// False when there is nothing left to take.
absl::StatusOr<bool> SlotPool::PrefaultOne() {
  MutexLock lock(mutex_);
  if (backed_bytes_ >= capacity_) return false;
  const uint64_t bytes =
      std::min(ExtentTarget(capacity_), (capacity_ - backed_bytes_) / kGranule * kGranule);
  if (bytes == 0) return false;
  backed_bytes_ += bytes;
  ++in_flight_;
  mutex_.Unlock();
  absl::StatusOr<Region> region = device_->Allocate(bytes);
  mutex_.Lock();
  --in_flight_;
  changed_.NotifyAll();
  if (region.ok()) {
    AddStock({*region, std::nullopt});
    return true;
  }
  backed_bytes_ -= bytes;
  return Annotate(region.status(), absl::StrCat("taking ", capacity_, " bytes, of which ",
                                                backed_bytes_, " are there"));
}

// Plans an extent of the class out of what is in reach: capacity not taken yet, stock, and, when
// that is not enough for a full one, empty extents of other classes. Empty when not even one slot
// is. What another domain has used is given up for it, and no more of that than is needed: the
// device may not give as much again.
std::optional<SlotPool::Growth> SlotPool::PlanGrowth(const Class& key) {
  if (backed_bytes_ > capacity_) return std::nullopt;
  const uint64_t budget = capacity_ - backed_bytes_;
  const uint64_t full = RegionBytes(ExtentSlots(capacity_, key.stride, UINT64_MAX), key.stride);
  if (budget + stock_bytes_ < full) ReclaimEmpty(key, full - budget - stock_bytes_);

  Growth growth;
  growth.key = key;
  growth.slots = ExtentSlots(capacity_, key.stride, budget + stock_bytes_);
  if (growth.slots == 0) return std::nullopt;
  growth.bytes = RegionBytes(growth.slots, key.stride);
  growth.base = TakeStock(growth.bytes, key.domain);
  uint64_t own = growth.base.bytes;
  while (own + budget < growth.bytes) {
    growth.given_up.push_back(TakeStock(growth.bytes - own - budget, std::nullopt));
    KVTIER_CHECK(growth.given_up.back().bytes > 0);
    own += growth.given_up.back().bytes;
  }
  const uint64_t charge = growth.bytes > own ? growth.bytes - own : 0;
  backed_bytes_ += charge;
  growth.held_bytes = own + charge;
  return growth;
}

bool SlotPool::Grow(const Growth& growth) {
  growing_ = true;
  mutex_.Unlock();
  for (const Region& region : growth.given_up) device_->Free(region);
  absl::StatusOr<Region> region = growth.base;
  if (growth.base.bytes == 0) {
    region = device_->Allocate(growth.bytes);
  } else if (growth.base.bytes != growth.bytes) {
    region = device_->Reallocate(growth.base, growth.bytes);
  }
  if (region.ok() && !growth.key.domain.common()) device_->Assign(*region, growth.key.domain);
  mutex_.Lock();
  growing_ = false;
  changed_.NotifyAll();
  backed_bytes_ -= growth.held_bytes;
  if (region.ok()) {
    backed_bytes_ += growth.bytes;
    Install(growth, *region);
  } else if (!refused_) {
    Log(LogLevel::kWarning, "no memory for more slots",
        {{"device", device_->name()}, {"error", std::string(region.status().message())}});
  }
  refused_ = !region.ok();
  return region.ok();
}

void SlotPool::Install(const Growth& growth, const Region& region) {
  uint32_t id = static_cast<uint32_t>(extents_.size());
  if (vacant_.empty()) {
    extents_.emplace_back();
  } else {
    id = vacant_.back();
    vacant_.pop_back();
  }
  Extent& extent = extents_[id];
  extent.region = region;
  extent.stride = growth.key.stride;
  extent.domain = growth.key.domain;
  extent.slots = growth.slots;
  extent.slack.assign(growth.slots, kFreeSlot);
  extent.owners.assign(growth.slots, kNoOwner);
  ++classes_[growth.key].extents;
  Serve(id);
}

// Of what suits `domain`, or of all stock: the smallest region of at least `wanted` bytes, else the
// largest there is. Of 0 bytes when there is none.
Region SlotPool::TakeStock(uint64_t wanted, std::optional<MemoryDomain> domain) {
  const auto better = [&](const Stock& a, const Stock& b) {
    const bool a_suits = !domain || a.Suits(*domain);
    const bool b_suits = !domain || b.Suits(*domain);
    if (a_suits != b_suits) return a_suits;
    const bool a_enough = a.region.bytes >= wanted;
    const bool b_enough = b.region.bytes >= wanted;
    if (a_enough != b_enough) return a_enough;
    return a_enough ? a.region.bytes < b.region.bytes : a.region.bytes > b.region.bytes;
  };
  const auto best = std::min_element(stock_.begin(), stock_.end(), better);
  if (best == stock_.end() || (domain && !best->Suits(*domain))) return Region{};
  const Region region = best->region;
  *best = stock_.back();
  stock_.pop_back();
  stock_bytes_ -= region.bytes;
  return region;
}

void SlotPool::AddStock(const Stock& stock) {
  stock_.push_back(stock);
  stock_bytes_ += stock.region.bytes;
}

// Empty extents of other classes become stock until there are `bytes` more of it, or no such
// extents.
void SlotPool::ReclaimEmpty(const Class& except, uint64_t bytes) {
  const uint64_t enough = stock_bytes_ + bytes;
  for (uint32_t id = 0; id < extents_.size() && stock_bytes_ < enough; ++id) {
    const Extent& extent = extents_[id];
    if (extent.state != ExtentState::kServing || extent.live > 0) continue;
    if (extent.key() != except) AddStock(Detach(id));
  }
}

// The empty extent leaves its class; its memory is the caller's.
SlotPool::Stock SlotPool::Detach(uint32_t id) {
  Extent& extent = extents_[id];
  KVTIER_CHECK(extent.live == 0);
  const auto size_class = classes_.find(extent.key());
  size_class->second.free_slots -= extent.free.size();
  extent.free.clear();
  Relist(id);
  if (--size_class->second.extents == 0) classes_.erase(size_class);
  const Stock stock{extent.region, extent.domain};
  extent = Extent{};
  vacant_.push_back(id);
  return stock;
}

// Slots

// False when the pool is over capacity and another such slot would be beyond the new limit.
bool SlotPool::Admits(uint64_t stride) const {
  return backed_bytes_ <= capacity_ || used_bytes_ - draining_bytes_ + stride <= capacity_;
}

Slot SlotPool::Allocate(uint64_t bytes, MemoryDomain domain) {
  KVTIER_CHECK(bytes > 0);
  MutexLock lock(mutex_);
  while (bytes <= capacity_) {
    const Class key{StrideOf(bytes), domain};
    if (!Admits(key.stride)) break;
    if (Slot slot = TakeFree(key, bytes)) return slot;
    if (!growing_) {
      if (const std::optional<Growth> growth = PlanGrowth(key)) {
        if (!Grow(*growth)) break;
        continue;
      }
      if (in_flight_ == 0) break;
    }
    changed_.Wait(mutex_);
  }
  return Slot();
}

Slot SlotPool::TakeFree(const Class& key, uint64_t bytes) {
  const auto size_class = classes_.find(key);
  if (size_class == classes_.end() || size_class->second.free_slots == 0) return Slot();
  const auto& lists = size_class->second.lists;
  const auto fullest =
      std::find_if(lists.rbegin(), lists.rend(), [](const auto& list) { return !list.empty(); });
  KVTIER_CHECK(fullest != lists.rend());
  const uint32_t id = fullest->back();
  Extent& extent = extents_[id];
  const uint32_t index = extent.free.back();
  extent.free.pop_back();
  extent.slack[index] = static_cast<uint16_t>(key.stride - bytes);
  extent.owners[index] = kNoOwner;
  ++extent.live;
  ++extent.unowned;
  --size_class->second.free_slots;
  ++taken_slots_;
  used_bytes_ += key.stride;
  Relist(id);
  return Slot(this, SlotId{id, index}, {extent.region.base + index * key.stride, bytes});
}

void SlotPool::Free(SlotId id) {
  if (kPoisonFreed && device_->host_addressable()) {
    const std::span<std::byte> bytes = Bytes(id);
    std::memset(bytes.data(), kPoison, bytes.size());
  }
  MutexLock lock(mutex_);
  Extent& extent = Taken(id);
  SizeClass& size_class = classes_.find(extent.key())->second;
  extent.slack[id.index] = kFreeSlot;
  if (extent.owners[id.index] == kNoOwner) --extent.unowned;
  --extent.live;
  --taken_slots_;
  used_bytes_ -= extent.stride;
  if (extent.state == ExtentState::kDraining && id.index >= extent.drain_from) {
    --extent.drain_live;
    --size_class.drain_live;
    draining_bytes_ -= extent.stride;
  } else {
    extent.free.push_back(id.index);
    ++size_class.free_slots;
    Relist(id.extent);
  }
  if (extent.live > 0 || extent.state == ExtentState::kDraining || Excess() == 0) return;
  const Region emptied[] = {Detach(id.extent).region};
  Release(emptied);
}

const SlotPool::Extent* SlotPool::FindTaken(SlotId id) const {
  if (id.extent >= extents_.size()) return nullptr;
  const Extent& extent = extents_[id.extent];
  if (id.index >= extent.slots || extent.slack[id.index] == kFreeSlot) return nullptr;
  return &extent;
}

SlotPool::Extent& SlotPool::Taken(SlotId id) {
  KVTIER_CHECK(FindTaken(id) != nullptr);
  return extents_[id.extent];
}

std::span<std::byte> SlotPool::Find(SlotId id) const {
  MutexLock lock(mutex_);
  const Extent* extent = FindTaken(id);
  if (extent == nullptr) return {};
  return {extent->region.base + id.index * extent->stride,
          extent->stride - extent->slack[id.index]};
}

SlotPool::Place SlotPool::Locate(SlotId id) const {
  MutexLock lock(mutex_);
  const Extent* extent = FindTaken(id);
  KVTIER_CHECK(extent != nullptr);
  const uint64_t offset = id.index * extent->stride;
  return {{extent->region.base + offset, extent->stride - extent->slack[id.index]},
          extent->region.id,
          offset,
          extent->domain};
}

std::span<std::byte> SlotPool::Bytes(SlotId id) const { return Locate(id).bytes; }

void SlotPool::SetOwner(SlotId id, OwnerTag owner) {
  MutexLock lock(mutex_);
  Extent& extent = Taken(id);
  OwnerTag& current = extent.owners[id.index];
  if (current == kNoOwner) --extent.unowned;
  if (owner == kNoOwner) ++extent.unowned;
  current = owner;
}

// Puts the extent into the list that fits how full it is.
void SlotPool::Relist(uint32_t id) {
  Extent& extent = extents_[id];
  int8_t list = kNotListed;
  if (!extent.free.empty()) {
    constexpr uint64_t kSteps = kFillLists - 1;
    list =
        extent.live == 0 ? 0 : static_cast<int8_t>(1 + (extent.live - 1) * kSteps / extent.slots);
  }
  if (list == extent.list) return;
  auto& lists = classes_.find(extent.key())->second.lists;
  if (extent.list != kNotListed) {
    std::vector<uint32_t>& from = lists[static_cast<size_t>(extent.list)];
    from[extent.list_position] = from.back();
    extents_[from.back()].list_position = extent.list_position;
    from.pop_back();
  }
  extent.list = list;
  if (list == kNotListed) return;
  std::vector<uint32_t>& to = lists[static_cast<size_t>(list)];
  extent.list_position = static_cast<uint32_t>(to.size());
  to.push_back(id);
}

// Sizes

bool SlotPool::CanHold(uint64_t bytes) const {
  MutexLock lock(mutex_);
  return bytes <= capacity_ && ExtentSlots(capacity_, StrideOf(bytes), capacity_) > 0;
}

uint64_t SlotPool::SlotsFor(uint64_t capacity_bytes, uint64_t bytes) {
  return SetsFor(capacity_bytes, {&bytes, 1});
}

// Goes through the extents that such a use of the pool would lead to.
uint64_t SlotPool::SetsFor(uint64_t capacity_bytes, std::span<const uint64_t> bytes) {
  struct Use {
    uint64_t stride;
    uint64_t per_set = 0;
    uint64_t slots = 0;
    uint64_t sets() const { return slots / per_set; }
  };
  std::vector<Use> uses;
  for (const uint64_t size : bytes) {
    KVTIER_CHECK(size > 0);
    if (size > capacity_bytes) return 0;
    const uint64_t stride = StrideOf(size);
    auto use = std::find_if(uses.begin(), uses.end(),
                            [stride](const Use& u) { return u.stride == stride; });
    if (use == uses.end()) use = uses.insert(use, Use{stride});
    ++use->per_set;
  }
  if (uses.empty()) return 0;
  for (uint64_t rest = capacity_bytes;;) {
    const auto shortest = std::min_element(
        uses.begin(), uses.end(), [](const Use& a, const Use& b) { return a.sets() < b.sets(); });
    const uint32_t slots = ExtentSlots(capacity_bytes, shortest->stride, rest);
    if (slots == 0) return shortest->sets();
    shortest->slots += slots;
    rest -= RegionBytes(slots, shortest->stride);
  }
}

SlotPool::Usage SlotPool::usage() const {
  MutexLock lock(mutex_);
  Usage usage;
  usage.capacity_bytes = capacity_;
  usage.backed_bytes = backed_bytes_;
  usage.used_bytes = used_bytes_;
  usage.taken_slots = taken_slots_;
  usage.extents = extents_.size() - vacant_.size() + stock_.size();
  return usage;
}

std::vector<SlotPool::DomainUsage> SlotPool::UsageByDomain() const {
  MutexLock lock(mutex_);
  std::map<MemoryDomain, DomainUsage> by_domain;
  for (const Extent& extent : extents_) {
    if (extent.state == ExtentState::kVacant) continue;
    DomainUsage& usage = by_domain[extent.domain];
    usage.backed_bytes += extent.region.bytes;
    usage.used_bytes += extent.live * extent.stride;
  }
  std::vector<DomainUsage> out;
  for (const auto& [domain, usage] : by_domain) {
    out.push_back({domain, usage.backed_bytes, usage.used_bytes});
  }
  return out;
}

// Giving memory back

uint64_t SlotPool::Excess() const {
  const uint64_t staying = backed_bytes_ - leaving_bytes_;
  return staying > capacity_ ? staying - capacity_ : 0;
}

bool SlotPool::OverCapacity() const {
  MutexLock lock(mutex_);
  return Excess() > 0;
}

void SlotPool::SetCapacity(uint64_t capacity_bytes) {
  MutexLock lock(mutex_);
  capacity_ = capacity_bytes;
  // What is being taken under the old limit must be seen here.
  while (backed_bytes_ > capacity_ && (growing_ || in_flight_ > 0)) changed_.Wait(mutex_);
  ReleaseExcess();
}

// Stock first, then empty extents, as far as the pool is over capacity.
void SlotPool::ReleaseExcess() {
  const uint64_t excess = Excess();
  if (stock_bytes_ < excess) ReclaimEmpty(/*except=*/Class{}, excess - stock_bytes_);
  std::vector<Region> regions;
  for (uint64_t released = 0; released < excess && !stock_.empty();) {
    regions.push_back(TakeStock(excess - released, std::nullopt));
    released += regions.back().bytes;
  }
  Release(regions);
}

void SlotPool::Release(std::span<const Region> regions) {
  uint64_t bytes = 0;
  for (const Region& region : regions) bytes += region.bytes;
  if (bytes == 0) return;
  leaving_bytes_ += bytes;
  ++in_flight_;
  mutex_.Unlock();
  for (const Region& region : regions) device_->Free(region);
  mutex_.Lock();
  --in_flight_;
  leaving_bytes_ -= bytes;
  backed_bytes_ -= bytes;
  changed_.NotifyAll();
}

std::optional<SlotPool::Drain> SlotPool::BeginDrain(uint64_t wanted_bytes, MemoryDomain domain) {
  MutexLock lock(mutex_);
  const Class wanted{StrideOf(wanted_bytes), domain};
  // Over capacity, moved slots must be admitted where they go.
  if (Excess() > 0 && used_bytes_ - draining_bytes_ > capacity_) return std::nullopt;
  std::optional<Candidate> best;
  for (uint32_t id = 0; id < extents_.size(); ++id) {
    const Extent& extent = extents_[id];
    if (extent.state != ExtentState::kServing || extent.key() == wanted) continue;
    const std::optional<Candidate> candidate = Consider(id, wanted_bytes > 0);
    if (!candidate) continue;
    // The least to move for what is freed.
    const auto cost = [](const Candidate& c, const Candidate& other) {
      return static_cast<double>(c.moved_bytes) * static_cast<double>(other.freed_bytes);
    };
    if (!best || cost(*candidate, *best) < cost(*best, *candidate) ||
        (cost(*candidate, *best) == cost(*best, *candidate) &&
         candidate->freed_bytes > best->freed_bytes)) {
      best = candidate;
    }
  }
  if (!best) return std::nullopt;
  return StartDrain(*best);
}

// From which slot on the extent would be drained; empty when that cannot be.
std::optional<uint32_t> SlotPool::DrainStart(const Extent& extent, bool whole) const {
  const SizeClass& size_class = classes_.find(extent.key())->second;
  // The drained slots, free or moved, are all taken out of the class's free ones.
  const uint64_t spare = size_class.free_slots > size_class.drain_live
                             ? size_class.free_slots - size_class.drain_live
                             : 0;
  const uint64_t excess = Excess();
  if (whole || excess == 0 || !truncates_) {
    if (extent.slots > spare) return std::nullopt;
    return 0;
  }
  const uint64_t kept_bytes =
      extent.region.bytes > excess ? (extent.region.bytes - excess) / kGranule * kGranule : 0;
  const uint64_t start =
      std::max(kept_bytes / extent.stride, extent.slots > spare ? extent.slots - spare : 0);
  if (RegionBytes(start, extent.stride) >= extent.region.bytes) return std::nullopt;
  return static_cast<uint32_t>(start);
}

std::optional<SlotPool::Candidate> SlotPool::Consider(uint32_t id, bool whole) const {
  const Extent& extent = extents_[id];
  const std::optional<uint32_t> start = DrainStart(extent, whole);
  if (!start) return std::nullopt;
  Candidate candidate;
  candidate.extent = id;
  candidate.drain_from = *start;
  candidate.freed_bytes = extent.region.bytes - RegionBytes(*start, extent.stride);
  if (*start == 0) {
    if (extent.unowned > 0) return std::nullopt;
    candidate.moved_bytes = extent.live * extent.stride;
    return candidate;
  }
  for (uint32_t index = *start; index < extent.slots; ++index) {
    if (extent.slack[index] == kFreeSlot) continue;
    if (extent.owners[index] == kNoOwner) return std::nullopt;
    candidate.moved_bytes += extent.stride;
  }
  return candidate;
}

SlotPool::Drain SlotPool::StartDrain(const Candidate& candidate) {
  Extent& extent = extents_[candidate.extent];
  SizeClass& size_class = classes_.find(extent.key())->second;
  extent.state = ExtentState::kDraining;
  extent.drain_from = candidate.drain_from;
  const size_t free_before = extent.free.size();
  std::erase_if(extent.free,
                [&candidate](uint32_t index) { return index >= candidate.drain_from; });
  size_class.free_slots -= free_before - extent.free.size();
  Relist(candidate.extent);

  Drain drain;
  drain.extent = candidate.extent;
  drain.domain = extent.domain;
  for (uint32_t index = candidate.drain_from; index < extent.slots; ++index) {
    if (extent.slack[index] == kFreeSlot) continue;
    drain.live.push_back({SlotId{candidate.extent, index}, extent.owners[index],
                          extent.stride - extent.slack[index]});
  }
  extent.drain_live = static_cast<uint32_t>(drain.live.size());
  size_class.drain_live += drain.live.size();
  draining_bytes_ += drain.live.size() * extent.stride;
  return drain;
}

void SlotPool::EndDrain(uint32_t id) {
  MutexLock lock(mutex_);
  KVTIER_CHECK(id < extents_.size() && extents_[id].state == ExtentState::kDraining);
  Extent& extent = extents_[id];
  if (extent.drain_live > 0) {
    classes_.find(extent.key())->second.drain_live -= extent.drain_live;
    draining_bytes_ -= extent.drain_live * extent.stride;
    Serve(id);
  } else if (extent.drain_from > 0) {
    if (Excess() > 0) CutTail(id);
    Serve(id);
  } else {
    AddStock(Detach(id));
  }
  ReleaseExcess();
}

// Shrinks a drained extent to the slots that stay.
void SlotPool::CutTail(uint32_t id) {
  Extent& extent = extents_[id];
  const uint32_t slots = extent.drain_from;
  const uint64_t bytes = RegionBytes(slots, extent.stride);
  const uint64_t cut = extent.region.bytes - bytes;
  Region region = extent.region;
  leaving_bytes_ += cut;
  ++in_flight_;
  mutex_.Unlock();
  const absl::Status status = device_->Truncate(&region, bytes);
  mutex_.Lock();
  --in_flight_;
  leaving_bytes_ -= cut;
  changed_.NotifyAll();
  if (!status.ok()) {
    truncates_ = false;  // from now on whole extents are drained, so that a shrink comes to an end
    Log(LogLevel::kWarning, "an extent could not be shrunk",
        {{"device", device_->name()}, {"error", std::string(status.message())}});
    return;
  }
  backed_bytes_ -= cut;
  extent.region = region;
  extent.slots = slots;
  extent.slack.resize(slots);
  extent.owners.resize(slots);
}

// All slots of the extent that are not taken are there to be given out, the first one first.
void SlotPool::Serve(uint32_t id) {
  Extent& extent = extents_[id];
  SizeClass& size_class = classes_.find(extent.key())->second;
  size_class.free_slots -= extent.free.size();
  extent.free.clear();
  extent.free.reserve(extent.slots - extent.live);
  for (uint32_t index = extent.slots; index-- > 0;) {
    if (extent.slack[index] == kFreeSlot) extent.free.push_back(index);
  }
  size_class.free_slots += extent.free.size();
  extent.state = ExtentState::kServing;
  extent.drain_live = 0;
  Relist(id);
}

// Checks

void SlotPool::CheckExtent(uint32_t id) const {
  const Extent& extent = extents_[id];
  KVTIER_CHECK(extent.region.bytes == RegionBytes(extent.slots, extent.stride));
  KVTIER_CHECK(extent.slack.size() == extent.slots && extent.owners.size() == extent.slots);
  const bool draining = extent.state == ExtentState::kDraining;
  const uint32_t given_out_below = draining ? extent.drain_from : extent.slots;
  uint32_t live = 0, unowned = 0, drain_live = 0, free = 0;
  for (uint32_t index = 0; index < extent.slots; ++index) {
    const bool taken = extent.slack[index] != kFreeSlot;
    live += taken;
    unowned += taken && extent.owners[index] == kNoOwner;
    drain_live += taken && index >= given_out_below;
    free += !taken && index < given_out_below;
  }
  KVTIER_CHECK(extent.live == live && extent.unowned == unowned);
  KVTIER_CHECK(extent.drain_live == drain_live && extent.free.size() == free);
  std::vector<uint32_t> listed = extent.free;
  std::sort(listed.begin(), listed.end());
  KVTIER_CHECK(std::adjacent_find(listed.begin(), listed.end()) == listed.end());
  for (const uint32_t index : listed) {
    KVTIER_CHECK(index < given_out_below && extent.slack[index] == kFreeSlot);
  }
  const SizeClass& size_class = classes_.at(extent.key());
  KVTIER_CHECK((extent.list == kNotListed) == extent.free.empty());
  if (extent.list == kNotListed) return;
  KVTIER_CHECK((extent.list == 0) == (extent.live == 0));
  KVTIER_CHECK(size_class.lists[static_cast<size_t>(extent.list)].at(extent.list_position) == id);
}

void SlotPool::CheckInvariants() const {
  MutexLock lock(mutex_);
  uint64_t region_bytes = 0, used = 0, draining = 0, taken = 0, vacant = 0;
  absl::flat_hash_map<Class, SizeClass> sums;
  for (uint32_t id = 0; id < extents_.size(); ++id) {
    const Extent& extent = extents_[id];
    vacant += extent.state == ExtentState::kVacant;
    if (extent.state == ExtentState::kVacant) continue;
    CheckExtent(id);
    region_bytes += extent.region.bytes;
    used += extent.live * extent.stride;
    draining += extent.drain_live * extent.stride;
    taken += extent.live;
    SizeClass& sum = sums[extent.key()];
    ++sum.extents;
    sum.free_slots += extent.free.size();
    sum.drain_live += extent.drain_live;
  }
  uint64_t stock = 0;
  for (const Stock& piece : stock_) stock += piece.region.bytes;
  KVTIER_CHECK(stock == stock_bytes_ && vacant == vacant_.size());
  KVTIER_CHECK(used == used_bytes_ && draining == draining_bytes_ && taken == taken_slots_);
  // What is being taken or given back is in neither sum.
  KVTIER_CHECK(region_bytes + stock <= backed_bytes_);
  if (!growing_ && in_flight_ == 0) KVTIER_CHECK(region_bytes + stock == backed_bytes_);
  KVTIER_CHECK(sums.size() == classes_.size());
  for (const auto& [key, sum] : sums) {
    const SizeClass& size_class = classes_.at(key);
    KVTIER_CHECK(size_class.extents == sum.extents && size_class.free_slots == sum.free_slots);
    KVTIER_CHECK(size_class.drain_live == sum.drain_live);
  }
}

}  // namespace kvtier
