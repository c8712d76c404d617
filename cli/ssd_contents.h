// What the files of an SSD tier hold, added up: what a daemon that starts on them would find.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "storage/ssd_inspect.h"

namespace kvtier::cli {

enum class RecordState : uint8_t {
  kLive,
  kSuperseded,  // the same part was written again later
  kForgotten,   // reset after it was written
};

struct SsdModelSummary {
  uint64_t blocks = 0;  // with all parts live
  uint64_t live_records = 0;
  uint64_t payload_bytes = 0;  // of live records
  uint64_t superseded_records = 0;
  uint64_t forgotten_records = 0;
  uint64_t hits = 0;  // times that live blocks were written again, as they were in use
};

struct SsdSummary {
  uint64_t files = 0;
  uint64_t bytes = 0;  // on disk
  uint64_t records = 0;
  uint64_t unreadable_files = 0;
  uint64_t newer_files = 0;  // of a newer version: left alone
  uint64_t tombstones = 0;
  int64_t oldest_unix_seconds = 0;  // 0 without a readable file
  int64_t newest_unix_seconds = 0;
  std::map<ModelId, SsdModelSummary> models;
};

// Not thread-safe.
class SsdContents {
 public:
  // As SsdInspector shows them: oldest first.
  void Add(const SsdFileInfo& file, std::span<const StoredPart> parts);

  // Once all files were added.
  SsdSummary Summarize() const;
  RecordState StateOf(const StoredPart& part) const;

 private:
  bool IsForgotten(const StoredPart& part) const;

  struct PartName {
    BlockKey key;
    uint16_t part = 0;
    friend bool operator==(const PartName&, const PartName&) = default;
    template <typename H>
    friend H AbslHashValue(H h, const PartName& name) {
      return H::combine(std::move(h), name.key, name.part);
    }
  };
  struct Newest {
    StoredPart part;  // without the identity's bytes
    uint32_t superseded = 0;
  };

  SsdSummary totals_;  // without models
  absl::flat_hash_map<PartName, Newest> newest_;
  // Of a model, or one root of it: up to which batch its records are forgotten.
  std::map<std::pair<ModelId, std::optional<RootFingerprint>>, uint64_t> forgotten_below_;
};

}  // namespace kvtier::cli
