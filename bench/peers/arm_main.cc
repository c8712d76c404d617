// kvtier_peer_arm: one client of one system, told by bench/peers/peers.py what to measure.
//
//   kvtier_peer_arm SYSTEM ADDRESS CLIENT
//
// SYSTEM is kvtier, kvtier-shared, redis, redis-each, redis-xxh3, grpc or raw. CLIENT is this
// client's number, from 0. Each line on stdin is a command, each line on stdout the JSON document
// that answers it:
//
//   prepare BLOCK_BYTES BATCH     {"model": what the server calls this size, or ""}
//   put SERIAL BATCHES            {"start", "end"}: seconds of the monotonic clock
//   get SERIAL BATCHES            the same; what came last is compared, after the clock
//   check SERIAL BATCHES          {}: fetches all again and compares every byte
//   drop SERIAL BATCHES           {}
//   chain BLOCKS                  {}: stores what the lookups find
//   lookup SHAPE BLOCKS CALLS     {"start", "end", "us": [each call]}; SHAPE is hit, miss or
//   partial memcpy                        {"gbps"}: copying between warmed buffers of 128 MiB
//
// An error is {"error": message}, and the program ends. `kvtier_peer_arm serve-raw ADDRESS` is the
// raw system's server.
#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "bench/ceilings.h"
#include "bench/peers/block_arm.h"
#include "common/absl_locks.h"

namespace kvtier::bench {
namespace {

using Json = nlohmann::json;

double Now() {
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(since).count();
}

// The blocks of one batch: where they are sent from, and where they arrive. Memory is kept from one
// size to the next.
class BatchMemory {
 public:
  std::vector<std::span<const std::byte>> payloads;
  std::vector<std::span<std::byte>> buffers;

  void Cut(uint64_t block_bytes, uint32_t blocks) {
    const uint64_t bytes = block_bytes * blocks;
    if (from_ == nullptr || from_->size() < bytes) Grow(bytes);
    payloads.clear();
    buffers.clear();
    for (uint32_t i = 0; i < blocks; ++i) {
      payloads.push_back({from_->data() + i * block_bytes, block_bytes});
      buffers.push_back({to_->data() + i * block_bytes, block_bytes});
    }
  }

  // Makes the bytes this batch's own: no two blocks of a run are equal.
  void Stamp(BatchName name) {
    for (uint32_t i = 0; i < payloads.size(); ++i) {
      const std::array<uint32_t, 4> mark = {name.serial, name.client, name.batch, i};
      std::byte* const block = from_->data() + i * payloads[i].size();
      std::memcpy(block, mark.data(), sizeof(mark));
      std::memcpy(block + payloads[i].size() - sizeof(mark), mark.data(), sizeof(mark));
    }
  }

  // What was fetched is what was stored.
  absl::Status Compare() const {
    for (size_t i = 0; i < payloads.size(); ++i) {
      if (std::memcmp(payloads[i].data(), buffers[i].data(), payloads[i].size()) == 0) continue;
      return absl::DataLossError(absl::StrCat("wrong bytes were fetched as block ", i));
    }
    return absl::OkStatus();
  }
  void Spoil() {
    for (const std::span<std::byte> buffer : buffers)
      std::memset(buffer.data(), 0x55, buffer.size());
  }

 private:
  void Grow(uint64_t bytes) {
    from_ = std::make_unique<WarmMemory>(bytes);
    to_ = std::make_unique<WarmMemory>(bytes);
    std::mt19937_64 random(bytes);
    for (uint64_t at = 0; at < bytes; at += sizeof(uint64_t)) {
      const uint64_t word = random();
      std::memcpy(from_->data() + at, &word, sizeof(word));
    }
  }

  std::unique_ptr<WarmMemory> from_;
  std::unique_ptr<WarmMemory> to_;
};

class Measurer {
 public:
  Measurer(std::unique_ptr<BlockArm> arm, uint32_t client)
      : arm_(std::move(arm)), client_(client) {}

  absl::StatusOr<Json> Do(const std::string& command, std::istream& words) {
    if (command == "prepare") return Prepare(words);
    if (command == "chain") return Chain(words);
    if (command == "lookup") return Lookups(words);
    if (command == "memcpy") return Memcpy();
    if (command != "put" && command != "get" && command != "check" && command != "drop") {
      return absl::InvalidArgumentError(absl::StrCat("command: '", command, "' is unknown"));
    }
    uint32_t serial = 0;
    uint32_t batches = 0;
    words >> serial >> batches;
    if (words.fail() || memory_.payloads.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(command, ": needs SERIAL and BATCHES, after prepare"));
    }
    return Batches(command, serial, batches);
  }

 private:
  absl::StatusOr<Json> Prepare(std::istream& words) {
    uint64_t block_bytes = 0;
    uint32_t batch = 0;
    words >> block_bytes >> batch;
    if (words.fail() || batch == 0 || block_bytes % sizeof(uint64_t) != 0 || block_bytes < 64) {
      return absl::InvalidArgumentError("prepare: needs BLOCK_BYTES, 64 or more by 8, and BATCH");
    }
    memory_.Cut(block_bytes, batch);
    KVTIER_ASSIGN_OR_RETURN(const std::string model, arm_->Prepare(block_bytes));
    return Json{{"model", model}};
  }

  absl::StatusOr<Json> Batches(const std::string& command, uint32_t serial, uint32_t batches) {
    memory_.Spoil();
    const double start = Now();
    for (uint32_t batch = 0; batch < batches; ++batch) {
      KVTIER_RETURN_IF_ERROR(One(command, {serial, client_, batch}));
    }
    const double end = Now();
    if (command == "get" && arm_->keeps()) KVTIER_RETURN_IF_ERROR(memory_.Compare());
    return Json{{"start", start}, {"end", end}};
  }

  absl::Status One(const std::string& command, const BatchName& name) {
    if (command == "drop") {
      return arm_->Drop(name, static_cast<uint32_t>(memory_.payloads.size()));
    }
    memory_.Stamp(name);
    if (command == "put") return arm_->Put(name, memory_.payloads);
    KVTIER_RETURN_IF_ERROR(arm_->Get(name, memory_.buffers));
    return command == "check" && arm_->keeps() ? memory_.Compare() : absl::OkStatus();
  }

  absl::StatusOr<Json> Chain(std::istream& words) {
    uint32_t blocks = 0;
    words >> blocks;
    KVTIER_RETURN_IF_ERROR(arm_->StoreChain(blocks));
    return Json::object();
  }

  absl::StatusOr<Json> Lookups(std::istream& words) {
    std::string shape;
    uint32_t blocks = 0;
    int calls = 0;
    words >> shape >> blocks >> calls;
    if (words.fail() || (shape != "hit" && shape != "miss" && shape != "partial")) {
      return absl::InvalidArgumentError("lookup: needs hit, miss or partial, BLOCKS and CALLS");
    }
    const Shape what = shape == "miss"  ? Shape::kMiss
                       : shape == "hit" ? Shape::kHit
                                        : Shape::kPartial;
    const uint32_t expected = FoundOf(what, blocks);
    KVTIER_RETURN_IF_ERROR(arm_->PrepareLookup(what, blocks));
    std::vector<double> us;
    const double start = Now();
    for (int call = 0; call < calls; ++call) {
      const double before = Now();
      KVTIER_ASSIGN_OR_RETURN(const uint32_t found, arm_->Lookup());
      us.push_back((Now() - before) * 1e6);
      if (found == expected) continue;
      return absl::InternalError(absl::StrCat("found ", found, " blocks, not ", expected));
    }
    return Json{{"start", start}, {"end", Now()}, {"us", us}};
  }

  static absl::StatusOr<Json> Memcpy() {
    static WarmMemory from(kTransferBytes);
    static WarmMemory to(kTransferBytes);
    return Json{{"gbps", static_cast<double>(kTransferBytes) / MemcpySeconds(from, to) / 1e9}};
  }

  const std::unique_ptr<BlockArm> arm_;
  const uint32_t client_;
  BatchMemory memory_;
};

absl::StatusOr<std::unique_ptr<BlockArm>> MakeArm(const std::string& system,
                                                  const std::string& address) {
  if (system == "kvtier") return MakeKvtierArm(address, /*shared=*/false);
  if (system == "kvtier-shared") return MakeKvtierArm(address, /*shared=*/true);
  if (system == "redis") return MakeRedisArm(address, RedisMode::kPlain);
  if (system == "redis-each") return MakeRedisArm(address, RedisMode::kEach);
  if (system == "redis-xxh3") return MakeRedisArm(address, RedisMode::kXxh3);
  if (system == "grpc") return MakeGrpcArm(address);
  if (system == "raw") return MakeRawArm(address);
  return absl::InvalidArgumentError(
      absl::StrCat("SYSTEM: '", system,
                   "' is not kvtier, kvtier-shared, redis, redis-each, redis-xxh3, grpc or raw"));
}

void Answer(const Json& document) { std::cout << document.dump() << std::endl; }

absl::Status Run(const std::string& system, const std::string& address, uint32_t client) {
  KVTIER_ASSIGN_OR_RETURN(std::unique_ptr<BlockArm> arm, MakeArm(system, address));
  Measurer measurer(std::move(arm), client);
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream words(line);
    std::string command;
    words >> command;
    KVTIER_ASSIGN_OR_RETURN(const Json answer, measurer.Do(command, words));
    Answer(answer);
  }
  return absl::OkStatus();
}

int Main(std::vector<std::string> arguments) {
  SkipAbslLockChecks();
  absl::Status status = absl::InvalidArgumentError("usage: kvtier_peer_arm SYSTEM ADDRESS CLIENT");
  uint32_t client = 0;
  if (arguments.size() == 3 && arguments[1] == "serve-raw") {
    status = RunRawServer(arguments[2]);
  } else if (arguments.size() == 4 && absl::SimpleAtoi(arguments[3], &client)) {
    status = Run(arguments[1], arguments[2], client);
  }
  if (status.ok()) return 0;
  Answer({{"error", status.ToString()}});
  return 1;
}

}  // namespace
}  // namespace kvtier::bench

int main(int argc, char** argv) {
  return kvtier::bench::Main(std::vector<std::string>(argv, argv + argc));
}
