// What kvtierd keeps on disk besides payload: the lock, its sockets and the registered models.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/model_spec.h"
#include "common/mutex.h"
#include "common/status.h"
#include "common/unique_fd.h"

namespace kvtier {

// A data directory that this process owns: created (0700) when missing, and locked while the object
// lives, so that two daemons never share one. Thread-safe.
class DataDirectory {
 public:
  // FAILED_PRECONDITION naming the holder's process id when another process has it; else the
  // system's words about the path that failed. The process id is for people: when the disk is too
  // full to write it, the lock counts all the same.
  static absl::StatusOr<std::unique_ptr<DataDirectory>> Open(const std::string& path);
  DataDirectory(const DataDirectory&) = delete;
  DataDirectory& operator=(const DataDirectory&) = delete;

  const std::string& path() const { return path_; }
  std::string PathOf(std::string_view name) const;

 private:
  DataDirectory(std::string path, UniqueFd lock) : path_(std::move(path)), lock_(std::move(lock)) {}

  const std::string path_;
  // The lock file stays: removing it would let two processes lock two files of one name.
  const UniqueFd lock_;
};

// Clears the way for a Unix socket at `path`: removes one that nobody listens on.
// FAILED_PRECONDITION when somebody does, or when something else than a socket is there.
absl::Status RemoveStaleSocket(const std::string& path);

// The registered models, in one file that is replaced atomically and synced at each change:
//   magic "KVTMODL1", version u32, count u32, count times (length u32, v1.ModelSpec), XXH3-64 of
//   all before
// Integers are little endian. A model that a full disk keeps from being written is known all the
// same, and saved once there is room: see Save. Thread-safe.
class ModelStore {
 public:
  // A file that is damaged, or of a newer version, is set aside under another name (said in one log
  // line) and the store starts empty: engines register again. Errors: the file cannot be read or
  // moved.
  static absl::StatusOr<std::unique_ptr<ModelStore>> Open(std::string file);

  std::vector<ModelSpec> Models() const;

  // These block. Add returns when the model is on disk, or, with a line in the log, when the disk
  // is full; a spec that is there already costs nothing.
  absl::Status Add(const ModelSpec& spec);
  // Returns when the model is gone from disk. RESOURCE_EXHAUSTED when that is full: it stays.
  absl::Status Remove(const ModelId& id);
  // Writes what Add could not. RESOURCE_EXHAUSTED, naming the file, while the disk is full.
  absl::Status Save();
  // Whether all models are on disk. Does not block.
  bool saved() const { return saved_; }

 private:
  explicit ModelStore(std::string file) : file_(std::move(file)) {}
  absl::Status Load();
  absl::Status SaveLocked(const std::map<ModelId, ModelSpec>& models) KVTIER_REQUIRES(mutex_);

  const std::string file_;
  std::atomic<bool> saved_ = true;
  mutable Mutex mutex_;
  std::map<ModelId, ModelSpec> models_ KVTIER_GUARDED_BY(mutex_);
};

}  // namespace kvtier
