#include "storage/ssd_inspect.h"

#include <utility>

namespace kvtier {

absl::StatusOr<std::unique_ptr<SsdInspector>> SsdInspector::Open(const std::string& directory) {
  absl::StatusOr<std::unique_ptr<RocksdbStore>> store =
      RocksdbStore::OpenReadOnly({directory, /*direct_io=*/false, nullptr});
  if (!store.ok()) return Annotate(store.status(), absl::StrCat("cannot look into ", directory));
  return std::unique_ptr<SsdInspector>(new SsdInspector(std::move(*store)));
}

void SsdInspector::VisitFiles(const Visitor& visit) const {
  for (const StoreFile& file : store_->Files()) {
    const std::optional<FileKey> key = ParseFileKey(file.smallest_key);
    if (!key) continue;
    SsdFileInfo info{key->batch, file.bytes, 0, key->tombstone, absl::OkStatus()};
    if (key->tombstone) {
      visit(info, {});
      continue;
    }
    const absl::StatusOr<std::string> bytes = store_->ReadList(file);
    const absl::StatusOr<SegmentList> list =
        bytes.ok() ? DecodeSegmentList(*bytes) : bytes.status();
    info.status = list.status();
    if (list.ok()) info.created_unix_seconds = list->created_unix_seconds;
    visit(info,
          list.ok() ? std::span<const StoredPart>(list->parts) : std::span<const StoredPart>());
  }
}

absl::Status SsdInspector::Verify(const StoredPart& part) const {
  const auto use = [&part](std::string_view head, std::string_view body) -> absl::Status {
    KVTIER_ASSIGN_OR_RETURN(const RecordHead record, DecodeRecordHead(head));
    KVTIER_RETURN_IF_ERROR(CheckSamePart(record.id, part.id));
    if (body.size() != part.bytes || record.payload_bytes != part.bytes) {
      return absl::DataLossError("the record has another length than listed");
    }
    const uint64_t checksum = PayloadChecksum(body.data(), body.size());
    if (checksum != part.checksum || checksum != record.checksum) {
      return absl::DataLossError("the payload's checksum differs");
    }
    return absl::OkStatus();
  };
  return store_->GetPair(RecordKey(BatchOf(part.location), IndexOf(part.location)), use);
}

}  // namespace kvtier
