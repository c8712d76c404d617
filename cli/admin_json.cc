#include "cli/admin_json.h"

#include <optional>

#include "absl/strings/escaping.h"
#include "cli/hit_funnel.h"
#include "common/block_key.h"
#include "common/bytes.h"
#include "common/model_spec.h"

namespace kvtier::cli {
namespace {

Json TierJson(const v1::TierStatus& tier) {
  return {{"tier", TierName(tier.tier())},
          {"capacity_bytes", tier.capacity_bytes()},
          {"used_bytes", tier.used_bytes()},
          {"backed_bytes", tier.backed_bytes()},
          {"blocks", tier.blocks()},
          {"hits", tier.hits()},
          {"evictions", tier.evictions()},
          {"promotions", tier.promotions()},
          {"demotions", tier.demotions()},
          {"bytes_written", tier.bytes_written()},
          {"bytes_read", tier.bytes_read()},
          {"note", tier.note()},
          {"measured_bytes_per_second", tier.measured_bytes_per_second()},
          {"measured_first_byte_seconds", tier.measured_first_byte_seconds()},
          {"fetched_blocks", tier.fetched_blocks()},
          {"fetched_bytes", tier.fetched_bytes()}};
}

std::string SsdStateName(v1::SsdState state) {
  switch (state) {
    case v1::SSD_STATE_SERVING:
      return "serving";
    case v1::SSD_STATE_READ_ONLY:
      return "read-only";
    case v1::SSD_STATE_REOPENING:
      return "reopening";
    default:
      return absl::StrCat("state ", static_cast<int>(state));  // a newer daemon's
  }
}

// Empty until something was written.
std::optional<double> WriteAmplification(const v1::SsdStatus& ssd) {
  if (ssd.payload_bytes_written() == 0) return std::nullopt;
  return static_cast<double>(ssd.file_bytes_written()) /
         static_cast<double>(ssd.payload_bytes_written());
}

Json SsdJson(const v1::SsdStatus& ssd) {
  const std::optional<double> amplification = WriteAmplification(ssd);
  return {{"state", SsdStateName(ssd.state())},
          {"why", ssd.why()},
          {"files", ssd.files()},
          {"live_records", ssd.live_records()},
          {"dead_records", ssd.dead_records()},
          {"segments", ssd.segments()},
          {"file_bytes_written", ssd.file_bytes_written()},
          {"payload_bytes_written", ssd.payload_bytes_written()},
          {"write_amplification", amplification ? Json(*amplification) : Json(nullptr)},
          {"files_retired", ssd.files_retired()},
          {"carried_blocks", ssd.carried_blocks()},
          {"restored_blocks", ssd.restored_blocks()},
          {"skipped_blocks", ssd.skipped_blocks()},
          {"limited_blocks", ssd.limited_blocks()},
          {"waiting_blocks", ssd.waiting_blocks()},
          {"write_errors", ssd.write_errors()},
          {"read_errors", ssd.read_errors()},
          {"checksum_failures", ssd.checksum_failures()},
          {"reads", ssd.reads()},
          {"read_seconds", ssd.read_seconds()},
          {"read_p50_seconds", ssd.read_p50_seconds()},
          {"read_p99_seconds", ssd.read_p99_seconds()}};
}

Json SharedMemoryJson(const v1::SharedMemoryStatus& shared) {
  return {{"socket", shared.socket()},
          {"sessions", shared.sessions()},
          {"open_regions", shared.open_regions()},
          {"store_bytes", shared.store_bytes()},
          {"retired_regions", shared.retired_regions()},
          {"retired_bytes", shared.retired_bytes()},
          {"sessions_total", shared.sessions_total()},
          {"refused_total", shared.refused_total()},
          {"cut_off_total", shared.cut_off_total()},
          {"fetched_blocks", shared.fetched_blocks()},
          {"fetched_bytes", shared.fetched_bytes()},
          {"not_shared_blocks", shared.not_shared_blocks()},
          {"stored_blocks", shared.stored_blocks()},
          {"stored_bytes", shared.stored_bytes()}};
}

std::string SharedMemoryTable(const v1::SharedMemoryStatus& shared) {
  Table table;
  table.Row({"shared memory, clients", WithCommas(shared.sessions())})
      .Row({"clients refused", WithCommas(shared.refused_total())})
      .Row({"clients cut off", WithCommas(shared.cut_off_total())})
      .Row({"regions mapped out", WithCommas(shared.open_regions())})
      .Row({"store regions", FormatBytes(shared.store_bytes())})
      .Row({"given up, still mapped", FormatBytes(shared.retired_bytes())})
      .Row({"blocks read", WithCommas(shared.fetched_blocks())})
      .Row({"blocks not shared", WithCommas(shared.not_shared_blocks())})
      .Row({"blocks stored", WithCommas(shared.stored_blocks())});
  return table.ToString();
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
          {"never_hit_blocks", counters.never_hit_blocks()},
          {"verified_blocks", counters.verified_blocks()},
          {"prefill_seconds", counters.prefill_seconds()},
          {"lease_fetch_seconds", counters.lease_fetch_seconds()},
          {"stalled_fetches", counters.stalled_fetches()}};
}

// As clients see it.
std::string FetchRate(const v1::TierStatus& tier) {
  if (tier.measured_bytes_per_second() == 0) return "-";
  return Fixed(tier.measured_bytes_per_second() / 1e6, 1) + " MB/s";
}
std::string FirstByte(const v1::TierStatus& tier) {
  return tier.measured_bytes_per_second() == 0 ? "-"
                                               : Milliseconds(tier.measured_first_byte_seconds());
}

Json HitCurveJson(const v1::HitCurveStatus& curve) {
  return {{"sampling_rate", curve.sampling_rate()},
          {"ghost_blocks", curve.ghost_blocks()},
          {"memory_bytes", curve.memory_bytes()}};
}

std::string TierTable(const v1::GetStatusResponse& status) {
  Table table;
  table.Row({"tier", "capacity", "used", "blocks", "hits", "evictions", "promotions", "demotions",
             "fetch rate", "first byte"});
  std::string notes;
  for (const v1::TierStatus& tier : status.tiers()) {
    table.Row({TierName(tier.tier()),
               tier.capacity_bytes() == 0 ? "off" : FormatBytes(tier.capacity_bytes()),
               FormatBytes(tier.used_bytes()), WithCommas(tier.blocks()), WithCommas(tier.hits()),
               WithCommas(tier.evictions()), WithCommas(tier.promotions()),
               WithCommas(tier.demotions()), FetchRate(tier), FirstByte(tier)});
    if (tier.note().empty()) continue;
    absl::StrAppend(&notes, "  ", TierName(tier.tier()), ": ", tier.note(), "\n");
  }
  return table.ToString() + notes;
}

std::string SsdTable(const v1::SsdStatus& ssd) {
  const std::optional<double> amplification = WriteAmplification(ssd);
  Table table;
  table.Row({"SSD state", SsdStateName(ssd.state())})
      .Row({"SSD files", WithCommas(ssd.files())})
      .Row({"records, live", WithCommas(ssd.live_records())})
      .Row({"records, dead", WithCommas(ssd.dead_records())})
      .Row({"written", FormatBytes(ssd.file_bytes_written())})
      .Row({"of it payload", FormatBytes(ssd.payload_bytes_written())})
      .Row({"write amplification", amplification ? Fixed(*amplification, 4) : "nothing written"})
      .Row({"blocks restored", WithCommas(ssd.restored_blocks())})
      .Row({"blocks carried over", WithCommas(ssd.carried_blocks())})
      .Row({"blocks skipped", WithCommas(ssd.skipped_blocks())})
      .Row({"blocks over the limit", WithCommas(ssd.limited_blocks())})
      .Row({"blocks waiting", WithCommas(ssd.waiting_blocks())})
      .Row({"write errors", WithCommas(ssd.write_errors())})
      .Row({"read errors", WithCommas(ssd.read_errors())})
      .Row({"checksum failures", WithCommas(ssd.checksum_failures())})
      .Row({"reads", WithCommas(ssd.reads())})
      .Row({"read p50, at most", Milliseconds(ssd.read_p50_seconds())})
      .Row({"read p99, at most", Milliseconds(ssd.read_p99_seconds())});
  return table.ToString();
}

std::string HitRatio(const v1::CacheCounters& counters) {
  if (counters.lookup_blocks() == 0) return "no lookups yet";
  return Fixed(
      static_cast<double>(counters.hit_blocks()) / static_cast<double>(counters.lookup_blocks()),
      4);
}

std::string RecordingState(const v1::RecordingStatus& recording) {
  if (recording.on()) return "on";
  return recording.why().empty() ? "off" : "ended by itself: " + recording.why();
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
          {"ssd", status.has_ssd() ? SsdJson(status.ssd()) : Json(nullptr)},
          {"shared_memory",
           status.has_shared_memory() ? SharedMemoryJson(status.shared_memory()) : Json(nullptr)},
          {"recording", status.has_recording() ? RecordingJson(status.recording()) : Json(nullptr)},
          {"counters", CountersJson(status.counters())},
          {"hit_curve", HitCurveJson(status.hit_curve())},
          {"funnel", FunnelJson(status)},
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
      .Row({"recording", RecordingState(status.recording())})
      .Row({"index memory", FormatBytes(status.index_bytes())})
      .Row({"hit curve memory", FormatBytes(status.hit_curve().memory_bytes())})
      .Row({"process memory", FormatBytes(status.process_memory_bytes())});
  std::string text = table.ToString() + "\n" + TierTable(status) + "\n" + FunnelText(status);
  if (status.has_ssd()) absl::StrAppend(&text, "\n", SsdTable(status.ssd()));
  if (status.has_shared_memory()) {
    absl::StrAppend(&text, "\n", SharedMemoryTable(status.shared_memory()));
  }
  return text;
}

Json RecordingJson(const v1::RecordingStatus& recording) {
  Json files = Json::array();
  for (const std::string& file : recording.files()) files.push_back(file);
  return {{"on", recording.on()},
          {"why", recording.why()},
          {"directory", recording.directory()},
          {"files", files},
          {"seconds", recording.seconds()},
          {"requests", recording.requests()},
          {"dropped", recording.dropped()},
          {"bytes", recording.bytes()},
          {"models", recording.models()},
          {"max_file_bytes", recording.max_file_bytes()},
          {"max_files", recording.max_files()}};
}

std::string RecordingText(const v1::RecordingStatus& recording) {
  Table table;
  table.Row({"recording", RecordingState(recording)})
      .Row({"seconds", Fixed(recording.seconds(), 1)})
      .Row({"requests", WithCommas(recording.requests())})
      .Row({"dropped", WithCommas(recording.dropped())})
      .Row({"models", WithCommas(recording.models())})
      .Row({"written", FormatBytes(recording.bytes())})
      .Row({"limit of a file", FormatBytes(recording.max_file_bytes())})
      .Row({"limit of files", WithCommas(recording.max_files())});
  std::string text = table.ToString();
  for (const std::string& file : recording.files()) absl::StrAppend(&text, file, "\n");
  return text;
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
