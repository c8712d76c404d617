#include "service/recorder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <optional>
#include <random>
#include <utility>

#include "common/check.h"
#include "common/log.h"
#include "xxhash.h"

namespace kvtier {
namespace {

constexpr uint64_t kQueueBytes = uint64_t{16} << 20;
constexpr uint64_t kQueuedBytesEach = 512;  // beside the message
constexpr uint64_t kLeastFileBytes = uint64_t{64} << 10;
constexpr uint64_t kMostFileBytes = uint64_t{1} << 40;
constexpr uint32_t kMostFiles = 10'000;
constexpr size_t kMostLineBytes = 16 << 20;  // that readers take
constexpr size_t kSecretBytes = 192;         // XXH3 uses all of it
constexpr uint64_t kIdMask = (uint64_t{1} << 53) - 1;
constexpr uint64_t kBlocksAtATime = 256;
constexpr char kNameFormat[] = "recording-%06llu-%06llu.jsonl";

absl::Status SystemError(const std::string& what, const std::string& path) {
  const int error = errno;
  return absl::ErrnoToStatus(error, absl::StrCat(what, " ", path));
}

absl::Status CheckOptions(const RecordingOptions& options) {
  if (options.max_file_bytes < kLeastFileBytes || options.max_file_bytes > kMostFileBytes) {
    return absl::InvalidArgumentError(absl::StrCat("max_file_bytes is ", options.max_file_bytes,
                                                   ", the limits are ", kLeastFileBytes, " and ",
                                                   kMostFileBytes));
  }
  if (options.max_files < 1 || options.max_files > kMostFiles) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_files is ", options.max_files, ", the limits are 1 and ", kMostFiles));
  }
  return absl::OkStatus();
}

std::string FileName(uint64_t recording, uint64_t file) {
  char name[64];
  std::snprintf(name, sizeof(name), kNameFormat, static_cast<unsigned long long>(recording),
                static_cast<unsigned long long>(file));
  return name;
}

// The recording that a file of this name belongs to; 0: none of ours.
uint64_t RecordingOf(const std::string& name) {
  unsigned long long recording = 0;
  unsigned long long file = 0;
  if (std::sscanf(name.c_str(), kNameFormat, &recording, &file) != 2) return 0;
  return FileName(recording, file) == name ? recording : 0;
}

// Recordings' files in their order; their names ascend.
absl::StatusOr<std::vector<std::string>> ListRecordings(const std::string& directory) {
  std::error_code error;
  std::vector<std::string> names;
  for (std::filesystem::directory_iterator at(directory, error), end; !error && at != end;
       at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (RecordingOf(name) > 0) names.push_back(name);
  }
  if (error) return absl::ErrnoToStatus(error.value(), absl::StrCat("cannot read ", directory));
  std::sort(names.begin(), names.end());
  return names;
}

std::string RandomSecret() {
  std::random_device random;
  std::string secret;
  while (secret.size() < kSecretBytes) {
    const auto word = random();
    secret.append(reinterpret_cast<const char*>(&word), sizeof(word));
  }
  return secret;
}

void AppendNumber(uint64_t value, std::string* out) {
  char digits[20];
  out->append(digits, std::to_chars(digits, digits + sizeof(digits), value).ptr);
}

void AppendIds(const std::string& secret, PromptCursor* prompt, std::string* out) {
  std::vector<BlockIdentity> blocks;
  while (prompt->position() < prompt->blocks()) {
    blocks.clear();
    prompt->Next(kBlocksAtATime, &blocks);
    for (const BlockIdentity& block : blocks) {
      const std::string key = block.key.ToBytes();
      const uint64_t hash =
          XXH3_64bits_withSecret(key.data(), key.size(), secret.data(), secret.size());
      AppendNumber(hash & kIdMask, out);
      out->push_back(',');
    }
  }
  if (out->back() == ',') out->pop_back();
}

}  // namespace

// ------------------------------------------------------------------------------------------------
// RecordingFiles

absl::StatusOr<std::unique_ptr<RecordingFiles>> RecordingFiles::Create(const std::string& directory,
                                                                       RecordingOptions options) {
  if (mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) {
    return SystemError("cannot make", directory);
  }
  KVTIER_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListRecordings(directory));
  const uint64_t last = names.empty() ? 0 : RecordingOf(names.back());
  std::unique_ptr<RecordingFiles> files(new RecordingFiles(directory, options, last + 1));
  KVTIER_RETURN_IF_ERROR(files->NextFile());
  return files;
}

absl::Status RecordingFiles::NextFile() {
  KVTIER_RETURN_IF_ERROR(RemoveOldest());
  const std::string path = directory_ + "/" + FileName(number_, next_file_);
  UniqueFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0600));
  if (!fd) return SystemError("cannot create", path);
  fd_ = std::move(fd);
  ++next_file_;
  file_bytes_ = 0;
  files_.push_back(path);
  return absl::OkStatus();
}

// Makes room for one more.
absl::Status RecordingFiles::RemoveOldest() {
  KVTIER_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListRecordings(directory_));
  for (size_t i = 0; i + options_.max_files < names.size() + 1; ++i) {
    const std::string path = directory_ + "/" + names[i];
    if (unlink(path.c_str()) != 0 && errno != ENOENT) return SystemError("cannot remove", path);
    files_.erase(std::remove(files_.begin(), files_.end(), path), files_.end());
  }
  return absl::OkStatus();
}

absl::Status RecordingFiles::Append(std::string_view line) {
  KVTIER_CHECK(line.size() <= options_.max_file_bytes);
  if (file_bytes_ + line.size() > options_.max_file_bytes) KVTIER_RETURN_IF_ERROR(NextFile());
  KVTIER_RETURN_IF_ERROR(CheckThere());
  const absl::Status written = WriteWhole(line);
  if (!written.ok()) {  // half a line would be read as damage
    if (ftruncate(fd_.get(), static_cast<off_t>(file_bytes_)) != 0) {
      return Annotate(written, "the last line is cut off");
    }
    return written;
  }
  file_bytes_ += line.size();
  return absl::OkStatus();
}

absl::Status RecordingFiles::CheckThere() const {
  struct stat open_one {};
  struct stat named {};
  const bool there = fstat(fd_.get(), &open_one) == 0 && stat(files_.back().c_str(), &named) == 0;
  if (there && open_one.st_ino == named.st_ino && open_one.st_dev == named.st_dev) {
    return absl::OkStatus();
  }
  return absl::NotFoundError(absl::StrCat(files_.back(), " was removed while it was written"));
}

absl::Status RecordingFiles::WriteWhole(std::string_view line) {
  while (!line.empty()) {
    const ssize_t written = write(fd_.get(), line.data(), line.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return SystemError("cannot write", files_.back());
    line.remove_prefix(written);
  }
  return absl::OkStatus();
}

// ------------------------------------------------------------------------------------------------
// Recorder

absl::StatusOr<RecordingStatus> Recorder::Start(RecordingOptions options) {
  KVTIER_RETURN_IF_ERROR(CheckOptions(options));
  {
    MutexLock lock(mutex_);
    if (status_.on || starting_) {
      return absl::FailedPreconditionError("a recording is on; stop it before the next");
    }
    starting_ = true;
    WaitForWriter();  // of a recording that just ended
  }
  absl::StatusOr<std::unique_ptr<RecordingFiles>> files =
      RecordingFiles::Create(directory_, options);
  MutexLock lock(mutex_);
  starting_ = false;
  KVTIER_RETURN_IF_ERROR(Annotate(files.status(), "recording"));
  Log(LogLevel::kInfo, "recording started",
      {{"file", (*files)->files().back()},
       {"max_file_bytes", options.max_file_bytes},
       {"max_files", options.max_files}});
  status_ = RecordingStatus();
  status_.on = true;
  status_.directory = directory_;
  status_.options = options;
  status_.files = (*files)->files();
  recording_ = std::make_unique<Recording>();
  recording_->files = *std::move(files);
  recording_->max_line_bytes = std::min<uint64_t>(options.max_file_bytes, kMostLineBytes);
  recording_->secret = RandomSecret();
  started_ = clock_->Now();
  dropped_before_ = 0;
  on_ = true;
  return StatusLocked();
}

absl::StatusOr<RecordingStatus> Recorder::Stop() {
  MutexLock lock(mutex_);
  if (on()) {
    on_ = false;
    status_.seconds = std::chrono::duration<double>(clock_->Now() - started_).count();
  }
  WaitForWriter();
  if (status_.on) {
    const absl::Status there = recording_->files->CheckThere();
    if (!there.ok()) EndLocked(std::string(there.message()));
  }
  if (!status_.on) {
    return absl::FailedPreconditionError(
        status_.why.empty() ? "no recording is on"
                            : absl::StrCat("the recording has ended by itself: ", status_.why));
  }
  EndLocked("");
  return StatusLocked();
}

void Recorder::Record(RecordedLookup lookup) {
  bool start = false;
  {
    MutexLock lock(mutex_);
    if (!on()) return;
    const uint64_t bytes = lookup.bytes + kQueuedBytesEach;
    if (queued_bytes_ + bytes > kQueueBytes) {
      ++dropped_before_;
      return CountDroppedLocked(1);
    }
    // Under the lock, so that times in the file do not descend.
    const Duration since = clock_->Now() - started_;
    const int64_t ms = std::chrono::duration_cast<std::chrono::milliseconds>(since).count();
    queued_bytes_ += bytes;
    queue_.push_back({ms, std::exchange(dropped_before_, 0), std::move(lookup)});
    start = !std::exchange(writing_, true);
  }
  if (start) executor_->Run([this] { WriteQueued(); });
}

RecordingStatus Recorder::status() const {
  MutexLock lock(mutex_);
  return StatusLocked();
}

RecordingStatus Recorder::StatusLocked() const {
  RecordingStatus status = status_;
  if (on()) status.seconds = std::chrono::duration<double>(clock_->Now() - started_).count();
  return status;
}

void Recorder::CountDroppedLocked(uint64_t lookups) {
  status_.dropped += lookups;
  dropped_total_.Add(lookups);
}

// The writer: until nothing is queued.
void Recorder::WriteQueued() {
  while (true) {
    std::optional<Queued> next;
    {
      MutexLock lock(mutex_);
      if (queue_.empty()) {
        writing_ = false;
        writer_idle_.NotifyAll();
        return;
      }
      next = std::move(queue_.front());
      queue_.pop_front();
      queued_bytes_ -= next->lookup.bytes + kQueuedBytesEach;
    }
    const absl::Status written = Write(&*next);
    if (written.ok()) continue;
    MutexLock lock(mutex_);
    CountDroppedLocked(1 + queue_.size());
    queue_.clear();
    queued_bytes_ = 0;
    EndLocked(std::string(written.message()));
  }
}

std::string Recorder::Line(Queued* queued) {
  RecordedLookup& lookup = queued->lookup;
  const auto [model, _] = recording_->models.try_emplace(
      lookup.model, static_cast<uint32_t>(recording_->models.size() + 1));
  std::string line =
      absl::StrCat("{\"timestamp\":", queued->timestamp_ms, ",\"model\":", model->second,
                   ",\"block_tokens\":", lookup.block_tokens,
                   ",\"input_length\":", lookup.input_tokens, ",\"output_length\":0,");
  if (recording_->dropped > 0) absl::StrAppend(&line, "\"dropped\":", recording_->dropped, ",");
  line += "\"hash_ids\":[";
  AppendIds(recording_->secret, &lookup.prompt, &line);
  line += "]}\n";
  return line;
}

absl::Status Recorder::Write(Queued* queued) {
  recording_->dropped += queued->dropped_before;
  const std::string line = Line(queued);
  const bool fits = line.size() <= recording_->max_line_bytes;
  if (fits) KVTIER_RETURN_IF_ERROR(recording_->files->Append(line));
  recording_->dropped = fits ? 0 : recording_->dropped + 1;
  MutexLock lock(mutex_);
  status_.models = static_cast<uint32_t>(recording_->models.size());
  if (!fits) {
    CountDroppedLocked(1);
    return absl::OkStatus();
  }
  status_.files = recording_->files->files();
  status_.bytes += line.size();
  ++status_.requests;
  recorded_total_.Add();
  return absl::OkStatus();
}

void Recorder::EndLocked(std::string why) {
  if (on()) status_.seconds = std::chrono::duration<double>(clock_->Now() - started_).count();
  on_ = false;
  status_.on = false;
  status_.why = std::move(why);
  recording_ = nullptr;
  Log(status_.why.empty() ? LogLevel::kInfo : LogLevel::kError, "recording ended",
      {{"why", status_.why.empty() ? "asked for" : status_.why},
       {"requests", status_.requests},
       {"dropped", status_.dropped},
       {"bytes", status_.bytes}});
}

void Recorder::WaitForWriter() {
  while (writing_) {
    mutex_.Unlock();
    const bool ran = executor_->RunOne();
    mutex_.Lock();
    if (!ran && writing_) writer_idle_.Wait(mutex_);
  }
}

}  // namespace kvtier
