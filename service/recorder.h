// Writes the daemon's own traffic as a trace, so that an operator sizes tiers on real requests. One
// JSON line for each Lookup that was answered (but for those made on behalf of a Store), in
// Mooncake's format with three more fields; docs/TRACES.md:
//   {"timestamp":27482,"model":1,"block_tokens":16,"input_length":70,"output_length":0,
//    "hash_ids":[2513346190521,...]}
//   timestamp     ms since the recording's start
//   model         number of the model within the recording, from 1
//   input_length  tokens of the prompt; with engine hashes block_tokens for each
//   hash_ids      one per full block, hit or not; equal ids are equal prefixes
//   dropped       only where requests were left out: how many since the line before
//
// An id is the XXH3-64 of the block's key under a random secret of this recording, cut to 53 bits
// (what JSON readers hold exactly). The secret is in memory only, so ids say nothing outside of
// their recording. No tokens, tenant, salt, adapter or model name is written. What a file does show
// is when requests came, how long they were and which of them share a prefix.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/clock.h"
#include "common/executor.h"
#include "common/metrics.h"
#include "common/mutex.h"
#include "common/prompt.h"
#include "common/status.h"
#include "common/unique_fd.h"

namespace kvtier {

struct RecordingOptions {
  uint64_t max_file_bytes = uint64_t{256} << 20;  // 64 KiB to 1 TiB
  // 1 to 10,000, in the directory, those of earlier recordings included; the oldest leave.
  uint32_t max_files = 4;
};

// One answered Lookup. `prompt` points into what `memory` keeps.
struct RecordedLookup {
  ModelId model;
  uint32_t block_tokens = 0;
  uint64_t input_tokens = 0;
  PromptCursor prompt;
  uint64_t bytes = 0;  // held until it is written
  std::shared_ptr<const void> memory;
};

struct RecordingStatus {
  bool on = false;
  std::string why;                 // it ended by itself
  std::string directory;           // empty before the first
  std::vector<std::string> files;  // of this recording that are still there, oldest first
  double seconds = 0;              // since its start, until its end
  uint64_t requests = 0;           // written
  uint64_t dropped = 0;            // came faster than they were written, or too long for a file
  uint64_t bytes = 0;              // written, files that have left included
  uint32_t models = 0;
  RecordingOptions options;
};

// The files of one recording: lines, whole in every file. Not thread-safe.
class RecordingFiles {
 public:
  // Makes `directory` (0700) when missing.
  static absl::StatusOr<std::unique_ptr<RecordingFiles>> Create(const std::string& directory,
                                                                RecordingOptions options);
  RecordingFiles(const RecordingFiles&) = delete;
  RecordingFiles& operator=(const RecordingFiles&) = delete;

  // `line` ends with a newline. Begins the next file, and removes the oldest, when it no longer
  // fits the present one. On an error (the disk is full, CheckThere) nothing of the line is left.
  // REQUIRES: line.size() <= max_file_bytes.
  absl::Status Append(std::string_view line);
  // NOT_FOUND when somebody has removed or replaced the last file: what is written is nowhere then.
  absl::Status CheckThere() const;
  const std::vector<std::string>& files() const { return files_; }

 private:
  RecordingFiles(std::string directory, RecordingOptions options, uint64_t number)
      : directory_(std::move(directory)), options_(options), number_(number) {}
  absl::Status NextFile();
  absl::Status RemoveOldest();
  absl::Status WriteWhole(std::string_view line);

  const std::string directory_;
  const RecordingOptions options_;
  const uint64_t number_;  // of the recording, ascending in the directory
  std::vector<std::string> files_;
  uint64_t next_file_ = 1;
  UniqueFd fd_;  // of the last file
  uint64_t file_bytes_ = 0;
};

// Switched on and off live; off when made. Thread-safe. Record never waits for the disk: prompts
// are hashed and written by a task on `executor`, and what its queue (16 MiB of messages) does not
// hold is dropped and counted.
class Recorder {
 public:
  // `executor`'s tasks must have ended before this is destroyed.
  Recorder(std::string directory, Executor* executor, const Clock* clock)
      : directory_(std::move(directory)), executor_(executor), clock_(clock) {}

  // Errors: INVALID_ARGUMENT (a limit), FAILED_PRECONDITION (a recording is on), or the system's
  // about the directory. Blocks.
  absl::StatusOr<RecordingStatus> Start(RecordingOptions options) KVTIER_EXCLUDES(mutex_);
  // Ends the recording once what is queued is written. FAILED_PRECONDITION when none is on, saying
  // why when it ended by itself, and when its file is not there any more. Blocks.
  absl::StatusOr<RecordingStatus> Stop() KVTIER_EXCLUDES(mutex_);

  // Whether Record is worth preparing for.
  bool on() const { return on_.load(std::memory_order_relaxed); }
  void Record(RecordedLookup lookup) KVTIER_EXCLUDES(mutex_);

  // Of the present recording or the last one; all zero before the first.
  RecordingStatus status() const KVTIER_EXCLUDES(mutex_);
  // Over all recordings.
  uint64_t recorded_total() const { return recorded_total_.value(); }
  uint64_t dropped_total() const { return dropped_total_.value(); }

 private:
  // What the writer alone uses while it runs, and Start and Stop while it does not.
  struct Recording {
    std::unique_ptr<RecordingFiles> files;
    uint64_t max_line_bytes = 0;
    std::string secret;
    absl::flat_hash_map<ModelId, uint32_t> models;
    uint64_t dropped = 0;  // since the line before
  };
  struct Queued {
    int64_t timestamp_ms;
    uint64_t dropped_before;
    RecordedLookup lookup;
  };

  void WriteQueued() KVTIER_EXCLUDES(mutex_);
  absl::Status Write(Queued* queued) KVTIER_EXCLUDES(mutex_);
  void CountDroppedLocked(uint64_t lookups) KVTIER_REQUIRES(mutex_);
  std::string Line(Queued* queued);
  void EndLocked(std::string why) KVTIER_REQUIRES(mutex_);
  void WaitForWriter() KVTIER_REQUIRES(mutex_);
  RecordingStatus StatusLocked() const KVTIER_REQUIRES(mutex_);

  const std::string directory_;
  Executor* const executor_;
  const Clock* const clock_;
  std::atomic<bool> on_{false};
  Counter recorded_total_;
  Counter dropped_total_;

  mutable Mutex mutex_;
  CondVar writer_idle_;
  bool starting_ KVTIER_GUARDED_BY(mutex_) = false;
  bool writing_ KVTIER_GUARDED_BY(mutex_) = false;  // a task is queued or runs
  std::deque<Queued> queue_ KVTIER_GUARDED_BY(mutex_);
  uint64_t queued_bytes_ KVTIER_GUARDED_BY(mutex_) = 0;
  uint64_t dropped_before_ KVTIER_GUARDED_BY(mutex_) = 0;  // the next that is queued
  TimePoint started_ KVTIER_GUARDED_BY(mutex_);
  RecordingStatus status_ KVTIER_GUARDED_BY(mutex_);
  std::unique_ptr<Recording> recording_;
};

}  // namespace kvtier
