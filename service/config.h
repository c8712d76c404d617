// What kvtierd can be told, and by whom: a flag wins over the environment, that over the file, that
// over the default. One table (ConfigFields) drives parsing, ranges, printing and help.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/log.h"
#include "common/status.h"
#include "service/shared_memory.h"
#include "storage/eviction_order.h"

namespace kvtier {

// The defaults are the initial values; ConfigFields() documents each.
struct Config {
  std::string data_dir = "./kvtier-data";
  std::vector<std::string> listen;  // empty: unix:<data_dir>/kvtier.sock
  std::string admin_listen;         // empty: unix:<data_dir>/admin.sock
  std::string metrics_listen;       // empty: no metrics over HTTP
  bool insecure_listen = false;
  LogLevel log_level = LogLevel::kInfo;

  uint64_t gpu_bytes = 0;
  uint64_t ram_bytes = uint64_t{1} << 30;
  uint64_t ssd_bytes = 0;
  uint64_t ssd_write_limit = 0;  // bytes per second; 0: none
  uint64_t ssd_read_threads = 8;
  Eviction eviction = Eviction::kLru;

  uint64_t max_tokens = 1048576;
  uint64_t max_engine_hashes = 65536;
  uint64_t max_part_bytes = uint64_t{64} << 20;
  uint64_t max_lease_ms = 600000;
  uint64_t max_leases_per_client = 4096;
  uint64_t max_streams_per_client = 128;
  uint64_t max_connections_memory_bytes = uint64_t{512} << 20;
  uint64_t unary_deadline_ms = 1000;
  uint64_t stream_deadline_ms = 30000;
  uint64_t drain_ms = 7000;  // with a second or two for the rest, the stop takes less than 10 s
  uint64_t executor_threads = 4;
  bool shared_memory = true;
  std::vector<std::string> shared_memory_uids;  // decimal
  SharedMemoryPools shared_memory_pools = SharedMemoryPools::kOne;
  uint64_t shared_memory_sessions = 64;
  uint64_t shared_store_bytes = uint64_t{8} << 20;
  uint64_t prefill_tokens_per_second = 0;  // of engines that do not tell; 0: not known
};

using ConfigMember = std::variant<std::string Config::*, std::vector<std::string> Config::*,
                                  bool Config::*, LogLevel Config::*, Eviction Config::*,
                                  SharedMemoryPools Config::*, uint64_t Config::*>;

// One row of the table. `name` is the flag without dashes and the key in the file; the environment
// variable is KVTIER_ and the name in capitals with _ for -.
struct ConfigField {
  enum class Unit { kNone, kBytes, kMilliseconds };
  std::string_view name;
  ConfigMember member;
  std::string_view help;
  Unit unit = Unit::kNone;
  uint64_t min = 0;  // of numbers
  uint64_t max = 0;
  bool secret = false;  // never printed
};
std::span<const ConfigField> ConfigFields();

std::string EnvironmentName(std::string_view field_name);

// Sets one field from text. INVALID_ARGUMENT naming field, value and what is allowed.
absl::Status SetField(const ConfigField& field, std::string_view text, Config* config);
// As SetField reads it; "***" for a secret that is set.
std::string FieldText(const ConfigField& field, const Config& config);
// "0 to 16TiB", "true or false", ...
std::string FieldRange(const ConfigField& field);

// One line of the effective configuration.
struct EffectiveSetting {
  std::string name;
  std::string value;
  std::string source;  // "default", "file", "environment", "flag"
};

struct CommandLine {
  enum class Action { kServe, kPrintConfig, kPrintAndExit };
  Action action = Action::kServe;
  std::string text;  // for kPrintAndExit: help or version
  Config config;
  std::vector<EffectiveSetting> settings;
};

// Reads flags, the environment ("NAME=value" strings; only KVTIER_* count) and the file named by
// --config or KVTIER_CONFIG; makes data_dir absolute and fills in the default addresses.
// INVALID_ARGUMENT for an unknown key, flag or KVTIER_ variable, a value out of range, or an
// address that is not loopback without insecure-listen.
absl::StatusOr<CommandLine> ReadConfig(int argc, const char* const* argv,
                                       const std::vector<std::string>& environment);

// Where shared memory is offered: beside the first Unix socket that `listen` has, X.sock giving
// X.shm.sock. Empty without one.
std::string SharedMemorySocket(const Config& config);

// "name = value  # source" lines.
std::string FormatSettings(const std::vector<EffectiveSetting>& settings);

// The parts of an address: "unix:PATH" or "HOST:PORT" ("[::1]:PORT"; port 0 lets the system
// choose).
struct Address {
  std::string unix_path;  // empty for TCP
  std::string host;
  uint16_t port = 0;
  bool IsLoopback() const;  // true for Unix sockets
};
absl::StatusOr<Address> ParseAddress(std::string_view text);

}  // namespace kvtier
