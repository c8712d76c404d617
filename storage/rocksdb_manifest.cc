#include "storage/rocksdb_manifest.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string_view>

namespace kvtier {
namespace {

// RocksDB's log format: blocks of 32 KiB with fragments of records, each with a header of checksum
// (4), length (2) and type (1).
constexpr size_t kBlock = 32768;
constexpr size_t kHeader = 7;
constexpr uint8_t kFull = 1;
constexpr uint8_t kFirst = 2;
constexpr uint8_t kLast = 4;

absl::StatusOr<std::string> Contents(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(in), {}};
  if (!in.good() && !in.eof()) return absl::UnavailableError(absl::StrCat("cannot read ", path));
  return bytes;
}

// Where the last record begins, or what follows the last whole one and is none.
size_t LastRecord(std::string_view log) {
  size_t record = 0;    // the latest begin
  bool inside = false;  // that record has not ended
  size_t at = 0;
  while (at + kHeader <= log.size()) {
    const size_t left = kBlock - at % kBlock;
    if (left < kHeader) {
      at += left;
      continue;
    }
    const size_t length = static_cast<uint8_t>(log[at + 4]) | static_cast<uint8_t>(log[at + 5])
                                                                  << 8;
    const uint8_t type = static_cast<uint8_t>(log[at + 6]);
    const bool sound = type >= kFull && type <= kLast && kHeader + length <= left;
    if (!sound) return inside ? record : at;
    if (type == kFull || type == kFirst) record = at;
    inside = type != kFull && type != kLast;
    at += kHeader + length;
  }
  return record;
}

}  // namespace

absl::Status CutLastManifestRecord(const std::string& directory) {
  KVTIER_ASSIGN_OR_RETURN(std::string current, Contents(directory + "/CURRENT"));
  current.erase(std::find(current.begin(), current.end(), '\n'), current.end());
  if (!current.starts_with("MANIFEST-")) return absl::NotFoundError("CURRENT names no MANIFEST");
  const std::string manifest = directory + "/" + current;
  KVTIER_ASSIGN_OR_RETURN(const std::string log, Contents(manifest));
  const size_t end = LastRecord(log);
  if (end == 0) return absl::NotFoundError("the MANIFEST has no second record");
  std::error_code error;
  std::filesystem::resize_file(manifest, end, error);
  if (error) return absl::UnavailableError(absl::StrCat("cannot cut ", manifest));
  return absl::OkStatus();
}

}  // namespace kvtier
