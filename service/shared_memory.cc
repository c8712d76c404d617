#include "service/shared_memory.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <deque>
#include <utility>

#include "common/check.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/token_bucket.h"
#include "common/wire.h"
#include "kvtier/v1/kvtier.pb.h"
#include "service/data_dir.h"

namespace kvtier {
namespace {

constexpr int kBacklog = 64;
constexpr int kPauseMs = 1000;        // of accepting, when descriptors have run out
constexpr int kPacketsPerRound = 64;  // of one session, before the others' turn
constexpr size_t kToldAtOnce = 4096;  // regions in one packet
constexpr uint64_t kStBlockBytes = 512;

absl::Status SystemError(std::string_view what) {
  return absl::ErrnoToStatus(errno, absl::StrCat("shared memory: ", std::string(what)));
}

std::string NewSessionId() {
  std::string id(wire::kSessionIdBytes, '\0');
  KVTIER_CHECK(getrandom(id.data(), id.size(), 0) == static_cast<ssize_t>(id.size()));
  return id;
}

absl::StatusOr<UniqueFd> Listen(const SharedMemoryOptions& options) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (options.socket_path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(
        absl::StrCat("shared memory: the path of the socket, ", options.socket_path, ", has ",
                     options.socket_path.size(), " bytes, the limit is ",
                     sizeof(address.sun_path) - 1, ": listen on a shorter one"));
  }
  options.socket_path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  KVTIER_RETURN_IF_ERROR(Annotate(RemoveStaleSocket(options.socket_path), "shared memory"));
  UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return SystemError("socket");
  // Before it has a name, so that it is never there with more rights.
  if (fchmod(fd.get(), 0600) != 0) return SystemError("fchmod");
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return SystemError(absl::StrCat("bind to ", options.socket_path));
  }
  if (!options.uids.empty() && chmod(options.socket_path.c_str(), 0666) != 0) {
    return SystemError(absl::StrCat("chmod of ", options.socket_path));
  }
  if (listen(fd.get(), kBacklog) != 0) return SystemError("listen");
  return fd;
}

// With `fd` >= 0: a descriptor for it goes along.
ssize_t SendPacket(int socket, const std::string& packet, int fd) {
  iovec data{const_cast<char*>(packet.data()), packet.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (fd >= 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof(fd));
  }
  return sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

}  // namespace

absl::StatusOr<std::shared_ptr<StoreRegion>> StoreRegion::Make(uint64_t bytes,
                                                               MemoryDomain domain) {
  const uint64_t size = DeviceMemory::RoundUp(bytes);
  UniqueFd fd(memfd_create("kvtier-store", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return SystemError("memfd_create");
  if (ftruncate(fd.get(), static_cast<off_t>(size)) != 0) return SystemError("ftruncate");
  if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return SystemError("sealing");
  }
  void* base = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (base == MAP_FAILED) return SystemError("mmap");
  return std::shared_ptr<StoreRegion>(
      new StoreRegion(std::move(fd), {static_cast<std::byte*>(base), size}, domain));
}

StoreRegion::~StoreRegion() { KVTIER_CHECK(munmap(bytes_.data(), bytes_.size()) == 0); }

bool StoreRegion::Acquire(std::atomic<bool>* stop) {
  MutexLock lock(mutex_);
  if (stop_ != nullptr) return false;
  stop_ = stop;
  if (session_ended_) stop_->store(true);
  return true;
}

void StoreRegion::Release() {
  MutexLock lock(mutex_);
  stop_ = nullptr;
}

void StoreRegion::EndSession() {
  MutexLock lock(mutex_);
  session_ended_ = true;
  if (stop_ != nullptr) stop_->store(true);
}

bool StoreRegion::session_ended() const {
  MutexLock lock(mutex_);
  return session_ended_;
}

uint64_t StoreRegion::backed_bytes() const {
  struct stat info {};
  return fstat(fd_.get(), &info) == 0 ? static_cast<uint64_t>(info.st_blocks) * kStBlockBytes : 0;
}

struct SharedMemory::Session {
  std::string id;
  UniqueFd socket;
  std::shared_ptr<StoreRegion> store;
  TokenBucket packets;
  std::deque<uint64_t> asked;  // regions whose descriptor is still to be sent
  // Guarded by SharedMemory::mutex_.
  absl::flat_hash_set<uint64_t> open;  // regions handed out, that are neither retired nor released
  std::vector<uint64_t> retired;       // still to be told

  bool has_output() const { return !asked.empty() || !retired.empty(); }
};

absl::StatusOr<std::unique_ptr<SharedMemory>> SharedMemory::Start(SharedMemoryOptions options,
                                                                  SharedHostMemory* memory) {
  KVTIER_ASSIGN_OR_RETURN(UniqueFd listener, Listen(options));
  UniqueFd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake) return SystemError("eventfd");
  return std::unique_ptr<SharedMemory>(
      new SharedMemory(std::move(options), memory, std::move(listener), std::move(wake)));
}

SharedMemory::SharedMemory(SharedMemoryOptions options, SharedHostMemory* memory, UniqueFd listener,
                           UniqueFd wake)
    : options_(std::move(options)),
      memory_(memory),
      listener_(std::move(listener)),
      wake_(std::move(wake)),
      store_threads_(static_cast<int>(options_.max_sessions)) {
  memory_->OnRetired([this](uint64_t region) { OnRetired(region); });
  thread_.Run([this] { Serve(); });
}

SharedMemory::~SharedMemory() {
  memory_->OnRetired(nullptr);
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  Wake();
  thread_.WaitIdle();
  unlink(options_.socket_path.c_str());
}

absl::StatusOr<std::shared_ptr<StoreRegion>> SharedMemory::Find(std::string_view session_id) const {
  MutexLock lock(mutex_);
  const auto it = sessions_.find(std::string(session_id));
  if (it != sessions_.end()) return it->second->store;
  return absl::NotFoundError(
      "session_id names no session that is open: connect to shared_memory_socket, and stay so");
}

SharedMemoryStats SharedMemory::stats() const {
  const SharedHostMemory::Retired retired = memory_->retired();
  SharedMemoryStats out;
  out.retired_regions = retired.regions;
  out.retired_bytes = retired.bytes;
  out.sessions_total = sessions_total_.value();
  out.refused_total = refused_total_.value();
  out.cut_off_total = cut_off_total_.value();
  out.fetched_blocks = counters_.fetched_blocks.value();
  out.fetched_bytes = counters_.fetched_bytes.value();
  out.not_shared_blocks = counters_.not_shared_blocks.value();
  out.stored_blocks = counters_.stored_blocks.value();
  out.stored_bytes = counters_.stored_bytes.value();
  MutexLock lock(mutex_);
  out.sessions = sessions_.size();
  for (const auto& [id, session] : sessions_) {
    out.open_regions += session->open.size();
    out.store_bytes += session->store->backed_bytes();
  }
  return out;
}

void SharedMemory::Wake() {
  const uint64_t one = 1;
  const ssize_t written = write(wake_.get(), &one, sizeof(one));
  KVTIER_CHECK(written == sizeof(one) || errno == EAGAIN);  // full: it is awake
}

// On whichever thread gave the region up.
void SharedMemory::OnRetired(uint64_t region) {
  MutexLock lock(mutex_);
  for (const auto& [id, session] : sessions_) {
    if (session->open.erase(region) > 0) session->retired.push_back(region);
  }
  Wake();
}

void SharedMemory::Serve() {
  std::vector<pollfd> polled;
  for (;;) {
    polled.clear();
    polled.push_back({wake_.get(), POLLIN, 0});
    polled.push_back({accepts_ ? listener_.get() : -1, POLLIN, 0});
    {
      MutexLock lock(mutex_);
      if (stopping_) return;
      for (const auto& [id, session] : sessions_) {
        const auto events = static_cast<short>(session->has_output() ? POLLIN | POLLOUT : POLLIN);
        polled.push_back({session->socket.get(), events, 0});
      }
    }
    const int ready = poll(polled.data(), polled.size(), accepts_ ? -1 : kPauseMs);
    KVTIER_CHECK(ready >= 0 || errno == EINTR);
    accepts_ = true;
    if (ready > 0) ServeReady(polled);
  }
}

void SharedMemory::ServeReady(std::span<const pollfd> polled) {
  uint64_t woken = 0;
  if (polled[0].revents != 0 && read(wake_.get(), &woken, sizeof(woken)) < 0) {
    KVTIER_CHECK(errno == EAGAIN);
  }
  absl::flat_hash_map<int, short> events;
  for (const pollfd& at : polled.subspan(2)) events[at.fd] = at.revents;
  std::vector<Session*> ready;
  {
    MutexLock lock(mutex_);
    for (const auto& [id, session] : sessions_) {
      if (events[session->socket.get()] != 0) ready.push_back(session.get());
    }
  }
  for (Session* session : ready) {
    if (!ReadAll(session) || !Flush(session)) End(session);
  }
  if (polled[1].revents != 0) AcceptAll();
}

void SharedMemory::AcceptAll() {
  for (;;) {
    UniqueFd socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) {
      accepts_ = errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM;
      if (!accepts_) Log(LogLevel::kWarning, "shared memory: no descriptor for a new client", {});
      return;
    }
    const std::optional<uid_t> uid = AllowedUid(socket.get());
    if (!uid) {
      refused_total_.Add();
      continue;
    }
    const absl::Status begun = Begin(std::move(socket), *uid);
    if (begun.ok()) continue;
    refused_total_.Add();
    Log(LogLevel::kWarning, "shared memory: a client gets none, and goes over gRPC",
        {{"reason", std::string(begun.message())}});
  }
}

// The peer's, if it may connect.
std::optional<uid_t> SharedMemory::AllowedUid(int socket) const {
  ucred peer{};
  socklen_t bytes = sizeof(peer);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0) return std::nullopt;
  const bool listed =
      std::find(options_.uids.begin(), options_.uids.end(), peer.uid) != options_.uids.end();
  if (listed || peer.uid == 0 || peer.uid == geteuid()) return peer.uid;
  Log(LogLevel::kDebug, "shared memory: not for this uid, see shared-memory-uids",
      {{"uid", peer.uid}, {"pid", peer.pid}});
  return std::nullopt;
}

MemoryDomain SharedMemory::DomainOf(uid_t uid) const {
  return options_.pools == SharedMemoryPools::kPerUid ? MemoryDomain::OfUid(uid) : MemoryDomain();
}

absl::Status SharedMemory::Begin(UniqueFd socket, uid_t uid) {
  {
    MutexLock lock(mutex_);
    if (sessions_.size() >= options_.max_sessions) {
      return absl::ResourceExhaustedError(
          absl::StrCat("sessions: ", sessions_.size(), ", the limit is ", options_.max_sessions));
    }
  }
  KVTIER_ASSIGN_OR_RETURN(std::shared_ptr<StoreRegion> store,
                          StoreRegion::Make(options_.store_region_bytes, DomainOf(uid)));
  v1::SharedMemoryMessage message;
  std::string id = NewSessionId();
  message.mutable_welcome()->set_session_id(id);
  message.mutable_welcome()->set_store_region_bytes(store->bytes().size());
  auto session =
      std::make_unique<Session>(Session{id,
                                        std::move(socket),
                                        std::move(store),
                                        TokenBucket(kPacketsPerSecond, SteadyClock{}.Now()),
                                        {},
                                        {},
                                        {}});
  Session* const at = session.get();
  {
    // First, as a client that has its id may use it at once.
    MutexLock lock(mutex_);
    sessions_[id] = std::move(session);
  }
  sessions_total_.Add();
  if (SendPacket(at->socket.get(), message.SerializeAsString(), at->store->fd()) < 0) End(at);
  return absl::OkStatus();
}

void SharedMemory::End(Session* session) {
  std::unique_ptr<Session> ended;  // unmaps outside the lock
  {
    MutexLock lock(mutex_);
    const auto it = sessions_.find(session->id);
    KVTIER_CHECK(it != sessions_.end());
    ended = std::move(it->second);
    sessions_.erase(it);
  }
  ended->store->EndSession();
}

// Descriptors that a client sends along are thrown away by the kernel, as there is no room for
// them.
bool SharedMemory::ReadAll(Session* session) {
  std::vector<char> packet(kMaxPacketBytes);
  for (int i = 0; i < kPacketsPerRound; ++i) {
    iovec data{packet.data(), packet.size()};
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    const ssize_t bytes = recvmsg(session->socket.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (bytes < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    if (bytes <= 0) return false;
    if ((message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
      return CutOff("a packet that is too long, or has descriptors");
    }
    if (!Take(session, std::span(packet).first(static_cast<size_t>(bytes)))) return false;
  }
  return true;
}

bool SharedMemory::Take(Session* session, std::span<const char> packet) {
  const TimePoint now = SteadyClock{}.Now();
  if (!session->packets.HasTokens(now)) return CutOff("more packets than are allowed");
  session->packets.Take(1, now);
  v1::SharedMemoryRequest request;
  if (!request.ParseFromArray(packet.data(), static_cast<int>(packet.size()))) {
    return CutOff("no SharedMemoryRequest");
  }
  switch (request.kind_case()) {
    case v1::SharedMemoryRequest::kOpenRegion:
      if (session->asked.size() >= kMaxUnanswered) {
        return CutOff("more open_region than it reads the answers of");
      }
      session->asked.push_back(request.open_region());
      return Flush(session);
    case v1::SharedMemoryRequest::kReleased: {
      {
        MutexLock lock(mutex_);
        for (const uint64_t region : request.released().regions()) session->open.erase(region);
      }
      memory_->retired();
      return true;
    }
    case v1::SharedMemoryRequest::KIND_NOT_SET:
      break;
  }
  return CutOff("a SharedMemoryRequest without a kind");
}

bool SharedMemory::CutOff(std::string_view why) {
  cut_off_total_.Add();
  Log(LogLevel::kDebug, "shared memory: a client is cut off", {{"it_sent", std::string(why)}});
  return false;
}

// Answers first: a region must not be given up before it was handed out.
bool SharedMemory::Flush(Session* session) {
  Sent sent = Sent::kYes;
  while (sent == Sent::kYes && !session->asked.empty()) {
    sent = AnswerOpen(session, session->asked.front());
    if (sent == Sent::kYes) session->asked.pop_front();
  }
  while (sent == Sent::kYes && HasOutput(*session)) sent = TellRetired(session);
  return sent != Sent::kNever;
}

bool SharedMemory::HasOutput(const Session& session) const {
  MutexLock lock(mutex_);
  return session.has_output();
}

SharedMemory::Sent SharedMemory::AnswerOpen(Session* session, uint64_t region) {
  v1::SharedMemoryMessage message;
  message.mutable_region()->set_region(region);
  UniqueFd fd;
  {
    // Together, so that a region that is retired from now on finds this session among its holders.
    MutexLock lock(mutex_);
    absl::StatusOr<SharedHostMemory::OpenedRegion> opened =
        memory_->Open(region, session->store->domain());
    if (opened.ok()) {
      message.mutable_region()->set_bytes(opened->bytes);
      fd = std::move(opened->fd);
      session->open.insert(region);
    } else if (!absl::IsNotFound(opened.status())) {
      Log(LogLevel::kWarning, "shared memory: a client gets no region",
          {{"reason", std::string(opened.status().message())}});
      return Sent::kNever;
    }
  }
  if (SendPacket(session->socket.get(), message.SerializeAsString(), fd.get()) >= 0) {
    return Sent::kYes;
  }
  return errno == EAGAIN ? Sent::kLater : Sent::kNever;
}

SharedMemory::Sent SharedMemory::TellRetired(Session* session) {
  v1::SharedMemoryMessage message;
  size_t told = 0;
  {
    MutexLock lock(mutex_);
    told = std::min(session->retired.size(), kToldAtOnce);
    for (size_t i = 0; i < told; ++i) message.mutable_retired()->add_regions(session->retired[i]);
  }
  if (SendPacket(session->socket.get(), message.SerializeAsString(), -1) < 0) {
    return errno == EAGAIN ? Sent::kLater : Sent::kNever;
  }
  MutexLock lock(mutex_);
  session->retired.erase(session->retired.begin(),
                         session->retired.begin() + static_cast<ptrdiff_t>(told));
  return Sent::kYes;
}

}  // namespace kvtier
