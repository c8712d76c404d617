#include "cli/trace.h"

#include <zstd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "cli/json_output.h"

namespace kvtier::cli {
namespace {

constexpr size_t kMostLineBytes = 16 << 20;
constexpr size_t kReadBytes = 1 << 18;

struct FileCloser {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, FileCloser>;

struct StreamFreer {
  void operator()(ZSTD_DStream* stream) const { ZSTD_freeDStream(stream); }
};

// The bytes of a file, decompressed when it is a zstd file.
class ByteStream {
 public:
  ByteStream(File file, std::string path) : file_(std::move(file)), path_(std::move(path)) {}

  // Looks at the first bytes to know which kind it is.
  absl::Status Start() {
    KVTIER_RETURN_IF_ERROR(Refill());
    static constexpr unsigned char kMagic[] = {0x28, 0xb5, 0x2f, 0xfd};
    if (filled_ >= sizeof(kMagic) && std::memcmp(raw_.data(), kMagic, sizeof(kMagic)) == 0) {
      zstd_.reset(ZSTD_createDStream());
      frame_open_ = true;
    }
    return absl::OkStatus();
  }

  // Appends some bytes; appends none only at the end.
  absl::Status Read(std::string* out) { return zstd_ ? ReadZstd(out) : ReadPlain(out); }

 private:
  absl::Status Refill() {
    raw_.resize(kReadBytes);
    taken_ = 0;
    filled_ = std::fread(raw_.data(), 1, raw_.size(), file_.get());
    if (std::ferror(file_.get()) != 0) return absl::DataLossError(path_ + ": read error");
    return absl::OkStatus();
  }

  absl::Status ReadPlain(std::string* out) {
    if (taken_ == filled_) KVTIER_RETURN_IF_ERROR(Refill());
    out->append(raw_, taken_, filled_ - taken_);
    taken_ = filled_;
    return absl::OkStatus();
  }

  absl::Status ReadZstd(std::string* out) {
    const size_t before = out->size();
    while (out->size() == before) {
      if (taken_ == filled_ && !output_waits_) KVTIER_RETURN_IF_ERROR(Refill());
      if (filled_ == 0 && !output_waits_) {
        return frame_open_ ? absl::DataLossError(path_ + ": the zstd stream is cut off")
                           : absl::OkStatus();
      }
      out->resize(before + ZSTD_DStreamOutSize());
      ZSTD_inBuffer in{raw_.data(), filled_, taken_};
      ZSTD_outBuffer to{out->data() + before, ZSTD_DStreamOutSize(), 0};
      const size_t result = ZSTD_decompressStream(zstd_.get(), &to, &in);
      out->resize(before + to.pos);
      taken_ = in.pos;
      if (ZSTD_isError(result)) {
        return absl::DataLossError(
            absl::StrCat(path_, ": damaged zstd stream: ", ZSTD_getErrorName(result)));
      }
      frame_open_ = result != 0;
      output_waits_ = frame_open_ && to.pos == to.size;
    }
    return absl::OkStatus();
  }

  const File file_;
  const std::string path_;
  std::unique_ptr<ZSTD_DStream, StreamFreer> zstd_;  // null for a plain file
  bool frame_open_ = false;
  bool output_waits_ = false;  // the decompressor may hold more than it could hand out
  std::string raw_;            // [taken_, filled_) is unread
  size_t taken_ = 0;
  size_t filled_ = 0;
};

class TraceReader final : public TraceSource {
 public:
  TraceReader(File file, const std::string& path, TraceReaderOptions options)
      : path_(path), options_(options), stream_(std::move(file), path) {}

  absl::Status Start() { return stream_.Start(); }

  absl::StatusOr<std::optional<TraceRequest>> Next() override {
    while (true) {
      KVTIER_ASSIGN_OR_RETURN(const std::optional<std::string_view> line, NextLine());
      if (!line) return std::optional<TraceRequest>();
      if (line->find_first_not_of(" \t\r") == std::string_view::npos) continue;
      absl::StatusOr<TraceRequest> request = Parse(*line);
      if (request.ok()) return std::optional<TraceRequest>(*std::move(request));
      if (!options_.skip_bad_lines) {
        return Annotate(request.status(), absl::StrCat(path_, ":", line_));
      }
      ++skipped_;
    }
  }

  uint64_t skipped_lines() const override { return skipped_; }

 private:
  absl::StatusOr<TraceRequest> Parse(std::string_view line) {
    KVTIER_ASSIGN_OR_RETURN(TraceRequest request, ParseTraceLine(line, options_.block_tokens));
    if (request.timestamp_ms < last_timestamp_ms_) {
      return absl::InvalidArgumentError(absl::StrCat("timestamp is ", request.timestamp_ms,
                                                     ", before the line before it, ",
                                                     last_timestamp_ms_));
    }
    last_timestamp_ms_ = request.timestamp_ms;
    return request;
  }

  // Valid until the next call.
  absl::StatusOr<std::optional<std::string_view>> NextLine() {
    buffer_.erase(0, consumed_);
    consumed_ = 0;
    size_t searched = 0;
    while (true) {
      const size_t end = buffer_.find('\n', searched);
      if (end != std::string::npos) return Line(end, end + 1);
      searched = buffer_.size();
      if (searched > kMostLineBytes) {
        return absl::InvalidArgumentError(
            absl::StrCat(path_, ":", line_ + 1, ": longer than ", kMostLineBytes, " bytes"));
      }
      KVTIER_RETURN_IF_ERROR(stream_.Read(&buffer_));
      if (buffer_.size() > searched) continue;
      if (buffer_.empty()) return std::optional<std::string_view>();
      return Line(buffer_.size(), buffer_.size());
    }
  }

  std::optional<std::string_view> Line(size_t end, size_t consumed) {
    consumed_ = consumed;
    ++line_;
    return std::string_view(buffer_).substr(0, end);
  }

  const std::string path_;
  const TraceReaderOptions options_;
  ByteStream stream_;
  std::string buffer_;
  size_t consumed_ = 0;
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

}  // namespace

absl::StatusOr<TraceRequest> ParseTraceLine(std::string_view text, uint32_t block_tokens) {
  const Json line = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!line.is_object()) return absl::InvalidArgumentError("not a JSON object");
  TraceRequest request;
  KVTIER_ASSIGN_OR_RETURN(request.timestamp_ms, Timestamp(line));
  KVTIER_ASSIGN_OR_RETURN(request.input_length, Whole(line, "input_length"));
  KVTIER_ASSIGN_OR_RETURN(request.output_length, Whole(line, "output_length"));
  KVTIER_ASSIGN_OR_RETURN(request.hash_ids, HashIds(line));
  const uint64_t full = request.input_length / block_tokens;
  const uint64_t partial = request.input_length % block_tokens == 0 ? 0 : 1;
  const uint64_t ids = request.hash_ids.size();
  if (ids == full || ids == full + partial) return request;
  return absl::InvalidArgumentError(absl::StrCat(
      "hash_ids has ", ids, " ids, input_length is ", request.input_length, ", in blocks of ",
      block_tokens, " tokens it needs ", full, partial != 0 ? absl::StrCat(" or ", full + 1) : ""));
}

absl::StatusOr<std::unique_ptr<TraceSource>> OpenTrace(const std::string& path,
                                                       TraceReaderOptions options) {
  File file(std::fopen(path.c_str(), "rb"));
  if (file == nullptr) {
    return absl::NotFoundError(absl::StrCat("cannot read ", path, ": ", std::strerror(errno)));
  }
  auto reader = std::make_unique<TraceReader>(std::move(file), path, options);
  KVTIER_RETURN_IF_ERROR(reader->Start());
  return std::unique_ptr<TraceSource>(std::move(reader));
}

std::unique_ptr<TraceSource> MakeGenerator(const GeneratorOptions& options) {
  return std::make_unique<TraceGenerator>(options);
}

size_t UsedBlocks(const TraceRequest& request, uint32_t block_tokens, bool full_only) {
  if (!full_only) return request.hash_ids.size();
  return std::min<uint64_t>(request.hash_ids.size(), request.input_length / block_tokens);
}

}  // namespace kvtier::cli
