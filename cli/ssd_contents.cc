#include "cli/ssd_contents.h"

#include <algorithm>
#include <utility>

namespace kvtier::cli {

void SsdContents::Add(const SsdFileInfo& file, std::span<const StoredPart> parts) {
  ++totals_.files;
  totals_.bytes += file.bytes;
  if (file.forgets) {
    ++totals_.tombstones;
    forgotten_below_[{file.forgets->model, file.forgets->root}] = file.batch;
    return;
  }
  if (!file.status.ok()) {
    ++(absl::IsUnimplemented(file.status) ? totals_.newer_files : totals_.unreadable_files);
    return;
  }
  const int64_t created = file.created_unix_seconds;
  totals_.newest_unix_seconds = std::max(totals_.newest_unix_seconds, created);
  const int64_t oldest = totals_.oldest_unix_seconds;
  totals_.oldest_unix_seconds = oldest == 0 ? created : std::min(oldest, created);
  totals_.records += parts.size();
  for (const StoredPart& part : parts) {
    const auto [it, is_first] = newest_.try_emplace({part.id.key, part.id.part});
    it->second.superseded += is_first ? 0 : 1;
    it->second.part = part;
    it->second.part.id.identity = {};
  }
}

RecordState SsdContents::StateOf(const StoredPart& part) const {
  const auto newest = newest_.find({part.id.key, part.id.part});
  if (newest != newest_.end() && newest->second.part.location != part.location) {
    return RecordState::kSuperseded;
  }
  return IsForgotten(part) ? RecordState::kForgotten : RecordState::kLive;
}

bool SsdContents::IsForgotten(const StoredPart& part) const {
  const auto below = [&](const std::optional<RootFingerprint>& root) {
    const auto found = forgotten_below_.find({part.id.model, root});
    return found == forgotten_below_.end() ? 0 : found->second;
  };
  return BatchOf(part.location) < std::max(below(part.id.root), below(std::nullopt));
}

SsdSummary SsdContents::Summarize() const {
  struct Block {
    uint16_t live = 0;
    uint8_t hits = 0;
  };
  SsdSummary summary = totals_;
  absl::flat_hash_map<BlockKey, Block> blocks;
  for (const auto& [name, newest] : newest_) {
    const StoredPart& part = newest.part;
    SsdModelSummary& model = summary.models[part.id.model];
    model.superseded_records += newest.superseded;
    if (StateOf(part) == RecordState::kForgotten) {
      ++model.forgotten_records;
      continue;
    }
    ++model.live_records;
    model.payload_bytes += part.bytes;
    Block& block = blocks[name.key];
    block.hits = std::max(block.hits, part.id.carried);
    if (++block.live < part.id.part_count) continue;
    ++model.blocks;
    model.hits += block.hits;
  }
  return summary;
}

}  // namespace kvtier::cli
