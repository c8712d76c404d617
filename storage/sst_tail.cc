#include "storage/sst_tail.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string_view>

#include "common/block_key.h"

namespace kvtier {
namespace {

// From table/format.h, table/format.cc and table/meta_blocks.cc of RocksDB 7.8.
constexpr uint64_t kMagic = 0x88e241b785f4cff7;  // of block-based tables
constexpr uint32_t kFormatVersion = 5;
constexpr uint8_t kXxh3 = 4;
constexpr uint64_t kFooterBytes = 53;
constexpr size_t kHandlesAt = 1;  // in the footer, after the type of checksum
constexpr size_t kHandlesBytes = 40;
constexpr size_t kFormatVersionAt = kHandlesAt + kHandlesBytes;
constexpr size_t kMagicAt = kFormatVersionAt + sizeof(kFormatVersion);
constexpr uint64_t kTrailerBytes = 5;  // after each block: its compression, its checksum
constexpr uint32_t kLastByteFactor = 0x6b9083d9;
constexpr std::string_view kPropertiesName = "rocksdb.properties";
constexpr int kVarintBits = 7;

constexpr uint64_t kFirstReadBytes = 64 << 10;

struct BlockHandle {
  uint64_t offset = 0;
  uint64_t bytes = 0;  // without the trailer
};

struct Footer {
  BlockHandle metaindex;
  BlockHandle index;
};

absl::Status Damaged(const char* what) {
  return absl::DataLossError(absl::StrCat("the table's ", what, " is damaged"));
}

template <typename Number>
Number NumberAt(std::string_view bytes, size_t at) {
  Number number = 0;
  std::memcpy(&number, bytes.data() + at, sizeof(number));
  return number;
}

// The next few are taken off the front of `bytes`; empty when they do not lie within it.
std::optional<uint64_t> TakeVarint(std::string_view* bytes) {
  uint64_t number = 0;
  for (int shift = 0; shift < 64 && !bytes->empty(); shift += kVarintBits) {
    const uint8_t byte = static_cast<uint8_t>(bytes->front());
    bytes->remove_prefix(1);
    number |= uint64_t{byte & 0x7Fu} << shift;
    if ((byte & 0x80u) == 0) return number;
  }
  return std::nullopt;
}

std::optional<BlockHandle> TakeHandle(std::string_view* bytes) {
  const std::optional<uint64_t> offset = TakeVarint(bytes);
  const std::optional<uint64_t> size = TakeVarint(bytes);
  if (!offset || !size) return std::nullopt;
  return BlockHandle{*offset, *size};
}

std::optional<std::string_view> Take(std::string_view* bytes, uint64_t count) {
  if (count > bytes->size()) return std::nullopt;
  const std::string_view taken = bytes->substr(0, count);
  bytes->remove_prefix(count);
  return taken;
}

// Whether the block and its trailer are what lies before `end`.
bool EndsAt(const BlockHandle& block, uint64_t end) {
  return end >= kTrailerBytes && block.bytes <= end - kTrailerBytes &&
         block.offset == end - kTrailerBytes - block.bytes;
}

absl::StatusOr<Footer> DecodeFooter(std::string_view bytes) {
  if (NumberAt<uint64_t>(bytes, kMagicAt) != kMagic) return Damaged("footer");
  const uint32_t version = NumberAt<uint32_t>(bytes, kFormatVersionAt);
  const uint8_t checksum = static_cast<uint8_t>(bytes[0]);
  if (version != kFormatVersion || checksum != kXxh3) {
    return absl::UnimplementedError(
        absl::StrCat("the table has format version ", version, " and checksums of type ", checksum,
                     "; this program writes version ", kFormatVersion, " and type ", kXxh3));
  }
  std::string_view handles = bytes.substr(kHandlesAt, kHandlesBytes);
  const std::optional<BlockHandle> metaindex = TakeHandle(&handles);
  const std::optional<BlockHandle> index = TakeHandle(&handles);
  if (!metaindex || !index) return Damaged("footer");
  return Footer{*metaindex, *index};
}

// A checksum is the lower half of XXH3-64 over the block, and the byte behind that is mixed in.
bool Verifies(std::string_view block_and_trailer) {
  const size_t bytes = block_and_trailer.size() - kTrailerBytes;
  const uint32_t last = static_cast<uint8_t>(block_and_trailer[bytes]);
  const uint32_t hash = static_cast<uint32_t>(PayloadChecksum(block_and_trailer.data(), bytes));
  return NumberAt<uint32_t>(block_and_trailer, bytes + 1) == (hash ^ last * kLastByteFactor);
}

// An entry is three varints: bytes of the key shared with the one before, which are none in this
// block, its other bytes, those of the value; then key and value.
std::optional<BlockHandle> FindProperties(std::string_view metaindex) {
  while (!metaindex.empty()) {
    const std::optional<uint64_t> shared = TakeVarint(&metaindex);
    const std::optional<uint64_t> key_bytes = TakeVarint(&metaindex);
    const std::optional<uint64_t> value_bytes = TakeVarint(&metaindex);
    if (!shared || !key_bytes || !value_bytes || *shared != 0) break;
    const std::optional<std::string_view> key = Take(&metaindex, *key_bytes);
    std::optional<std::string_view> value = Take(&metaindex, *value_bytes);
    if (!key || !value) break;
    if (*key == kPropertiesName) return TakeHandle(&*value);
  }
  return std::nullopt;
}

// Both, with their trailers.
absl::Status CheckIndexAndProperties(std::string_view blocks, uint64_t index_bytes) {
  if (!Verifies(blocks.substr(0, index_bytes))) return Damaged("index");
  if (!Verifies(blocks.substr(index_bytes))) return Damaged("block of properties");
  return absl::OkStatus();
}

}  // namespace

// Where the index begins is believed only when it ends where the properties begin, of which a
// checksum tells: so no more is read than there is to read.
absl::Status CheckSstTail(uint64_t file_bytes, const ReadBytes& read) {
  if (file_bytes < kFooterBytes) return absl::DataLossError("the file is too short for a table");
  const uint64_t tail_at = file_bytes - std::min(file_bytes, kFirstReadBytes);
  KVTIER_ASSIGN_OR_RETURN(const std::string bytes, read(tail_at, file_bytes - tail_at));
  const std::string_view tail = bytes;

  const uint64_t footer_at = file_bytes - kFooterBytes;
  KVTIER_ASSIGN_OR_RETURN(const Footer footer, DecodeFooter(tail.substr(footer_at - tail_at)));
  const BlockHandle& metaindex = footer.metaindex;
  if (!EndsAt(metaindex, footer_at) || metaindex.offset < tail_at) return Damaged("footer");
  const std::string_view block =
      tail.substr(metaindex.offset - tail_at, metaindex.bytes + kTrailerBytes);
  if (!Verifies(block)) return Damaged("metaindex");

  const std::optional<BlockHandle> properties = FindProperties(block);
  if (!properties || !EndsAt(*properties, metaindex.offset)) return Damaged("metaindex");
  if (!EndsAt(footer.index, properties->offset)) return Damaged("footer");
  const uint64_t index_at = footer.index.offset;
  const uint64_t index_bytes = properties->offset - index_at;
  if (index_at >= tail_at) {
    return CheckIndexAndProperties(tail.substr(index_at - tail_at, metaindex.offset - index_at),
                                   index_bytes);
  }
  KVTIER_ASSIGN_OR_RETURN(const std::string blocks, read(index_at, metaindex.offset - index_at));
  return CheckIndexAndProperties(blocks, index_bytes);
}

}  // namespace kvtier
