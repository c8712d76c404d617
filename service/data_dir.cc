#include "service/data_dir.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "common/block_key.h"
#include "common/log.h"
#include "common/unique_fd.h"
#include "service/convert.h"

namespace kvtier {
namespace {

constexpr std::string_view kMagic = "KVTMODL1";
constexpr uint32_t kVersion = 1;
constexpr size_t kHeaderBytes = 16;  // magic, version, count
constexpr size_t kChecksumBytes = 8;

absl::Status SystemError(const std::string& what, const std::string& path) {
  const int error = errno;
  absl::Status status = absl::ErrnoToStatus(error, absl::StrCat(what, " ", path));
  if (error != ENOSPC && error != EDQUOT) return status;
  return absl::ResourceExhaustedError(
      absl::StrCat(std::string(status.message()), "; make room on its filesystem"));
}

// The process id that the holder of the lock wrote.
std::string ReadHolder(int fd) {
  char text[32] = {};
  const ssize_t size = pread(fd, text, sizeof(text) - 1, 0);
  if (size <= 0) return "unknown";
  return std::string(text, strcspn(text, "\n"));
}

absl::Status WriteAll(int fd, std::string_view data, const std::string& path) {
  while (!data.empty()) {
    const ssize_t written = write(fd, data.data(), data.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return SystemError("cannot write", path);
    data.remove_prefix(written);
  }
  return absl::OkStatus();
}

absl::Status SyncDirectory(const std::string& file) {
  const std::string parent = std::filesystem::path(file).parent_path().string();
  const UniqueFd directory(open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory.get() < 0) return SystemError("cannot open", parent);
  if (fsync(directory.get()) != 0) return SystemError("cannot sync", parent);
  return absl::OkStatus();
}

absl::Status WriteSynced(const std::string& path, const std::string& content) {
  const UniqueFd file(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (file.get() < 0) return SystemError("cannot create", path);
  KVTIER_RETURN_IF_ERROR(WriteAll(file.get(), content, path));
  if (fsync(file.get()) != 0) return SystemError("cannot sync", path);
  return absl::OkStatus();
}

absl::Status ReplaceFile(const std::string& path, const std::string& content) {
  const std::string fresh = path + ".new";
  const absl::Status written = WriteSynced(fresh, content);
  if (!written.ok()) {
    unlink(fresh.c_str());  // what there is of it takes room
    return written;
  }
  if (rename(fresh.c_str(), path.c_str()) != 0) return SystemError("cannot replace", path);
  return SyncDirectory(path);
}

// Nothing when there is no such file.
absl::StatusOr<std::optional<std::string>> ReadWhole(const std::string& path) {
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0 && errno == ENOENT) return std::optional<std::string>();
  if (file.get() < 0) return SystemError("cannot open", path);
  std::string content;
  char buffer[64 << 10];
  while (true) {
    const ssize_t size = read(file.get(), buffer, sizeof(buffer));
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) return SystemError("cannot read", path);
    if (size == 0) return std::optional<std::string>(std::move(content));
    content.append(buffer, size);
  }
}

template <typename T>
void AppendLittleEndian(T value, std::string* out) {
  for (size_t i = 0; i < sizeof(T); ++i) out->push_back(static_cast<char>(value >> (8 * i)));
}

template <typename T>
T ReadLittleEndian(std::string_view data) {
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) {
    value |= static_cast<T>(static_cast<uint8_t>(data[i])) << (8 * i);
  }
  return value;
}

std::string Encode(const std::map<ModelId, ModelSpec>& models) {
  std::string out(kMagic);
  AppendLittleEndian<uint32_t>(kVersion, &out);
  AppendLittleEndian<uint32_t>(static_cast<uint32_t>(models.size()), &out);
  for (const auto& [id, spec] : models) {
    const std::string proto = ToProto(spec).SerializeAsString();
    AppendLittleEndian<uint32_t>(static_cast<uint32_t>(proto.size()), &out);
    out += proto;
  }
  AppendLittleEndian<uint64_t>(PayloadChecksum(out.data(), out.size()), &out);
  return out;
}

absl::StatusOr<ModelSpec> DecodeSpec(std::string_view bytes) {
  v1::ModelSpec proto;
  if (!proto.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::DataLossError("a model does not parse");
  }
  return ToModelSpec(proto);
}

// DATA_LOSS when damaged, UNIMPLEMENTED when of another version. The version is read before the
// checksum: a newer file may have another one.
absl::StatusOr<std::vector<ModelSpec>> Decode(std::string_view content) {
  if (content.size() < kHeaderBytes + kChecksumBytes) return absl::DataLossError("it is too short");
  if (content.substr(0, kMagic.size()) != kMagic) return absl::DataLossError("its magic is wrong");
  const auto version = ReadLittleEndian<uint32_t>(content.substr(8, 4));
  if (version != kVersion) {
    return absl::UnimplementedError(
        absl::StrCat("it has version ", version, ", this build reads ", kVersion));
  }
  const std::string_view body = content.substr(0, content.size() - kChecksumBytes);
  const auto checksum = ReadLittleEndian<uint64_t>(content.substr(body.size()));
  if (PayloadChecksum(body.data(), body.size()) != checksum) {
    return absl::DataLossError("its checksum is wrong");
  }
  std::string_view rest = body.substr(kHeaderBytes);
  const auto count = ReadLittleEndian<uint32_t>(body.substr(12, 4));
  std::vector<ModelSpec> models;
  for (uint32_t i = 0; i < count; ++i) {
    if (rest.size() < 4) return absl::DataLossError("a model is cut off");
    const auto size = ReadLittleEndian<uint32_t>(rest);
    rest.remove_prefix(4);
    if (rest.size() < size) return absl::DataLossError("a model is cut off");
    KVTIER_ASSIGN_OR_RETURN(ModelSpec spec, DecodeSpec(rest.substr(0, size)));
    models.push_back(std::move(spec));
    rest.remove_prefix(size);
  }
  if (!rest.empty()) return absl::DataLossError("it has bytes after the last model");
  return models;
}

bool SomebodyListens(const std::string& path) {
  sockaddr_un address{};
  if (path.size() >= sizeof(address.sun_path)) return false;
  address.sun_family = AF_UNIX;
  memcpy(address.sun_path, path.data(), path.size());
  const UniqueFd probe(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<DataDirectory>> DataDirectory::Open(const std::string& path) {
  std::error_code error;
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  if (!parent.empty()) std::filesystem::create_directories(parent, error);
  if (error) return absl::ErrnoToStatus(error.value(), "data directory: cannot create " + path);
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    return SystemError("data directory: cannot create", path);
  }
  const std::string lock_path = path + "/lock";
  UniqueFd lock(open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (lock.get() < 0) return SystemError("data directory: cannot write to", lock_path);
  if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return SystemError("data directory: cannot lock", lock_path);
    return absl::FailedPreconditionError(
        absl::StrCat("data directory ", path, " is in use by process ", ReadHolder(lock.get()),
                     ": stop it or choose another with --data-dir"));
  }
  // Over the last holder's, not after a truncation: that needs no room on a full disk.
  const std::string holder = absl::StrCat(getpid(), "\n");
  const absl::Status written = WriteAll(lock.get(), holder, lock_path);
  if (!written.ok() && !absl::IsResourceExhausted(written)) return written;
  if (ftruncate(lock.get(), written.ok() ? static_cast<off_t>(holder.size()) : 0) != 0) {
    return SystemError("data directory: cannot write", lock_path);
  }
  return std::unique_ptr<DataDirectory>(new DataDirectory(path, std::move(lock)));
}

std::string DataDirectory::PathOf(std::string_view name) const {
  return absl::StrCat(path_, "/", std::string(name));
}

absl::Status RemoveStaleSocket(const std::string& path) {
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0) {
    return errno == ENOENT ? absl::OkStatus() : SystemError("cannot look at socket", path);
  }
  if (!S_ISSOCK(info.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " exists and is no socket: remove it or listen elsewhere"));
  }
  if (SomebodyListens(path)) {
    return absl::FailedPreconditionError(
        absl::StrCat("unix:", path, " is in use: another process listens there"));
  }
  if (unlink(path.c_str()) != 0) return SystemError("cannot remove stale socket", path);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<ModelStore>> ModelStore::Open(std::string file) {
  std::unique_ptr<ModelStore> store(new ModelStore(std::move(file)));
  KVTIER_RETURN_IF_ERROR(store->Load());
  return store;
}

absl::Status ModelStore::Load() {
  KVTIER_ASSIGN_OR_RETURN(const std::optional<std::string> content, ReadWhole(file_));
  if (!content) return absl::OkStatus();
  const absl::StatusOr<std::vector<ModelSpec>> models = Decode(*content);
  if (models.ok()) {
    MutexLock lock(mutex_);
    for (const ModelSpec& spec : *models) models_.emplace(SpecId(spec), spec);
    return absl::OkStatus();
  }
  const std::string aside =
      file_ + (absl::IsUnimplemented(models.status()) ? ".other-version" : ".damaged");
  if (rename(file_.c_str(), aside.c_str()) != 0) return SystemError("cannot set aside", file_);
  Log(LogLevel::kError,
      "registered models are not readable; set aside, engines must register again",
      {{"file", file_}, {"moved_to", aside}, {"reason", std::string(models.status().message())}});
  return SyncDirectory(file_);
}

std::vector<ModelSpec> ModelStore::Models() const {
  MutexLock lock(mutex_);
  std::vector<ModelSpec> out;
  for (const auto& [id, spec] : models_) out.push_back(spec);
  return out;
}

absl::Status ModelStore::Add(const ModelSpec& spec) {
  MutexLock lock(mutex_);
  const ModelId id = SpecId(spec);
  if (models_.contains(id)) return absl::OkStatus();
  std::map<ModelId, ModelSpec> changed = models_;
  changed.emplace(id, spec);
  const absl::Status saved = SaveLocked(changed);
  if (!absl::IsResourceExhausted(saved)) return saved;
  models_ = std::move(changed);
  saved_ = false;
  Log(LogLevel::kWarning, "a model is registered, but not saved until there is room on disk",
      {{"name", spec.name}, {"model_id", id.ToHex()}, {"reason", std::string(saved.message())}});
  return absl::OkStatus();
}

absl::Status ModelStore::Save() {
  MutexLock lock(mutex_);
  if (saved_) return absl::OkStatus();
  KVTIER_RETURN_IF_ERROR(SaveLocked(models_));
  Log(LogLevel::kInfo, "registered models are saved again", {{"file", file_}});
  return absl::OkStatus();
}

absl::Status ModelStore::Remove(const ModelId& id) {
  MutexLock lock(mutex_);
  if (!models_.contains(id)) return absl::OkStatus();
  std::map<ModelId, ModelSpec> changed = models_;
  changed.erase(id);
  return SaveLocked(changed);
}

absl::Status ModelStore::SaveLocked(const std::map<ModelId, ModelSpec>& models) {
  KVTIER_RETURN_IF_ERROR(Annotate(ReplaceFile(file_, Encode(models)), "registered models"));
  models_ = models;
  saved_ = true;
  return absl::OkStatus();
}

}  // namespace kvtier
