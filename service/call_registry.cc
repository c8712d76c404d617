#include "service/call_registry.h"

#include <chrono>
#include <utility>
#include <vector>

#include "common/check.h"

namespace kvtier {
namespace {

absl::Status Draining() {
  return absl::UnavailableError("this daemon is draining: call another one, or again later");
}

}  // namespace

absl::Status CallRegistry::Open(std::shared_ptr<Stream> stream, const std::string& client,
                                TimePoint deadline) {
  MutexLock lock(mutex_);
  if (draining()) return Draining();
  uint32_t& open = streams_of_[client];
  if (open >= max_streams_per_client_) {
    return absl::ResourceExhaustedError(absl::StrCat("concurrent streams of this client: ", open,
                                                     ", the limit is ", max_streams_per_client_));
  }
  ++open;
  const Stream* key = stream.get();
  const bool added = streams_.emplace(key, Entry{std::move(stream), client, true, deadline}).second;
  KVTIER_CHECK(added);
  return absl::OkStatus();
}

void CallRegistry::FreePlaceLocked(Entry* entry) {
  if (!entry->has_place) return;
  entry->has_place = false;
  const auto client = streams_of_.find(entry->client);
  KVTIER_CHECK(client != streams_of_.end() && client->second > 0);
  if (--client->second == 0) streams_of_.erase(client);
}

void CallRegistry::FreePlace(const Stream* stream) {
  MutexLock lock(mutex_);
  const auto it = streams_.find(stream);
  if (it != streams_.end()) FreePlaceLocked(&it->second);
}

void CallRegistry::Close(const Stream* stream) {
  std::shared_ptr<Stream> keep;  // ends after the lock is released
  MutexLock lock(mutex_);
  const auto it = streams_.find(stream);
  if (it == streams_.end()) return;
  keep = std::move(it->second.stream);
  FreePlaceLocked(&it->second);
  streams_.erase(it);
  if (streams_.empty()) idle_.NotifyAll();
}

// Counted before the look at draining_, so that WaitIdle after StartDrain misses none.
absl::Status CallRegistry::BeginUnary() {
  unary_calls_.fetch_add(1);
  if (!draining_.load()) return absl::OkStatus();
  EndUnary();
  return Draining();
}

void CallRegistry::EndUnary() {
  if (unary_calls_.fetch_sub(1) > 1 || !draining_.load()) return;
  MutexLock lock(mutex_);
  idle_.NotifyAll();
}

void CallRegistry::Sweep() {
  const TimePoint now = clock_->Now();
  std::vector<std::shared_ptr<Stream>> overdue;
  {
    MutexLock lock(mutex_);
    for (const auto& [key, entry] : streams_) {
      if (entry.deadline <= now) overdue.push_back(entry.stream);
    }
  }
  for (const std::shared_ptr<Stream>& stream : overdue) stream->Expire();
}

void CallRegistry::StartDrain() {
  MutexLock lock(mutex_);  // so that no Open is half way
  draining_.store(true);
}

bool CallRegistry::WaitIdle(Duration timeout) {
  const auto end = std::chrono::steady_clock::now() + timeout;
  MutexLock lock(mutex_);
  while (!streams_.empty() || unary_calls_.load() > 0) {
    const Duration left = end - std::chrono::steady_clock::now();
    if (left <= Duration::zero()) return false;
    idle_.WaitFor(mutex_, left);
  }
  return true;
}

uint64_t CallRegistry::open_streams() const {
  MutexLock lock(mutex_);
  return streams_.size();
}

}  // namespace kvtier
