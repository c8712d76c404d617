// The bytes of the SSD tier, as docs/FORMATS.md draws them: keys of records, records, and the list
// of records that each file carries. Pure; no I/O. Everything is little-endian but the keys.
//
// Decoders take any bytes: they return DATA_LOSS for what does not verify, UNIMPLEMENTED for what a
// newer version wrote, and views into the bytes they were given otherwise.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "storage/tier.h"

namespace kvtier {

// Goes up when an older program would misread what a newer one writes.
inline constexpr uint16_t kSsdFormatVersion = 1;

// A record is a head (a header of fixed size and the identity) and a body, the payload as it is:
// two entries next to each other, so that a payload is written from where it lies.
inline constexpr size_t kRecordHeaderBytes = 136;
// `checksum` is XXH3-64 of the payload.
std::string EncodeRecordHead(const PartIdentity& id, uint64_t payload_bytes, uint64_t checksum);

struct RecordHead {
  PartIdentity id;  // `identity` views the bytes that were decoded
  uint64_t payload_bytes = 0;
  uint64_t checksum = 0;
};
absl::StatusOr<RecordHead> DecodeRecordHead(std::string_view bytes);
// DATA_LOSS with the first field that differs, `depth` and `carried` aside: they do not say whose
// bytes these are.
absl::Status CheckSamePart(const PartIdentity& stored, const PartIdentity& asked);

// Batch numbers only grow; a record is the `index`-th of its batch.
inline constexpr int kIndexBits = 24;
inline constexpr uint32_t kMaxRecords = (1u << kIndexBits) - 1;  // of a file
inline constexpr uint64_t kMaxBatch = (uint64_t{1} << (64 - kIndexBits)) - 1;
inline constexpr Location MakeLocation(uint64_t batch, uint32_t index) {
  return batch << kIndexBits | index;
}
inline constexpr uint64_t BatchOf(Location location) { return location >> kIndexBits; }
inline constexpr uint32_t IndexOf(Location location) { return location & kMaxRecords; }

// Keys sort as batch and index do. Below and above those of a batch are two that mark its bounds.
inline constexpr size_t kRecordKeyBytes = 12;
std::string RecordKey(uint64_t batch, uint32_t index);
std::string BeginKey(uint64_t batch);
std::string EndKey(uint64_t batch);

// Records of a model (and root) in batches before `batch` are not to come back. All of it is in the
// key, so that it is known as long as the file is listed, readable or not.
struct Tombstone {
  uint64_t batch = 0;
  ModelId model;
  std::optional<RootFingerprint> root;
};
std::string TombstoneKey(const Tombstone& tombstone);

// What a file is, by its smallest key. Every version's keys begin with the batch.
struct FileKey {
  uint64_t batch = 0;
  bool known = false;                  // false: this version does not write such keys
  std::optional<Tombstone> tombstone;  // else it is a segment
};
// Empty for what no version writes.
std::optional<FileKey> ParseFileKey(std::string_view smallest_key);

// The list of a segment's records.
struct SegmentList {
  uint64_t batch = 0;
  int64_t created_unix_seconds = 0;
  std::vector<StoredPart> parts;
};
std::string EncodeSegmentList(uint64_t batch, int64_t created_unix_seconds,
                              std::span<const StoredPart> parts);
absl::StatusOr<SegmentList> DecodeSegmentList(std::string_view bytes);
// A list's bytes: these, and for each of its model-and-root pairs and records these, and
// identities.
inline constexpr uint64_t kListOverheadBytes = 40;
inline constexpr uint64_t kListNameBytes = 48;
inline constexpr uint64_t kListRecordBytes = 68;

}  // namespace kvtier
