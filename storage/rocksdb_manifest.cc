#include "storage/rocksdb_manifest.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>

namespace kvtier {
namespace {

// The format of RocksDB's logs: blocks of records that do not cross them. A record is a masked
// CRC-32C of all that follows its length, 16 bits of length, a type, and the data. Records of a
// change are one kFull, or kFirst, any number of kMiddle, and kLast.
constexpr size_t kBlockBytes = 32 << 10;
constexpr size_t kHeaderBytes = 7;
constexpr uint8_t kNothing = 0;
constexpr uint8_t kFull = 1;
constexpr uint8_t kLast = 4;

constexpr std::array<uint32_t, 256> kCrcOfByte = [] {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78u : 0);
    table[byte] = crc;
  }
  return table;
}();

uint32_t MaskedCrc(std::string_view bytes) {
  uint32_t crc = 0xFFFFFFFFu;
  for (const char c : bytes) crc = crc >> 8 ^ kCrcOfByte[(crc ^ static_cast<uint8_t>(c)) & 0xFF];
  crc = ~crc;
  return (crc >> 15 | crc << 17) + 0xA282EAD8u;
}

struct LogRecord {
  uint8_t type;
  size_t bytes;  // with the header
};

// Empty unless one begins here and is whole.
std::optional<LogRecord> RecordAt(std::string_view rest) {
  if (rest.size() < kHeaderBytes) return std::nullopt;
  uint32_t crc = 0;
  std::memcpy(&crc, rest.data(), sizeof(crc));
  const size_t length =
      static_cast<uint8_t>(rest[4]) | static_cast<size_t>(static_cast<uint8_t>(rest[5])) << 8;
  const uint8_t type = static_cast<uint8_t>(rest[6]);
  if (type == kNothing || type > kLast || rest.size() < kHeaderBytes + length ||
      crc != MaskedCrc(rest.substr(6, 1 + length))) {
    return std::nullopt;
  }
  return LogRecord{type, kHeaderBytes + length};
}

bool AnyRecordIn(std::string_view bytes) {
  for (size_t at = 0; at < bytes.size(); ++at) {
    if (RecordAt(bytes.substr(at))) return true;
  }
  return false;
}

absl::StatusOr<std::string> Contents(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(in), {}};
  if (!in.good() && !in.eof()) return absl::UnavailableError(absl::StrCat("cannot read ", path));
  return bytes;
}

}  // namespace

size_t BytesBeforeTornChange(std::string_view manifest) {
  size_t whole = 0;  // the end of the last change that is
  size_t at = 0;
  while (true) {
    const size_t left_in_block = kBlockBytes - at % kBlockBytes;
    if (left_in_block < kHeaderBytes) at += left_in_block;
    if (at >= manifest.size()) return manifest.size();
    const std::optional<LogRecord> record = RecordAt(manifest.substr(at));
    if (!record) break;
    at += record->bytes;
    if (record->type == kFull || record->type == kLast) whole = at;
  }
  return AnyRecordIn(manifest.substr(at + 1)) ? manifest.size() : whole;
}

absl::Status CutTornChange(const std::string& directory) {
  KVTIER_ASSIGN_OR_RETURN(std::string current, Contents(directory + "/CURRENT"));
  current.erase(std::find(current.begin(), current.end(), '\n'), current.end());
  if (!current.starts_with("MANIFEST-")) return absl::NotFoundError("CURRENT names no MANIFEST");
  const std::string path = directory + "/" + current;
  KVTIER_ASSIGN_OR_RETURN(const std::string manifest, Contents(path));
  const size_t whole = BytesBeforeTornChange(manifest);
  if (whole == 0 || whole == manifest.size()) return absl::NotFoundError("no torn last change");
  std::error_code error;
  std::filesystem::resize_file(path, whole, error);
  if (error) return absl::UnavailableError(absl::StrCat("cannot cut ", path));
  return absl::OkStatus();
}

}  // namespace kvtier
