#include "cli/trace_sessions.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <queue>
#include <random>
#include <utility>

#include "cli/json_output.h"
#include "common/prompt.h"

namespace kvtier::cli {
namespace {

constexpr uint64_t kSessionsPerLine = 100;  // of progress

// Fills std::mt19937's state as Python's random.seed does (init_by_array of Matsumoto and
// Nishimura's mt19937ar.c) for a whole number below 2^32.
class PythonSeed {
 public:
  using result_type = uint32_t;
  explicit PythonSeed(uint32_t seed) : seed_(seed) {}

  template <typename It>
  void generate(It begin, It end) const {
    const auto n = static_cast<size_t>(end - begin);
    const auto mixed = [&](size_t i, size_t j, uint32_t factor) {
      const uint32_t last = begin[j];
      return static_cast<uint32_t>(begin[i]) ^ ((last ^ (last >> 30)) * factor);
    };
    begin[0] = 19650218;
    for (size_t i = 1; i < n; ++i) {
      const uint32_t last = begin[i - 1];
      begin[i] = 1812433253 * (last ^ (last >> 30)) + static_cast<uint32_t>(i);
    }
    size_t i = 1;
    const auto step = [&] {
      if (++i < n) return;
      begin[0] = begin[n - 1];
      i = 1;
    };
    for (size_t k = 0; k < n; ++k, step()) begin[i] = mixed(i, i - 1, 1664525) + seed_;
    for (size_t k = 1; k < n; ++k, step()) {
      begin[i] = mixed(i, i - 1, 1566083941) - static_cast<uint32_t>(i);
    }
    begin[0] = 0x80000000;
  }

 private:
  const uint32_t seed_;
};

// Python's random.Random(seed).uniform(0, bound), draw by draw.
class PythonUniform {
 public:
  explicit PythonUniform(uint32_t seed) : bits_(Seeded(seed)) {}
  double Below(double bound) {
    const auto high = static_cast<double>(bits_() >> 5);
    const auto low = static_cast<double>(bits_() >> 6);
    return bound * ((high * 67108864 + low) / 9007199254740992);  // 2^26, 2^53
  }

 private:
  static std::mt19937 Seeded(uint32_t seed) {
    PythonSeed words(seed);
    return std::mt19937(words);
  }
  std::mt19937 bits_;
};

// One request, as what it adds to the one before it in its stream.
struct Step {
  double at_s = 0;  // since the trace's start
  uint64_t input_length = 0;
  uint64_t output_length = 0;
  uint32_t kept = 0;              // leading ids of the one before
  std::vector<uint64_t> new_ids;  // after those
};

// The requests of a session, or of a sub-agent, in order of time.
struct Stream {
  std::vector<Step> steps;
  size_t next = 0;
  std::vector<uint64_t> ids;  // of the step handed out last
};

absl::StatusOr<double> Seconds(const Json& entry, const std::string& where) {
  const auto found = entry.find("t");
  if (found != entry.end() && found->is_number() && found->get<double>() >= 0) {
    return found->get<double>();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(where, ": t is ", found == entry.end() ? "missing" : found->dump().substr(0, 40),
                   ", a number from 0 is needed"));
}

absl::StatusOr<uint64_t> Whole(const Json& entry, const char* field, const std::string& where) {
  const auto found = entry.find(field);
  if (found != entry.end() && found->is_number_unsigned()) return found->get<uint64_t>();
  return absl::InvalidArgumentError(absl::StrCat(
      where, ": ", field, " is ", found == entry.end() ? "missing" : found->dump().substr(0, 40),
      ", a whole number is needed"));
}

// Makes streams of one session's JSON.
class SessionParser {
 public:
  // `session`: what makes its ids its own.
  SessionParser(uint64_t session, uint32_t block_tokens, double start_s)
      : root_(Digest128::Of(absl::StrCat("session ", session))),
        block_tokens_(block_tokens),
        start_s_(start_s) {}

  absl::Status Parse(const std::string& text) {
    const Json session = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!session.is_object()) return absl::InvalidArgumentError("not a JSON object");
    KVTIER_ASSIGN_OR_RETURN(id_tokens_, Whole(session, "block_size", "session"));
    if (id_tokens_ == 0 || block_tokens_ % id_tokens_ != 0) {
      return absl::InvalidArgumentError(absl::StrCat("block-tokens is ", block_tokens_,
                                                     ", no multiple of the session's block_size, ",
                                                     id_tokens_));
    }
    const auto scope = session.find("hash_id_scope");
    if (scope == session.end() || *scope != "local") {
      return absl::InvalidArgumentError(absl::StrCat(
          "hash_id_scope is ", scope == session.end() ? "missing" : scope->dump().substr(0, 40),
          ", only \"local\" is known"));
    }
    return ParseRequests(session, start_s_, "requests");
  }

  // Without empty ones.
  std::vector<Stream> Take() { return std::move(streams_); }

 private:
  absl::Status ParseRequests(const Json& parent, double base_s, const std::string& where) {
    const auto requests = parent.find("requests");
    if (requests == parent.end() || !requests->is_array()) {
      return absl::InvalidArgumentError(where + " is no list");
    }
    Stream stream;
    std::vector<uint64_t> recorded;  // of the request before
    for (size_t i = 0; i < requests->size(); ++i) {
      const Json& entry = (*requests)[i];
      const std::string at = absl::StrCat(where, "[", i, "]");
      if (!entry.is_object()) return absl::InvalidArgumentError(at + " is no object");
      KVTIER_ASSIGN_OR_RETURN(const double t, Seconds(entry, at));
      if (entry.contains("requests")) {
        KVTIER_RETURN_IF_ERROR(ParseRequests(entry, base_s + t, at + ".requests"));
        continue;
      }
      KVTIER_RETURN_IF_ERROR(AddStep(entry, at, base_s + t, &recorded, &stream));
    }
    std::vector<uint64_t>().swap(stream.ids);
    if (!stream.steps.empty()) streams_.push_back(std::move(stream));
    return absl::OkStatus();
  }

  absl::Status AddStep(const Json& entry, const std::string& at, double at_s,
                       std::vector<uint64_t>* recorded, Stream* stream) {
    Step step;
    step.at_s = at_s;
    if (!stream->steps.empty() && at_s < stream->steps.back().at_s) {
      return absl::InvalidArgumentError(at + ": t is before that of the request before it");
    }
    KVTIER_ASSIGN_OR_RETURN(step.input_length, Whole(entry, "in", at));
    KVTIER_ASSIGN_OR_RETURN(step.output_length, Whole(entry, "out", at));
    KVTIER_ASSIGN_OR_RETURN(const size_t same, TakeIds(entry, at, step.input_length, recorded));
    const size_t group = block_tokens_ / id_tokens_;
    step.kept = static_cast<uint32_t>(same / group);
    AddIds(*recorded, step.kept, &stream->ids, &step.new_ids);
    stream->steps.push_back(std::move(step));
    return absl::OkStatus();
  }

  // Replaces `recorded` by this request's ids; how many leading ones are the same.
  absl::StatusOr<size_t> TakeIds(const Json& entry, const std::string& at, uint64_t input_length,
                                 std::vector<uint64_t>* recorded) const {
    const auto found = entry.find("hash_ids");
    if (found == entry.end() || !found->is_array()) {
      return absl::InvalidArgumentError(at + ": hash_ids is no list");
    }
    if (found->size() != input_length / id_tokens_) {
      return absl::InvalidArgumentError(absl::StrCat(
          at, ": hash_ids has ", found->size(), " ids, in is ", input_length, ": in blocks of ",
          id_tokens_, " tokens it has ", input_length / id_tokens_));
    }
    size_t same = 0;
    const size_t before = recorded->size();
    recorded->resize(found->size());
    for (size_t i = 0; i < found->size(); ++i) {
      const Json& id = (*found)[i];
      if (!id.is_number_unsigned()) {
        return absl::InvalidArgumentError(absl::StrCat(
            at, ": hash_ids[", i, "] is ", id.dump().substr(0, 40), ", no whole number"));
      }
      const uint64_t value = id.get<uint64_t>();
      if (same == i && i < before && (*recorded)[i] == value) ++same;
      (*recorded)[i] = value;
    }
    return same;
  }

  // Full blocks only. The chain is over 64 bits of each key: that is what an id has.
  void AddIds(const std::vector<uint64_t>& recorded, size_t kept, std::vector<uint64_t>* ids,
              std::vector<uint64_t>* added) const {
    const size_t group = block_tokens_ / id_tokens_;
    ids->resize(kept);
    BlockKey parent = root_;
    if (kept > 0) parent = BlockKey{root_.high, ids->back()};
    for (size_t block = kept; block < recorded.size() / group; ++block) {
      const auto* const own = reinterpret_cast<const char*>(&recorded[block * group]);
      const uint64_t id = ChildKey(parent, {own, group * sizeof(uint64_t)}).low;
      parent = BlockKey{root_.high, id};
      ids->push_back(id);
      added->push_back(id);
    }
  }

  const BlockKey root_;
  const uint32_t block_tokens_;
  const double start_s_;
  uint64_t id_tokens_ = 0;
  std::vector<Stream> streams_;
};

// Streams side by side, in order of time.
class SessionTrace final : public TraceSource {
 public:
  SessionTrace(std::vector<Stream> streams, uint64_t skipped, double end_s)
      : streams_(std::move(streams)), skipped_(skipped), end_s_(end_s) {
    for (size_t i = 0; i < streams_.size(); ++i) Enqueue(i);
  }

  absl::StatusOr<std::optional<TraceRequest>> Next() override {
    if (due_.empty()) return std::optional<TraceRequest>();
    const size_t number = due_.top().second;
    due_.pop();
    Stream& stream = streams_[number];
    Step& step = stream.steps[stream.next++];
    stream.ids.resize(step.kept);
    stream.ids.insert(stream.ids.end(), step.new_ids.begin(), step.new_ids.end());
    TraceRequest request;
    request.timestamp_ms = std::round(step.at_s * 1000);
    request.input_length = step.input_length;
    request.output_length = step.output_length;
    request.hash_ids = stream.ids;
    std::vector<uint64_t>().swap(step.new_ids);
    if (stream.next == stream.steps.size()) std::vector<uint64_t>().swap(stream.ids);
    Enqueue(number);
    return std::optional<TraceRequest>(std::move(request));
  }

  uint64_t skipped_lines() const override { return skipped_; }

 private:
  // One of a stream at a time. What comes after the end never does.
  void Enqueue(size_t number) {
    const Stream& stream = streams_[number];
    if (stream.next == stream.steps.size() || stream.steps[stream.next].at_s > end_s_) return;
    due_.emplace(stream.steps[stream.next].at_s, number);
  }

  using Due = std::pair<double, size_t>;  // when, and the stream's number
  std::vector<Stream> streams_;
  std::priority_queue<Due, std::vector<Due>, std::greater<>> due_;
  const uint64_t skipped_;
  const double end_s_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TraceSource>> OpenSessions(std::unique_ptr<TraceBytes> bytes,
                                                          const TraceReaderOptions& options) {
  const std::string path = bytes->path();
  TarReader tar(std::move(bytes));
  PythonUniform starts(options.session_seed);
  std::vector<Stream> streams;
  uint64_t skipped = 0;
  for (uint64_t number = 0;; ++number) {
    KVTIER_ASSIGN_OR_RETURN(const std::optional<TarMember> member, tar.Next());
    if (!member) break;
    if (options.progress && number > 0 && number % kSessionsPerLine == 0) {
      options.progress(absl::StrCat("trace: ", number, " sessions of the archive are read"));
    }
    SessionParser parser(number, options.block_tokens, starts.Below(options.spread_hours * 3600));
    const absl::Status parsed = parser.Parse(member->contents);
    if (!parsed.ok() && !options.skip_bad_lines) {
      return Annotate(parsed, absl::StrCat(path, ": member ", member->name));
    }
    skipped += !parsed.ok();
    if (!parsed.ok()) continue;
    for (Stream& stream : parser.Take()) streams.push_back(std::move(stream));
  }
  const double end_s = options.cut_hours > 0 ? options.cut_hours * 3600 : HUGE_VAL;
  return std::unique_ptr<TraceSource>(
      std::make_unique<SessionTrace>(std::move(streams), skipped, end_s));
}

}  // namespace kvtier::cli
