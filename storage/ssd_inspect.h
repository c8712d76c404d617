// A look at what the SSD tier has on disk, without a daemon. Writes nothing into the directory. A
// daemon may be using it at the same time: then files may go while one looks.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "common/status.h"
#include "storage/record_codec.h"
#include "storage/rocksdb_store.h"

namespace kvtier {

struct SsdFileInfo {
  uint64_t batch = 0;  // grows from file to file
  uint64_t bytes = 0;  // on disk
  int64_t created_unix_seconds = 0;
  std::optional<Tombstone> forgets;  // then it has no records, and says what is not to come back
  absl::Status status;               // why its records are not known, else OK
};

// Thread-safe.
class SsdInspector {
 public:
  // DATA_LOSS when there is no database, or a damaged one.
  static absl::StatusOr<std::unique_ptr<SsdInspector>> Open(const std::string& directory);

  // Oldest first, each with its records; parts are valid during the call. Reads no payload.
  using Visitor = std::function<void(const SsdFileInfo&, std::span<const StoredPart>)>;
  void VisitFiles(const Visitor& visit) const;

  // Reads a record that VisitFiles has shown, and compares all of it. NOT_FOUND or DATA_LOSS.
  absl::Status Verify(const StoredPart& part) const;

 private:
  explicit SsdInspector(std::unique_ptr<RocksdbStore> store) : store_(std::move(store)) {}

  const std::unique_ptr<RocksdbStore> store_;
};

}  // namespace kvtier
