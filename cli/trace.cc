#include "cli/trace.h"

#include <algorithm>
#include <utility>

#include "cli/json_output.h"
#include "cli/trace_sessions.h"
#include "cli/trace_stream.h"
#include "cli/trace_tar.h"
#include "common/prompt.h"

namespace kvtier::cli {
namespace {

constexpr size_t kMostLineBytes = 16 << 20;
constexpr size_t kBytesToRecognise = 512;

class TraceReader final : public TraceSource {
 public:
  TraceReader(std::unique_ptr<TraceBytes> bytes, TraceReaderOptions options)
      : options_(options), bytes_(std::move(bytes)) {}

  absl::StatusOr<std::optional<TraceRequest>> Next() override {
    while (true) {
      KVTIER_ASSIGN_OR_RETURN(const std::optional<std::string_view> line, NextLine());
      if (!line) return std::optional<TraceRequest>();
      if (too_long_) {
        ++skipped_;
        continue;
      }
      if (line->find_first_not_of(" \t\r") == std::string_view::npos) continue;
      absl::StatusOr<std::optional<TraceRequest>> request = Parse(*line);
      if (request.ok() && *request) return request;
      if (request.ok()) continue;
      if (!options_.skip_bad_lines) {
        return Annotate(request.status(), absl::StrCat(bytes_->path(), ":", line_));
      }
      ++skipped_;
    }
  }

  uint64_t skipped_lines() const override { return skipped_; }

 private:
  // Empty when it is of another model than wanted.
  absl::StatusOr<std::optional<TraceRequest>> Parse(std::string_view line) {
    KVTIER_ASSIGN_OR_RETURN(TraceRequest request, ParseTraceLine(line, options_.block_tokens));
    if (options_.model != 0 && request.model != options_.model) {
      return std::optional<TraceRequest>();
    }
    if (request.block_tokens != 0 && request.block_tokens != options_.block_tokens) {
      return absl::InvalidArgumentError(
          absl::StrCat("block_tokens is ", request.block_tokens, " of model ", request.model,
                       ", the trace is read in blocks of ", options_.block_tokens,
                       ": --block-tokens says how to read it, --model takes one model's requests"));
    }
    if (request.timestamp_ms < last_timestamp_ms_) {
      return absl::InvalidArgumentError(absl::StrCat("timestamp is ", request.timestamp_ms,
                                                     ", before the line before it, ",
                                                     last_timestamp_ms_));
    }
    last_timestamp_ms_ = request.timestamp_ms;
    return std::optional<TraceRequest>(std::move(request));
  }

  // Valid until the next call. Of a line that is too long (with skip_bad_lines) what is left.
  absl::StatusOr<std::optional<std::string_view>> NextLine() {
    bytes_->Consume(std::exchange(taken_, 0));
    too_long_ = false;
    size_t searched = 0;
    while (true) {
      const size_t end = bytes_->unread().find('\n', searched);
      if (end != std::string::npos) return Line(end, end + 1);
      searched = bytes_->unread().size();
      if (searched > kMostLineBytes) {
        if (!options_.skip_bad_lines) {
          return absl::InvalidArgumentError(absl::StrCat(
              bytes_->path(), ":", line_ + 1, ": longer than ", kMostLineBytes, " bytes"));
        }
        too_long_ = true;
        bytes_->Consume(std::exchange(searched, 0));
      }
      KVTIER_ASSIGN_OR_RETURN(const bool more, bytes_->Fill());
      if (more) continue;
      if (searched == 0 && !too_long_) return std::optional<std::string_view>();
      return Line(searched, searched);
    }
  }

  std::optional<std::string_view> Line(size_t end, size_t taken) {
    taken_ = taken;
    ++line_;
    return bytes_->unread().substr(0, end);
  }

  const TraceReaderOptions options_;
  const std::unique_ptr<TraceBytes> bytes_;
  size_t taken_ = 0;       // by the line handed out last
  bool too_long_ = false;  // the line handed out last
  uint64_t line_ = 0;
  uint64_t skipped_ = 0;
  double last_timestamp_ms_ = 0;
};

// splitmix64: the standard library's distributions differ between implementations, this does not.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  uint64_t Below(uint64_t bound) { return Next() % bound; }

 private:
  uint64_t state_;
};

class TraceGenerator final : public TraceSource {
 public:
  explicit TraceGenerator(const GeneratorOptions& options)
      : options_(options), random_(options.seed), sessions_(options.open_sessions) {
    next_id_ = uint64_t{options.system_prompts} * options.system_blocks;
  }

  absl::StatusOr<std::optional<TraceRequest>> Next() override {
    if (made_ == options_.requests) return std::optional<TraceRequest>();
    ++made_;
    Session& session = sessions_[random_.Below(sessions_.size())];
    if (session.turns_left == 0) Open(&session);
    --session.turns_left;
    Grow(&session, 1 + random_.Below(2 * options_.turn_blocks - 1));
    TraceRequest request;
    request.timestamp_ms = static_cast<double>(now_ms_);
    now_ms_ += random_.Below(200);
    request.hash_ids = session.ids;
    // The last block is full only now and then.
    const uint64_t missing = random_.Below(options_.block_tokens);
    request.input_length = session.ids.size() * options_.block_tokens - missing;
    request.output_length = 1 + random_.Below(options_.block_tokens);
    if (missing > 0) session.ids.pop_back();  // the next turn fills this block: another id
    return std::optional<TraceRequest>(std::move(request));
  }

 private:
  struct Session {
    uint64_t turns_left = 0;
    std::vector<uint64_t> ids;
  };

  void Open(Session* session) {
    session->turns_left = 1 + random_.Below(2 * options_.turns - 1);
    session->ids.clear();
    const uint64_t prompt = random_.Below(options_.system_prompts);
    for (uint64_t i = 0; i < options_.system_blocks; ++i) {
      session->ids.push_back(prompt * options_.system_blocks + i);
    }
  }

  void Grow(Session* session, uint64_t blocks) {
    for (uint64_t i = 0; i < blocks; ++i) session->ids.push_back(next_id_++);
  }

  const GeneratorOptions options_;
  Random random_;
  std::vector<Session> sessions_;
  uint64_t next_id_;
  uint64_t made_ = 0;
  uint64_t now_ms_ = 0;
};

absl::StatusOr<uint64_t> Whole(const Json& line, const char* field) {
  const auto found = line.find(field);
  if (found == line.end()) return absl::InvalidArgumentError(absl::StrCat(field, " is missing"));
  if (found->is_number_unsigned()) return found->get<uint64_t>();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", found->dump().substr(0, 40), ", no whole number"));
}

// What a recording adds; 0 when it is missing.
absl::StatusOr<uint32_t> SmallWholeOrZero(const Json& line, const char* field) {
  if (!line.contains(field)) return 0;
  KVTIER_ASSIGN_OR_RETURN(const uint64_t value, Whole(line, field));
  if (value <= UINT32_MAX) return static_cast<uint32_t>(value);
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", value, ", the limit is ", UINT32_MAX));
}

absl::StatusOr<double> Timestamp(const Json& line) {
  const auto found = line.find("timestamp");
  if (found == line.end()) return absl::InvalidArgumentError("timestamp is missing");
  if (found->is_number() && found->get<double>() >= 0) return found->get<double>();
  return absl::InvalidArgumentError(
      absl::StrCat("timestamp is ", found->dump().substr(0, 40), ", no number from 0"));
}

absl::StatusOr<std::vector<uint64_t>> HashIds(const Json& line) {
  const auto found = line.find("hash_ids");
  if (found == line.end()) return absl::InvalidArgumentError("hash_ids is missing");
  if (!found->is_array()) return absl::InvalidArgumentError("hash_ids is no list");
  std::vector<uint64_t> ids;
  ids.reserve(found->size());
  for (const Json& id : *found) {
    if (!id.is_number_unsigned()) {
      return absl::InvalidArgumentError(absl::StrCat("hash_ids[", ids.size(), "] is ",
                                                     id.dump().substr(0, 40), ", no whole number"));
    }
    ids.push_back(id.get<uint64_t>());
  }
  return ids;
}

absl::StatusOr<TraceRequest> ParseHashes(const Json& line, uint32_t block_tokens) {
  TraceRequest request;
  KVTIER_ASSIGN_OR_RETURN(request.input_length, Whole(line, "input_length"));
  KVTIER_ASSIGN_OR_RETURN(request.output_length, Whole(line, "output_length"));
  KVTIER_ASSIGN_OR_RETURN(request.hash_ids, HashIds(line));
  KVTIER_ASSIGN_OR_RETURN(request.model, SmallWholeOrZero(line, "model"));
  KVTIER_ASSIGN_OR_RETURN(request.block_tokens, SmallWholeOrZero(line, "block_tokens"));
  if (request.block_tokens != 0) block_tokens = request.block_tokens;
  const uint64_t full = request.input_length / block_tokens;
  const uint64_t partial = request.input_length % block_tokens == 0 ? 0 : 1;
  const uint64_t ids = request.hash_ids.size();
  if (ids == full || ids == full + partial) return request;
  return absl::InvalidArgumentError(absl::StrCat(
      "hash_ids has ", ids, " ids, input_length is ", request.input_length, ", in blocks of ",
      block_tokens, " tokens it needs ", full, partial != 0 ? absl::StrCat(" or ", full + 1) : ""));
}

absl::StatusOr<std::vector<uint32_t>> Tokens(const Json& list) {
  if (!list.is_array()) return absl::InvalidArgumentError("tokens is no list");
  std::vector<uint32_t> tokens;
  tokens.reserve(list.size());
  for (const Json& token : list) {
    if (!token.is_number_unsigned() || token.get<uint64_t>() > UINT32_MAX) {
      return absl::InvalidArgumentError(absl::StrCat("tokens[", tokens.size(), "] is ",
                                                     token.dump().substr(0, 40),
                                                     ", no whole number below 2^32"));
    }
    tokens.push_back(token.get<uint32_t>());
  }
  return tokens;
}

// The ids are the keys that the blocks would have in a namespace of no name, 64 bits of each.
absl::StatusOr<TraceRequest> ParseTokens(const Json& line, uint32_t block_tokens) {
  TraceRequest request;
  if (line.contains("output_length")) {
    KVTIER_ASSIGN_OR_RETURN(request.output_length, Whole(line, "output_length"));
  }
  KVTIER_ASSIGN_OR_RETURN(const std::vector<uint32_t> tokens, Tokens(line["tokens"]));
  request.input_length = tokens.size();
  const std::string_view bytes(reinterpret_cast<const char*>(tokens.data()),
                               tokens.size() * sizeof(uint32_t));
  BlockKey key;
  const size_t step = size_t{block_tokens} * sizeof(uint32_t);
  for (size_t at = 0; at < bytes.size(); at += step) {
    key = ChildKey(key, bytes.substr(at, step));
    request.hash_ids.push_back(key.low);
  }
  return request;
}

absl::Status CheckOptions(const TraceReaderOptions& options) {
  constexpr double kMostHours = 1e6;
  if (options.block_tokens == 0) {
    return absl::InvalidArgumentError("block-tokens is 0, the least is 1");
  }
  for (const auto& [name, hours] : {std::pair("session-spread-hours", options.spread_hours),
                                    std::pair("session-cut-hours", options.cut_hours)}) {
    if (hours >= 0 && hours <= kMostHours) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(name, " is ", hours, ", the limits are 0 and ", kMostHours));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TraceRequest> ParseTraceLine(std::string_view text, uint32_t block_tokens) {
  const Json line = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!line.is_object()) return absl::InvalidArgumentError("not a JSON object");
  KVTIER_ASSIGN_OR_RETURN(const double timestamp, Timestamp(line));
  KVTIER_ASSIGN_OR_RETURN(TraceRequest request, line.contains("tokens")
                                                    ? ParseTokens(line, block_tokens)
                                                    : ParseHashes(line, block_tokens));
  request.timestamp_ms = timestamp;
  return request;
}

absl::StatusOr<std::unique_ptr<TraceSource>> OpenTrace(const std::string& path,
                                                       TraceReaderOptions options) {
  KVTIER_RETURN_IF_ERROR(CheckOptions(options));
  KVTIER_ASSIGN_OR_RETURN(std::unique_ptr<TraceBytes> bytes, TraceBytes::Open(path));
  bool more = true;
  while (more && bytes->unread().size() < kBytesToRecognise) {
    KVTIER_ASSIGN_OR_RETURN(more, bytes->Fill());
  }
  if (TarReader::Recognises(bytes->unread())) return OpenSessions(std::move(bytes), options);
  return std::unique_ptr<TraceSource>(std::make_unique<TraceReader>(std::move(bytes), options));
}

std::unique_ptr<TraceSource> MakeGenerator(const GeneratorOptions& options) {
  return std::make_unique<TraceGenerator>(options);
}

size_t UsedBlocks(const TraceRequest& request, uint32_t block_tokens, bool full_only) {
  if (!full_only) return request.hash_ids.size();
  return std::min<uint64_t>(request.hash_ids.size(), request.input_length / block_tokens);
}

}  // namespace kvtier::cli
