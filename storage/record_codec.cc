#include "storage/record_codec.h"

#include <bit>
#include <cstring>
#include <map>
#include <type_traits>
#include <utility>

#include "common/check.h"

namespace kvtier {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr uint32_t kRecordMagic = 0x5254564B;  // "KVTR"
constexpr uint32_t kListMagic = 0x5354564B;    // "KVTS"
constexpr uint8_t kCodecRaw = 0;
constexpr size_t kHeaderChecksumAt = kRecordHeaderBytes - sizeof(uint64_t);
constexpr size_t kNameBytes = Digest128::kBytes + sizeof(RootFingerprint);
static_assert(kListNameBytes == kNameBytes);

// The second half of a key: these, or a record's index + 1.
constexpr uint32_t kBeginNumber = 0;
constexpr uint32_t kEndNumber = 0xFFFFFFFE;
constexpr uint32_t kTombstoneNumber = 0xFFFFFFFF;
constexpr size_t kTombstoneKeyBytes = kRecordKeyBytes + kNameBytes + 1;

class Writer {
 public:
  explicit Writer(char* at) : at_(at) {}
  template <typename T>
  void Put(T value) {
    static_assert(std::is_integral_v<T>);
    Bytes(&value, sizeof(value));
  }
  void Bytes(const void* from, size_t bytes) {
    if (bytes > 0) std::memcpy(at_, from, bytes);
    at_ += bytes;
  }
  void Digest(const Digest128& digest) { Bytes(digest.ToBytes().data(), Digest128::kBytes); }
  const char* at() const { return at_; }

 private:
  char* at_;
};

// Gives zeros, and is not ok() from then on, where the bytes end early.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}
  template <typename T>
  T Get() {
    static_assert(std::is_integral_v<T>);
    T value = 0;
    Into(&value, sizeof(value));
    return value;
  }
  Digest128 Digest() { return Digest128::FromBytes(View(Digest128::kBytes)).value_or(Digest128{}); }
  void Into(void* to, size_t bytes) {
    const std::string_view from = View(bytes);
    if (!from.empty()) std::memcpy(to, from.data(), bytes);
  }
  std::string_view View(uint64_t bytes) {
    if (bytes > rest_.size()) {
      ok_ = false;
      rest_ = {};
      return {};
    }
    const std::string_view view = rest_.substr(0, bytes);
    rest_.remove_prefix(bytes);
    return view;
  }
  size_t left() const { return rest_.size(); }
  bool ok() const { return ok_; }

 private:
  std::string_view rest_;
  bool ok_ = true;
};

uint64_t ChecksumOf(std::string_view bytes) { return PayloadChecksum(bytes.data(), bytes.size()); }

absl::Status Damaged(const char* what) { return absl::DataLossError(what); }

absl::Status CheckVersion(uint16_t version) {
  if (version == 0) return Damaged("format version 0");
  if (version > kSsdFormatVersion) {
    return absl::UnimplementedError(absl::StrCat(
        "format version ", version, "; this program reads ", "versions up to ", kSsdFormatVersion));
  }
  return absl::OkStatus();
}

void PutBigEndian(uint64_t value, int bytes, std::string* out) {
  for (int i = bytes - 1; i >= 0; --i) out->push_back(static_cast<char>(value >> (8 * i)));
}

std::string MakeKey(uint64_t batch, uint32_t number) {
  std::string key;
  key.reserve(kRecordKeyBytes);
  PutBigEndian(batch, 8, &key);
  PutBigEndian(number, 4, &key);
  return key;
}

uint64_t GetBigEndian(std::string_view bytes) {
  uint64_t value = 0;
  for (const char c : bytes) value = value << 8 | static_cast<uint8_t>(c);
  return value;
}

}  // namespace

std::string EncodeRecordHead(const PartIdentity& id, uint64_t payload_bytes, uint64_t checksum) {
  KVTIER_CHECK(id.identity.size() <= UINT32_MAX);
  std::string head(kRecordHeaderBytes + id.identity.size(), '\0');
  Writer out(head.data());
  out.Put(kRecordMagic);
  out.Put(kSsdFormatVersion);
  out.Put(kCodecRaw);
  out.Put(id.carried);
  out.Digest(id.model);
  out.Bytes(id.root.data(), id.root.size());
  out.Digest(id.key);
  out.Digest(id.parent);
  out.Put(id.depth);
  out.Put(id.part);
  out.Put(id.part_count);
  out.Put(static_cast<uint32_t>(id.identity.size()));
  out.Put(uint32_t{0});
  out.Put(payload_bytes);
  out.Put(checksum);
  out.Put(ChecksumOf(id.identity));
  KVTIER_CHECK(out.at() == head.data() + kHeaderChecksumAt);
  out.Put(ChecksumOf({head.data(), kHeaderChecksumAt}));
  out.Bytes(id.identity.data(), id.identity.size());
  return head;
}

absl::StatusOr<RecordHead> DecodeRecordHead(std::string_view bytes) {
  Reader in(bytes);
  RecordHead head;
  if (in.Get<uint32_t>() != kRecordMagic) return Damaged("no record: the magic number differs");
  KVTIER_RETURN_IF_ERROR(CheckVersion(in.Get<uint16_t>()));
  if (bytes.size() < kRecordHeaderBytes) return Damaged("the record's head ends early");
  const uint8_t codec = in.Get<uint8_t>();
  head.id.carried = in.Get<uint8_t>();
  head.id.model = in.Digest();
  in.Into(head.id.root.data(), head.id.root.size());
  head.id.key = in.Digest();
  head.id.parent = in.Digest();
  head.id.depth = in.Get<uint32_t>();
  head.id.part = in.Get<uint16_t>();
  head.id.part_count = in.Get<uint16_t>();
  const uint32_t identity_bytes = in.Get<uint32_t>();
  in.Get<uint32_t>();
  head.payload_bytes = in.Get<uint64_t>();
  head.checksum = in.Get<uint64_t>();
  const uint64_t identity_checksum = in.Get<uint64_t>();
  if (in.Get<uint64_t>() != ChecksumOf(bytes.substr(0, kHeaderChecksumAt))) {
    return Damaged("the header's checksum differs");
  }
  if (codec != kCodecRaw) return Damaged("unknown codec");
  head.id.identity = in.View(identity_bytes);
  if (!in.ok() || in.left() > 0) return Damaged("the head's length differs from its header's");
  if (ChecksumOf(head.id.identity) != identity_checksum) {
    return Damaged("the identity's checksum differs");
  }
  return head;
}

absl::Status CheckSamePart(const PartIdentity& stored, const PartIdentity& asked) {
  if (stored.model != asked.model) return Damaged("the record is another model's");
  if (stored.root != asked.root) return Damaged("the record is another namespace's");
  if (stored.key != asked.key) return Damaged("the record is another block's");
  if (stored.parent != asked.parent) return Damaged("the record has another parent");
  if (stored.identity != asked.identity) return Damaged("the record has another identity");
  if (stored.part != asked.part || stored.part_count != asked.part_count) {
    return Damaged("the record is another part's");
  }
  return absl::OkStatus();
}

std::string RecordKey(uint64_t batch, uint32_t index) { return MakeKey(batch, index + 1); }

std::string BeginKey(uint64_t batch) { return MakeKey(batch, kBeginNumber); }

std::string EndKey(uint64_t batch) { return MakeKey(batch, kEndNumber); }

std::string TombstoneKey(const Tombstone& tombstone) {
  std::string key = MakeKey(tombstone.batch, kTombstoneNumber);
  const RootFingerprint root = tombstone.root.value_or(RootFingerprint{});
  key += tombstone.model.ToBytes();
  key.push_back(tombstone.root.has_value() ? 1 : 0);
  key.append(reinterpret_cast<const char*>(root.data()), root.size());
  return key;
}

std::optional<FileKey> ParseFileKey(std::string_view smallest_key) {
  if (smallest_key.size() < kRecordKeyBytes) return std::nullopt;
  FileKey key;
  key.batch = GetBigEndian(smallest_key.substr(0, 8));
  if (key.batch == 0 || key.batch > kMaxBatch) return std::nullopt;
  const uint64_t number = GetBigEndian(smallest_key.substr(8, 4));
  key.known = number == kBeginNumber && smallest_key.size() == kRecordKeyBytes;
  if (number != kTombstoneNumber || smallest_key.size() != kTombstoneKeyBytes) return key;
  Reader in(smallest_key.substr(kRecordKeyBytes));
  Tombstone tombstone{key.batch, in.Digest(), std::nullopt};
  const uint8_t has_root = in.Get<uint8_t>();
  RootFingerprint root;
  in.Into(root.data(), root.size());
  if (has_root > 1) return key;
  if (has_root == 1) tombstone.root = root;
  key.known = true;
  key.tombstone = tombstone;
  return key;
}

// Model and root are written once for all their records.
std::string EncodeSegmentList(uint64_t batch, int64_t created_unix_seconds,
                              std::span<const StoredPart> parts) {
  std::map<std::pair<ModelId, RootFingerprint>, uint32_t> numbers;
  std::vector<const PartIdentity*> names;
  uint64_t bytes = kListOverheadBytes + parts.size() * kListRecordBytes;
  for (const StoredPart& part : parts) {
    const auto [name, added] = numbers.try_emplace({part.id.model, part.id.root}, names.size());
    if (added) names.push_back(&part.id);
    bytes += part.id.identity.size();
  }
  std::string list(bytes + names.size() * kNameBytes, '\0');
  Writer out(list.data());
  out.Put(kListMagic);
  out.Put(kSsdFormatVersion);
  out.Put(uint16_t{0});
  out.Put(batch);
  out.Put(created_unix_seconds);
  out.Put(static_cast<uint32_t>(names.size()));
  out.Put(static_cast<uint32_t>(parts.size()));
  for (const PartIdentity* name : names) {
    out.Digest(name->model);
    out.Bytes(name->root.data(), name->root.size());
  }
  for (const StoredPart& part : parts) {
    out.Put(numbers.at({part.id.model, part.id.root}));
    out.Digest(part.id.key);
    out.Digest(part.id.parent);
    out.Put(part.id.depth);
    out.Put(part.id.part);
    out.Put(part.id.part_count);
    out.Put(uint32_t{part.id.carried});
    out.Put(static_cast<uint32_t>(part.id.identity.size()));
    out.Put(part.bytes);
    out.Put(part.checksum);
    out.Bytes(part.id.identity.data(), part.id.identity.size());
  }
  out.Put(ChecksumOf({list.data(), list.size() - sizeof(uint64_t)}));
  KVTIER_CHECK(out.at() == list.data() + list.size());
  return list;
}

namespace {

struct Name {
  ModelId model;
  RootFingerprint root = {};
};

absl::Status DecodeListRecord(std::span<const Name> names, Reader* in, StoredPart* part) {
  const uint32_t name = in->Get<uint32_t>();
  if (name >= names.size()) return Damaged("the list names a namespace that it does not have");
  part->id.model = names[name].model;
  part->id.root = names[name].root;
  part->id.key = in->Digest();
  part->id.parent = in->Digest();
  part->id.depth = in->Get<uint32_t>();
  part->id.part = in->Get<uint16_t>();
  part->id.part_count = in->Get<uint16_t>();
  part->id.carried = static_cast<uint8_t>(in->Get<uint32_t>());
  const uint32_t identity_bytes = in->Get<uint32_t>();
  part->bytes = in->Get<uint64_t>();
  part->checksum = in->Get<uint64_t>();
  part->id.identity = in->View(identity_bytes);
  return in->ok() ? absl::OkStatus() : Damaged("the list of records ends early");
}

}  // namespace

absl::StatusOr<SegmentList> DecodeSegmentList(std::string_view bytes) {
  Reader in(bytes);
  SegmentList list;
  if (in.Get<uint32_t>() != kListMagic) return Damaged("no list: the magic number differs");
  KVTIER_RETURN_IF_ERROR(CheckVersion(in.Get<uint16_t>()));
  if (bytes.size() < kListOverheadBytes) return Damaged("the list of records ends early");
  const size_t checked = bytes.size() - sizeof(uint64_t);
  if (Reader(bytes.substr(checked)).Get<uint64_t>() != ChecksumOf(bytes.substr(0, checked))) {
    return Damaged("the list's checksum differs");
  }
  in.Get<uint16_t>();
  list.batch = in.Get<uint64_t>();
  list.created_unix_seconds = in.Get<int64_t>();
  const uint32_t name_count = in.Get<uint32_t>();
  const uint32_t record_count = in.Get<uint32_t>();
  const uint64_t least =
      uint64_t{name_count} * kNameBytes + uint64_t{record_count} * kListRecordBytes;
  if (list.batch == 0 || list.batch > kMaxBatch || record_count > kMaxRecords ||
      least + sizeof(uint64_t) > in.left()) {
    return Damaged("the list's numbers are out of range");
  }
  std::vector<Name> names(name_count);
  for (Name& name : names) {
    name.model = in.Digest();
    in.Into(name.root.data(), name.root.size());
  }
  list.parts.resize(record_count);
  for (uint32_t i = 0; i < record_count; ++i) {
    list.parts[i].location = MakeLocation(list.batch, i);
    KVTIER_RETURN_IF_ERROR(DecodeListRecord(names, &in, &list.parts[i]));
  }
  if (in.left() != sizeof(uint64_t)) return Damaged("the list is longer than its records");
  return list;
}

}  // namespace kvtier
