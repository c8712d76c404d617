// What kvtierd keeps on disk besides payload: the lock, its sockets and the registered models.
#pragma once

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
  // system's words about the path that failed.
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
// Integers are little endian. Thread-safe.
class ModelStore {
 public:
  // A file that is damaged, or of a newer version, is set aside under another name (said in one log
  // line) and the store starts empty: engines register again. Errors: the file cannot be read or
  // moved.
  static absl::StatusOr<std::unique_ptr<ModelStore>> Open(std::string file);

  std::vector<ModelSpec> Models() const;

  // Return when the change is on disk; a spec that is there already costs nothing. They block.
  absl::Status Add(const ModelSpec& spec);
  absl::Status Remove(const ModelId& id);

 private:
  explicit ModelStore(std::string file) : file_(std::move(file)) {}
  absl::Status Load();
  absl::Status SaveLocked(const std::map<ModelId, ModelSpec>& models) KVTIER_REQUIRES(mutex_);

  const std::string file_;
  mutable Mutex mutex_;
  std::map<ModelId, ModelSpec> models_ KVTIER_GUARDED_BY(mutex_);
};

}  // namespace kvtier
