// kvtier inspect: what an SSD tier's directory holds, without a daemon.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <optional>

#include "cli/commands.h"
#include "cli/progress_bar.h"
#include "cli/ssd_contents.h"
#include "common/bytes.h"
#include "storage/ssd_inspect.h"

namespace kvtier::cli {
namespace {

struct InspectOptions {
  std::string data_dir = "./kvtier-data";
  bool verify = false;
  std::string block;
};

// One record of the block asked for.
struct FoundRecord {
  StoredPart part;  // `identity` is gone, but for its length
  uint64_t identity_bytes = 0;
  int64_t created_unix_seconds = 0;
};

struct Problem {
  uint64_t file = 0;
  std::optional<BlockKey> key;  // empty: the whole file
  uint16_t part = 0;
  std::string error;
};

struct Verified {
  uint64_t records = 0;
  uint64_t bytes = 0;
  std::vector<Problem> bad;
};

// RocksDB's own lock says whether a daemon has the directory; asking takes it from nobody. Files
// may go while a daemon runs, so what one sees then may be neither before nor after.
absl::Status CheckUnused(const std::string& directory) {
  const std::string path = directory + "/LOCK";
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0 && errno == ENOENT) return absl::OkStatus();
  struct flock lock = {};
  lock.l_type = F_RDLCK;
  lock.l_whence = SEEK_SET;
  const bool asked = fd >= 0 && ::fcntl(fd, F_GETLK, &lock) == 0;
  const int error = errno;
  if (fd >= 0) ::close(fd);
  if (!asked) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot look at ", path, ": ", std::strerror(error)));
  }
  if (lock.l_type == F_UNLCK) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      directory, " is in use by process ", lock.l_pid,
      ", and its files may go while one looks: stop that kvtierd first, or ask it with "
      "'kvtier status'"));
}

absl::StatusOr<std::unique_ptr<SsdInspector>> Open(const std::string& directory) {
  std::error_code error;
  if (!std::filesystem::is_directory(directory, error)) {
    return absl::NotFoundError(absl::StrCat(
        directory, " is not there: kvtierd makes it in its --data-dir when ssd-bytes is above 0"));
  }
  KVTIER_RETURN_IF_ERROR(CheckUnused(directory));
  return SsdInspector::Open(directory);
}

bool Asked(const StoredPart& part, const std::optional<BlockKey>& block) {
  return !block || part.id.key == *block;
}

Verified VerifyAll(const SsdInspector& inspector, const std::optional<BlockKey>& block,
                   uint64_t total_records) {
  Verified verified;
  ProgressBar bar("verifying", total_records);
  inspector.VisitFiles([&](const SsdFileInfo& file, std::span<const StoredPart> parts) {
    if (!file.status.ok() && !absl::IsUnimplemented(file.status)) {
      verified.bad.push_back({file.batch, std::nullopt, 0, std::string(file.status.message())});
    }
    for (const StoredPart& part : parts) {
      bar.Step();
      if (!Asked(part, block)) continue;
      ++verified.records;
      verified.bytes += part.bytes;
      const absl::Status status = inspector.Verify(part);
      if (status.ok()) continue;
      verified.bad.push_back(
          {file.batch, part.id.key, part.id.part, std::string(status.message())});
    }
  });
  return verified;
}

std::string ProblemText(const Problem& problem) {
  if (!problem.key) return absl::StrCat("file ", problem.file, ": ", problem.error);
  return absl::StrCat("file ", problem.file, ", block ", problem.key->ToHex(), ", part ",
                      problem.part, ": ", problem.error);
}

absl::Status Verdict(const std::optional<Verified>& verified) {
  if (!verified || verified->bad.empty()) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat(verified->bad.size(), " of ", verified->records,
                   " records and their files are bad; the daemon serves none of them. The first: ",
                   ProblemText(verified->bad.front())));
}

const char* StateName(RecordState state) {
  switch (state) {
    case RecordState::kLive:
      return "live";
    case RecordState::kSuperseded:
      return "superseded";
    case RecordState::kForgotten:
      return "forgotten";
  }
  return "";
}

Json VerifiedJson(const std::optional<Verified>& verified) {
  if (!verified) return nullptr;
  Json bad = Json::array();
  for (const Problem& problem : verified->bad) {
    bad.push_back({{"file", problem.file},
                   {"key", problem.key ? Json(problem.key->ToHex()) : Json(nullptr)},
                   {"part", problem.part},
                   {"error", problem.error}});
  }
  return {{"records", verified->records}, {"bytes", verified->bytes}, {"bad", bad}};
}

std::string VerifiedText(const std::optional<Verified>& verified) {
  if (!verified) return "";
  std::string text =
      absl::StrCat("\nverified ", WithCommas(verified->records), " records, ",
                   FormatBytes(verified->bytes), ": ", WithCommas(verified->bad.size()), " bad\n");
  for (const Problem& problem : verified->bad) {
    absl::StrAppend(&text, "  ", ProblemText(problem), "\n");
  }
  return text;
}

// Null when nothing has an age.
Json AgeJson(int64_t created, int64_t now) {
  return created == 0 ? Json(nullptr) : Json(now - created);
}

std::string AgeText(int64_t created, int64_t now) {
  return created == 0 ? "none" : WithCommas(std::max<int64_t>(now - created, 0)) + " s";
}

// --- All of it

Json SummaryJson(const std::string& directory, const SsdSummary& summary, int64_t now,
                 const std::optional<Verified>& verified) {
  Json models = Json::array();
  for (const auto& [id, model] : summary.models) {
    models.push_back({{"model_id", id.ToHex()},
                      {"blocks", model.blocks},
                      {"live_records", model.live_records},
                      {"payload_bytes", model.payload_bytes},
                      {"superseded_records", model.superseded_records},
                      {"forgotten_records", model.forgotten_records},
                      {"hits", model.hits}});
  }
  return {{"directory", directory},
          {"files", summary.files},
          {"bytes", summary.bytes},
          {"records", summary.records},
          {"oldest_age_seconds", AgeJson(summary.oldest_unix_seconds, now)},
          {"newest_age_seconds", AgeJson(summary.newest_unix_seconds, now)},
          {"tombstones", summary.tombstones},
          {"unreadable_files", summary.unreadable_files},
          {"newer_files", summary.newer_files},
          {"models", models},
          {"verified", VerifiedJson(verified)}};
}

std::string SummaryText(const SsdSummary& summary, int64_t now,
                        const std::optional<Verified>& verified) {
  Table table;
  table.Row({"files", WithCommas(summary.files)})
      .Row({"bytes on disk", FormatBytes(summary.bytes)})
      .Row({"records", WithCommas(summary.records)})
      .Row({"age of the oldest", AgeText(summary.oldest_unix_seconds, now)})
      .Row({"age of the newest", AgeText(summary.newest_unix_seconds, now)})
      .Row({"tombstones", WithCommas(summary.tombstones)})
      .Row({"unreadable files", WithCommas(summary.unreadable_files)})
      .Row({"a newer version's", WithCommas(summary.newer_files)});
  Table models;
  models.Row({"model", "blocks", "live", "payload", "superseded", "forgotten", "hits"});
  for (const auto& [id, model] : summary.models) {
    models.Row({id.ToHex(), WithCommas(model.blocks), WithCommas(model.live_records),
                FormatBytes(model.payload_bytes), WithCommas(model.superseded_records),
                WithCommas(model.forgotten_records), WithCommas(model.hits)});
  }
  return absl::StrCat(table.ToString(), "\n", models.ToString(), VerifiedText(verified));
}

// --- One block

std::vector<FoundRecord> FindBlock(const SsdInspector& inspector, const BlockKey& key) {
  std::vector<FoundRecord> found;
  inspector.VisitFiles([&](const SsdFileInfo& file, std::span<const StoredPart> parts) {
    for (const StoredPart& part : parts) {
      if (part.id.key != key) continue;
      found.push_back({part, part.id.identity.size(), file.created_unix_seconds});
      found.back().part.id.identity = {};
    }
  });
  return found;
}

Json RecordJson(const FoundRecord& record, RecordState state, int64_t now) {
  const StoredPart& part = record.part;
  return {{"state", StateName(state)},
          {"file", BatchOf(part.location)},
          {"record", IndexOf(part.location)},
          {"model_id", part.id.model.ToHex()},
          {"key", part.id.key.ToHex()},
          {"parent", part.id.parent.ToHex()},
          {"depth", part.id.depth},
          {"part", part.id.part},
          {"part_count", part.id.part_count},
          {"identity_bytes", record.identity_bytes},
          {"payload_bytes", part.bytes},
          {"checksum", absl::StrCat(absl::Hex(part.checksum, absl::kZeroPad16))},
          {"hits", part.id.carried},
          {"age_seconds", AgeJson(record.created_unix_seconds, now)}};
}

std::string RecordText(const FoundRecord& record, RecordState state, int64_t now) {
  const StoredPart& part = record.part;
  Table table;
  table.Row({"state", StateName(state)})
      .Row({"file, record", absl::StrCat(BatchOf(part.location), ", ", IndexOf(part.location))})
      .Row({"model", part.id.model.ToHex()})
      .Row({"key", part.id.key.ToHex()})
      .Row({"parent", part.id.parent.ToHex()})
      .Row({"depth", WithCommas(part.id.depth)})
      .Row({"part", absl::StrCat(part.id.part, " of ", part.id.part_count)})
      .Row({"identity", absl::StrCat(record.identity_bytes, " bytes")})
      .Row({"payload", FormatBytes(part.bytes)})
      .Row({"checksum", absl::StrCat(absl::Hex(part.checksum, absl::kZeroPad16))})
      .Row({"hits", absl::StrCat(part.id.carried)})
      .Row({"age", AgeText(record.created_unix_seconds, now)});
  return table.ToString();
}

void PrintBlock(const std::vector<FoundRecord>& found, const SsdContents& contents,
                const std::optional<Verified>& verified, Output& output) {
  const int64_t now = std::time(nullptr);
  Json records = Json::array();
  std::string text;
  for (const FoundRecord& record : found) {
    const RecordState state = contents.StateOf(record.part);
    records.push_back(RecordJson(record, state, now));
    absl::StrAppend(&text, text.empty() ? "" : "\n", RecordText(record, state, now));
  }
  output.Print({{"records", records}, {"verified", VerifiedJson(verified)}},
               text + VerifiedText(verified));
}

// --- The command

absl::StatusOr<std::optional<BlockKey>> ParseBlock(const std::string& hex) {
  if (hex.empty()) return std::optional<BlockKey>();
  const std::optional<BlockKey> key = Digest128::FromHex(hex);
  if (key) return key;
  return absl::InvalidArgumentError(
      absl::StrCat("block is '", hex, "', it must be the key's 32 hex digits"));
}

absl::Status RunInspect(const InspectOptions& options, Output& output) {
  const std::string directory = options.data_dir + "/ssd";
  KVTIER_ASSIGN_OR_RETURN(const std::optional<BlockKey> block, ParseBlock(options.block));
  KVTIER_ASSIGN_OR_RETURN(const std::unique_ptr<SsdInspector> inspector, Open(directory));
  SsdContents contents;
  inspector->VisitFiles([&](const SsdFileInfo& file, std::span<const StoredPart> parts) {
    contents.Add(file, parts);
  });
  const SsdSummary summary = contents.Summarize();
  std::vector<FoundRecord> found;
  if (block) {
    found = FindBlock(*inspector, *block);
    if (found.empty()) {
      return absl::NotFoundError(absl::StrCat("no file in ", directory, " has this block"));
    }
  }
  std::optional<Verified> verified;
  if (options.verify) verified = VerifyAll(*inspector, block, summary.records);
  KVTIER_RETURN_IF_ERROR(CheckUnused(directory));  // nor was it meanwhile
  if (block) {
    PrintBlock(found, contents, verified, output);
  } else {
    const int64_t now = std::time(nullptr);
    output.Print(SummaryJson(directory, summary, now, verified),
                 SummaryText(summary, now, verified));
  }
  return Verdict(verified);
}

}  // namespace

void AddInspectCommand(CLI::App& parent, Invocation* invocation) {
  CLI::App* command =
      AddCommand(parent, "inspect", "What a stopped daemon's SSD tier holds; writes nothing",
                 "kvtier inspect --data-dir ./kvtier-data --verify", invocation);
  command->footer(
      "The daemon must not run meanwhile. Live records are those that a daemon would find at its\n"
      "start, if the model is registered; superseded ones were written again later, forgotten "
      "ones\n"
      "were reset. Hits are the times that live blocks were in use when their file was to leave,\n"
      "and were written again: the disk knows of no others.\n" +
      command->get_footer());
  auto options = std::make_shared<InspectOptions>();
  command->add_option("--data-dir", options->data_dir, "kvtierd's data directory")
      ->capture_default_str();
  command->add_flag("--verify", options->verify,
                    "Read every record and check every byte; fails when one is bad");
  command->add_option("--block", options->block,
                      "Only the records of the block with this key, 32 hex digits");
  command->callback([options, invocation] {
    invocation->run = [options](Output& output) { return RunInspect(*options, output); };
  });
}

}  // namespace kvtier::cli
