#include "tests/support/fake_log_tier.h"

#include <algorithm>
#include <utility>

#include "common/check.h"

namespace kvtier {
namespace {

constexpr int kIndexBits = 24;
constexpr uint64_t kIndexMask = (uint64_t{1} << kIndexBits) - 1;

// Not `depth` and `carried`: they do not say whose bytes these are.
bool SamePart(const PartIdentity& a, const PartIdentity& b) {
  return a.model == b.model && a.root == b.root && a.key == b.key && a.parent == b.parent &&
         a.identity == b.identity && a.part == b.part && a.part_count == b.part_count;
}

}  // namespace

FakeMedium::Record* FakeMedium::Find(Location location) {
  const auto segment = segments_.find(location >> kIndexBits);
  const uint64_t index = location & kIndexMask;
  if (segment == segments_.end() || index >= segment->second.records.size()) return nullptr;
  Record* const record = segment->second.records[index].get();
  return record->erased ? nullptr : record;
}

void FakeMedium::Drop(uint64_t number) {
  bytes_ -= segments_.at(number).bytes;
  segments_.erase(number);
}

FakeLogTier::FakeLogTier(std::shared_ptr<FakeMedium> medium, uint64_t capacity_bytes,
                         uint64_t segment_bytes)
    : keep_(std::move(medium)),
      medium_(*keep_),
      segment_bytes_(segment_bytes),
      capacity_bytes_(capacity_bytes) {}

void FakeLogTier::Write(std::span<WriteOp> ops, TimePoint /*deadline*/) {
  if (ops.empty()) return;
  write_gate_.Pass();
  const absl::Status status = WriteSegment(ops);
  for (WriteOp& op : ops) {
    op.status = op.from.empty()
                    ? absl::InvalidArgumentError("a part of 0 bytes cannot be written; at least 1")
                    : status;
  }
}

absl::Status FakeLogTier::WriteSegment(std::span<WriteOp> ops) {
  MutexLock lock(medium_.mutex_);
  KVTIER_CHECK(recovered_);
  ++counters_.writes;
  KVTIER_RETURN_IF_ERROR(write_failure_.Take());
  KVTIER_RETURN_IF_ERROR(writable_);
  KVTIER_RETURN_IF_ERROR(CheckRoom(ops));
  Append(ops);
  return absl::OkStatus();
}

absl::Status FakeLogTier::CheckRoom(std::span<const WriteOp> ops) const {
  const uint64_t bytes = BytesFor(ops);
  if ((ops.size() > 1 && bytes > segment_bytes_) || bytes > capacity_bytes_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a batch of ", bytes, " bytes is above the segment's ", segment_bytes_,
                     " bytes or the capacity of ", capacity_bytes_, " bytes"));
  }
  if (medium_.bytes_ > capacity_bytes_ + segment_bytes_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no room for ", bytes, " bytes: ", medium_.bytes_, " of the capacity of ",
                     capacity_bytes_, " bytes are used"));
  }
  return absl::OkStatus();
}

void FakeLogTier::Append(std::span<WriteOp> ops) {
  FakeMedium::Segment segment;
  const uint64_t number = medium_.next_segment_++;
  for (WriteOp& op : ops) {
    if (op.from.empty()) continue;
    auto record = std::make_unique<FakeMedium::Record>();
    record->identity = std::string(op.id.identity);
    record->id = op.id;
    record->id.identity = record->identity;
    record->bytes.assign(op.from.begin(), op.from.end());
    record->checksum = op.checksum;
    op.location = number << kIndexBits | segment.records.size();
    segment.bytes += op.from.size();
    segment.records.push_back(std::move(record));
  }
  if (segment.records.empty()) return;
  KVTIER_CHECK(segment.records.size() <= kIndexMask);
  segment.live = segment.records.size();
  ++counters_.segments_written;
  counters_.bytes_written += segment.bytes;
  medium_.bytes_ += segment.bytes;
  medium_.segments_.emplace(number, std::move(segment));
}

void FakeLogTier::Read(std::span<ReadOp> ops, TimePoint /*deadline*/) {
  if (ops.empty()) return;
  read_gate_.Pass();
  for (ReadOp& op : ops) op.status = ReadPart(op);
}

absl::Status FakeLogTier::ReadPart(const ReadOp& op) {
  MutexLock lock(medium_.mutex_);
  KVTIER_CHECK(recovered_);
  ++counters_.reads;
  KVTIER_RETURN_IF_ERROR(read_failure_.Take());
  const FakeMedium::Record* const record = medium_.Find(op.location);
  if (record == nullptr || !SamePart(record->id, op.id) || record->bytes.size() != op.to.size()) {
    return absl::NotFoundError(
        absl::StrCat("no such part of ", op.to.size(), " bytes at this location"));
  }
  std::copy(record->bytes.begin(), record->bytes.end(), op.to.begin());
  if (record->checksum != op.checksum ||
      PayloadChecksum(op.to.data(), op.to.size()) != op.checksum) {
    return absl::DataLossError("other bytes at this location than were stored");
  }
  return absl::OkStatus();
}

void FakeLogTier::Erase(std::span<const Location> locations) {
  MutexLock lock(medium_.mutex_);
  KVTIER_CHECK(recovered_ || locations.empty());
  for (const Location location : locations) {
    FakeMedium::Record* const record = medium_.Find(location);
    KVTIER_CHECK(record != nullptr);  // each location once
    record->erased = true;
    if (--medium_.segments_.at(location >> kIndexBits).live == 0) {
      medium_.Drop(location >> kIndexBits);
    }
  }
}

TierUsage FakeLogTier::usage() const {
  MutexLock lock(medium_.mutex_);
  return {capacity_bytes_, medium_.bytes_, medium_.bytes_};
}

void FakeLogTier::SetCapacity(uint64_t bytes) {
  MutexLock lock(medium_.mutex_);
  capacity_bytes_ = bytes;
}

uint64_t FakeLogTier::BlocksFor(std::span<const uint64_t> part_bytes,
                                uint64_t /*identity_bytes*/) const {
  uint64_t block_bytes = 0;
  for (const uint64_t bytes : part_bytes) block_bytes += bytes;
  MutexLock lock(medium_.mutex_);
  return block_bytes == 0 ? 0 : capacity_bytes_ / block_bytes;
}

// The lock is not held while the caller looks at what there is: it may ask for usage().
void FakeLogTier::Recover(const std::function<void(std::span<const StoredPart>)>& segment) {
  for (const std::vector<StoredPart>& parts : ReviveSegments()) segment(parts);
}

std::vector<std::vector<StoredPart>> FakeLogTier::ReviveSegments() {
  MutexLock lock(medium_.mutex_);
  KVTIER_CHECK(!recovered_);
  recovered_ = true;
  std::vector<std::vector<StoredPart>> found;
  std::vector<uint64_t> dead;
  for (auto& [number, segment] : medium_.segments_) {
    std::vector<StoredPart> parts;
    for (size_t i = 0; i < segment.records.size(); ++i) {
      FakeMedium::Record& record = *segment.records[i];
      record.erased = record.forgotten;
      if (record.erased) continue;
      parts.push_back({record.id, number << kIndexBits | i, record.bytes.size(), record.checksum});
    }
    segment.live = parts.size();
    if (parts.empty()) {
      dead.push_back(number);
    } else {
      found.push_back(std::move(parts));
    }
  }
  for (const uint64_t number : dead) medium_.Drop(number);
  return found;
}

uint64_t FakeLogTier::BytesFor(std::span<const WriteOp> ops) const {
  uint64_t bytes = 0;
  for (const WriteOp& op : ops) bytes += op.from.size();
  return bytes;
}

uint64_t FakeLogTier::SegmentBytes(Location location) const {
  MutexLock lock(medium_.mutex_);
  const auto segment = medium_.segments_.find(location >> kIndexBits);
  return segment == medium_.segments_.end() ? 0 : segment->second.bytes;
}

absl::Status FakeLogTier::Forget(const ModelId& model, const std::optional<RootFingerprint>& root) {
  MutexLock lock(medium_.mutex_);
  KVTIER_CHECK(recovered_);
  KVTIER_RETURN_IF_ERROR(writable_);
  for (auto& [number, segment] : medium_.segments_) {
    for (const std::unique_ptr<FakeMedium::Record>& record : segment.records) {
      if (record->id.model == model && (!root || record->id.root == *root)) {
        record->forgotten = true;
      }
    }
  }
  return absl::OkStatus();
}

absl::Status FakeLogTier::writable() const {
  MutexLock lock(medium_.mutex_);
  return writable_;
}

void FakeLogTier::Maintain() {
  MutexLock lock(medium_.mutex_);
  ++counters_.maintains;
}

void FakeLogTier::FailWrites(uint64_t calls, absl::Status status) {
  MutexLock lock(medium_.mutex_);
  write_failure_ = {calls, std::move(status)};
}

void FakeLogTier::FailReads(uint64_t parts, absl::Status status) {
  MutexLock lock(medium_.mutex_);
  read_failure_ = {parts, std::move(status)};
}

void FakeLogTier::SetWritable(absl::Status status) {
  MutexLock lock(medium_.mutex_);
  writable_ = std::move(status);
}

FakeLogTier::Counters FakeLogTier::counters() const {
  MutexLock lock(medium_.mutex_);
  Counters counters = counters_;
  counters.segments = medium_.segments_.size();
  return counters;
}

absl::Status FakeLogTier::Failure::Take() {
  if (left == 0) return absl::OkStatus();
  --left;
  return status;
}

}  // namespace kvtier
