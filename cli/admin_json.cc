#include "cli/admin_json.h"

#include "absl/strings/escaping.h"
#include "common/block_key.h"
#include "common/bytes.h"
#include "common/model_spec.h"

namespace kvtier::cli {
namespace {

Json TierJson(const v1::TierStatus& tier) {
  return {{"tier", TierName(tier.tier())},   {"capacity_bytes", tier.capacity_bytes()},
          {"used_bytes", tier.used_bytes()}, {"backed_bytes", tier.backed_bytes()},
          {"blocks", tier.blocks()},         {"hits", tier.hits()},
          {"evictions", tier.evictions()},   {"promotions", tier.promotions()},
          {"demotions", tier.demotions()},   {"bytes_written", tier.bytes_written()},
          {"bytes_read", tier.bytes_read()}, {"note", tier.note()}};
}

Json CountersJson(const v1::CacheCounters& counters) {
  return {{"lookups", counters.lookups()},
          {"lookup_blocks", counters.lookup_blocks()},
          {"hit_blocks", counters.hit_blocks()},
          {"fetched_blocks", counters.fetched_blocks()},
          {"fetch_missed_blocks", counters.fetch_missed_blocks()},
          {"stored_blocks", counters.stored_blocks()},
          {"already_present_blocks", counters.already_present_blocks()},
          {"rejected_blocks", counters.rejected_blocks()},
          {"checksum_failures", counters.checksum_failures()},
          {"checksum_mismatches", counters.checksum_mismatches()},
          {"expired_leases", counters.expired_leases()},
          {"unreachable_blocks", counters.unreachable_blocks()},
          {"never_hit_blocks", counters.never_hit_blocks()}};
}

std::string TierTable(const v1::GetStatusResponse& status) {
  Table table;
  table.Row({"tier", "capacity", "used", "blocks", "hits", "evictions", "promotions", "demotions"});
  std::string notes;
  for (const v1::TierStatus& tier : status.tiers()) {
    table.Row({TierName(tier.tier()),
               tier.capacity_bytes() == 0 ? "off" : FormatBytes(tier.capacity_bytes()),
               FormatBytes(tier.used_bytes()), WithCommas(tier.blocks()), WithCommas(tier.hits()),
               WithCommas(tier.evictions()), WithCommas(tier.promotions()),
               WithCommas(tier.demotions())});
    if (tier.note().empty()) continue;
    absl::StrAppend(&notes, "  ", TierName(tier.tier()), ": ", tier.note(), "\n");
  }
  return table.ToString() + notes;
}

std::string HitRatio(const v1::CacheCounters& counters) {
  if (counters.lookup_blocks() == 0) return "no lookups yet";
  return Fixed(
      static_cast<double>(counters.hit_blocks()) / static_cast<double>(counters.lookup_blocks()),
      4);
}

std::string ModelHex(const v1::ModelStatus& model) {
  return absl::BytesToHexString(model.model_id());
}

std::string DTypeText(const v1::ModelSpec& spec) {
  return std::string(DTypeName(static_cast<DType>(spec.dtype())));
}

Json ModelJson(const v1::ModelStatus& model) {
  Json tiers = Json::array();
  for (const v1::TierUsage& usage : model.tiers()) {
    tiers.push_back({{"tier", TierName(usage.tier())},
                     {"blocks", usage.blocks()},
                     {"capacity_tokens", usage.capacity_tokens()}});
  }
  const v1::ModelSpec& spec = model.spec();
  return {{"model_id", ModelHex(model)},
          {"name", spec.name()},
          {"revision", spec.revision()},
          {"dtype", DTypeText(spec)},
          {"block_tokens", spec.block_tokens()},
          {"tensor_parallel", std::max(spec.tensor_parallel(), 1u)},
          {"layer_groups", spec.layer_groups_size()},
          {"layout_fingerprint", absl::BytesToHexString(spec.layout_fingerprint())},
          {"block_bytes", model.block_bytes()},
          {"tiers", tiers}};
}

}  // namespace

std::string TierName(v1::Tier tier) {
  switch (tier) {
    case v1::TIER_GPU:
      return "gpu";
    case v1::TIER_RAM:
      return "ram";
    case v1::TIER_SSD:
      return "ssd";
    default:
      return absl::StrCat("tier ", static_cast<int>(tier));  // a newer daemon's
  }
}

absl::StatusOr<v1::Tier> ParseTier(const std::string& name) {
  for (const v1::Tier tier : {v1::TIER_GPU, v1::TIER_RAM, v1::TIER_SSD}) {
    if (name == TierName(tier)) return tier;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("tier is '", name, "', one of gpu, ram, ssd is needed"));
}

absl::StatusOr<std::string> ParseModelId(const std::string& hex) {
  const std::optional<Digest128> id = Digest128::FromHex(hex);
  if (id) return id->ToBytes();
  return absl::InvalidArgumentError(absl::StrCat(
      "model is '", hex, "', 32 hex digits are needed; 'kvtier models' lists the models"));
}

Json StatusJson(const v1::GetStatusResponse& status) {
  Json tiers = Json::array();
  for (const v1::TierStatus& tier : status.tiers()) tiers.push_back(TierJson(tier));
  Json settings = Json::array();
  for (const v1::Setting& setting : status.settings()) {
    settings.push_back(
        {{"name", setting.name()}, {"value", setting.value()}, {"source", setting.source()}});
  }
  return {{"version", status.version()},
          {"uptime_seconds", status.uptime_seconds()},
          {"draining", status.draining()},
          {"tiers", tiers},
          {"models", status.models()},
          {"blocks", status.blocks()},
          {"index_bytes", status.index_bytes()},
          {"identity_bytes", status.identity_bytes()},
          {"leases", status.leases()},
          {"pinned_blocks", status.pinned_blocks()},
          {"open_streams", status.open_streams()},
          {"process_memory_bytes", status.process_memory_bytes()},
          {"counters", CountersJson(status.counters())},
          {"settings", settings}};
}

std::string StatusText(const v1::GetStatusResponse& status) {
  const v1::CacheCounters& counters = status.counters();
  Table table;
  table.Row({"version", status.version()})
      .Row({"uptime", Fixed(status.uptime_seconds(), 0) + " s"})
      .Row({"state", status.draining() ? "draining" : "serving"})
      .Row({"models", WithCommas(status.models())})
      .Row({"blocks", WithCommas(status.blocks())})
      .Row({"hit ratio", HitRatio(counters)})
      .Row({"lookups", WithCommas(counters.lookups())})
      .Row({"blocks fetched", WithCommas(counters.fetched_blocks())})
      .Row({"blocks stored", WithCommas(counters.stored_blocks())})
      .Row({"blocks rejected", WithCommas(counters.rejected_blocks())})
      .Row({"blocks never hit", WithCommas(counters.never_hit_blocks())})
      .Row({"checksum failures", WithCommas(counters.checksum_failures())})
      .Row({"leases", WithCommas(status.leases())})
      .Row({"pinned blocks", WithCommas(status.pinned_blocks())})
      .Row({"open streams", WithCommas(status.open_streams())})
      .Row({"index memory", FormatBytes(status.index_bytes())})
      .Row({"process memory", FormatBytes(status.process_memory_bytes())});
  return table.ToString() + "\n" + TierTable(status);
}

Json ModelsJson(const v1::ListModelsResponse& models) {
  Json documents = Json::array();
  for (const v1::ModelStatus& model : models.models()) documents.push_back(ModelJson(model));
  return {{"models", documents}};
}

std::string ModelsText(const v1::ListModelsResponse& models) {
  if (models.models().empty()) return "no models registered\n";
  Table table;
  table.Row({"model", "name", "block tokens", "block bytes", "tier", "blocks", "room, tokens"});
  for (const v1::ModelStatus& model : models.models()) {
    std::vector<std::string> cells = {ModelHex(model), absl::CEscape(model.spec().name()),
                                      WithCommas(model.spec().block_tokens()),
                                      WithCommas(model.block_bytes())};
    for (const v1::TierUsage& usage : model.tiers()) {
      cells.push_back(TierName(usage.tier()));
      cells.push_back(WithCommas(usage.blocks()));
      cells.push_back(WithCommas(usage.capacity_tokens()));
      table.Row(cells);
      cells.assign(4, "");
    }
    if (model.tiers().empty()) table.Row(cells);
  }
  return table.ToString();
}

}  // namespace kvtier::cli
