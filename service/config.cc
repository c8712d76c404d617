#include "service/config.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <toml++/toml.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/bytes.h"
#include "common/channel_args.h"

namespace kvtier {
namespace {

constexpr uint64_t kTiB = uint64_t{1} << 40;
constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kHourMs = 3600 * 1000;
constexpr uint64_t kMaxUid = UINT32_MAX;  // itself means "none"
constexpr size_t kMaxUnixPath = 107;      // sizeof(sockaddr_un::sun_path) - 1
constexpr std::string_view kEnvironmentPrefix = "KVTIER_";
// Of the kvtier command and of the tests: a shell that has them set can start kvtierd all the same.
constexpr std::string_view kVariablesOfOthers[] = {"KVTIER_ADMIN", "KVTIER_SERVER",
                                                   "KVTIER_TRACES"};

using Unit = ConfigField::Unit;

const ConfigField kFields[] = {
    {"data-dir", &Config::data_dir,
     "directory for the lock, sockets and registered models; one daemon per directory"},
    {"listen", &Config::listen,
     "addresses of the data API, separated by commas: unix:PATH or HOST:PORT; empty: "
     "unix:DATA_DIR/kvtier.sock"},
    {"admin-listen", &Config::admin_listen,
     "address of the admin API; empty: unix:DATA_DIR/admin.sock"},
    {"metrics-listen", &Config::metrics_listen,
     "HOST:PORT of the Prometheus endpoint /metrics; empty: off"},
    {"insecure-listen", &Config::insecure_listen,
     "allow TCP addresses that are not loopback, without encryption or authentication"},
    {"log-level", &Config::log_level, "least level that is logged"},
    {"gpu-bytes", &Config::gpu_bytes, "GPU tier; 0: off", Unit::kBytes, 0, 16 * kTiB},
    {"ram-bytes", &Config::ram_bytes, "RAM tier, taken from the system at start", Unit::kBytes,
     64 << 10, 16 * kTiB},
    {"ssd-bytes", &Config::ssd_bytes, "SSD tier, on disk in the data directory; 0: off",
     Unit::kBytes, 0, 1024 * kTiB},
    {"ssd-write-limit", &Config::ssd_write_limit,
     "bytes per second written to SSD; above it blocks that leave RAM are dropped; 0: no limit",
     Unit::kBytes, 0, kTiB},
    {"ssd-read-threads", &Config::ssd_read_threads, "reads from SSD at a time", Unit::kNone, 1,
     256},
    {"eviction", &Config::eviction,
     "what leaves RAM and GPU first. lru: the least recently used; protected: of what was not used "
     "again, keeping up to 30 percent of a tier for what was"},
    {"max-tokens", &Config::max_tokens, "tokens in one prompt", Unit::kNone, 1,
     kMaxPromptBytes / 4},
    {"max-engine-hashes", &Config::max_engine_hashes, "engine hashes in one prompt", Unit::kNone, 1,
     kMiB},
    {"max-part-bytes", &Config::max_part_bytes, "size of one part of a block", Unit::kBytes, 1,
     1024 * kMiB},
    {"max-lease-ms", &Config::max_lease_ms, "longest lease", Unit::kMilliseconds, 1, 24 * kHourMs},
    {"max-leases-per-client", &Config::max_leases_per_client, "open leases of one client",
     Unit::kNone, 1, kMiB},
    {"max-streams-per-client", &Config::max_streams_per_client,
     "Fetch and Store calls of one client at a time", Unit::kNone, 1, 65536},
    {"max-connections-memory-bytes", &Config::max_connections_memory_bytes,
     "memory of all connections together, payload in slots not counted", Unit::kBytes, 64 * kMiB,
     kTiB},
    {"unary-deadline-ms", &Config::unary_deadline_ms,
     "deadline of a Lookup, Release, Renew or RegisterModel that brings none", Unit::kMilliseconds,
     1, kHourMs},
    {"stream-deadline-ms", &Config::stream_deadline_ms,
     "deadline of a Fetch or Store that brings none", Unit::kMilliseconds, 1, kHourMs},
    {"drain-ms", &Config::drain_ms,
     "after SIGTERM: how long calls in flight may go on, and RAM be written to SSD",
     Unit::kMilliseconds, 0, kHourMs},
    {"executor-threads", &Config::executor_threads, "threads for work that may block", Unit::kNone,
     1, 256},
    {"shared-memory", &Config::shared_memory,
     "offer clients on this host shared memory, over a socket beside the first Unix socket of "
     "listen; without one, or on a kernel that cannot, there is none"},
    {"shared-memory-uids", &Config::shared_memory_uids,
     "users, as numbers separated by commas, who may map RAM besides kvtierd's own and root; they "
     "can read every block of their pool, of every tenant"},
    {"shared-memory-pools", &Config::shared_memory_pools,
     "what such a user may map. one: all of RAM; per-uid: what its own processes stored through "
     "shared memory or had read from SSD, the rest goes over gRPC"},
    {"shared-memory-sessions", &Config::shared_memory_sessions,
     "clients that have shared memory at a time; more go over gRPC", Unit::kNone, 1, 4096},
    {"shared-store-bytes", &Config::shared_store_bytes,
     "memory through which one such client stores, on top of ram-bytes; taken as it is used",
     Unit::kBytes, kMiB, kTiB / 1024},
    {"prefill-tokens-per-second", &Config::prefill_tokens_per_second,
     "prompt tokens that an engine computes per second, for engines that do not tell; shows what "
     "time the cache saves; 0: not known",
     Unit::kNone, 0, 1000000000},
};

constexpr std::string_view kLevelNames[] = {"debug", "info", "warning", "error"};

absl::Status BadValue(const ConfigField& field, std::string_view text) {
  return absl::InvalidArgumentError(absl::StrCat(std::string(field.name), ": '", std::string(text),
                                                 "' is not allowed, must be ", FieldRange(field)));
}

// Exact, so that what is printed can be read back.
std::string NumberText(uint64_t value, Unit unit) {
  const std::string bytes = value == 0 ? "0" : FormatBytes(value);
  return unit == Unit::kBytes && bytes.find(' ') == std::string::npos ? bytes : absl::StrCat(value);
}

std::optional<uint64_t> ParseNumber(std::string_view text, Unit unit) {
  if (unit == Unit::kBytes) {
    const absl::StatusOr<uint64_t> bytes = ParseBytes(text);
    return bytes.ok() ? std::optional<uint64_t>(*bytes) : std::nullopt;
  }
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Writes a text into the member it is for; false when it is not one of that kind.
struct Assign {
  const ConfigField& field;
  std::string_view text;
  Config* config;

  bool operator()(std::string Config::*member) const {
    config->*member = std::string(text);
    return true;
  }
  bool operator()(std::vector<std::string> Config::*member) const {
    config->*member =
        absl::StrSplit(absl::string_view(text.data(), text.size()), ',', absl::SkipWhitespace());
    for (std::string& item : config->*member) absl::StripAsciiWhitespace(&item);
    return true;
  }
  bool operator()(bool Config::*member) const {
    config->*member = text == "true";
    return text == "true" || text == "false";
  }
  bool operator()(LogLevel Config::*member) const {
    return ParseLogLevel(text, &(config->*member));
  }
  bool operator()(Eviction Config::*member) const {
    const std::optional<Eviction> eviction = ParseEviction(text);
    if (eviction) config->*member = *eviction;
    return eviction.has_value();
  }
  bool operator()(SharedMemoryPools Config::*member) const {
    const auto* const name = std::ranges::find(kSharedMemoryPoolsNames, text);
    if (name == std::end(kSharedMemoryPoolsNames)) return false;
    config->*member = static_cast<SharedMemoryPools>(name - std::begin(kSharedMemoryPoolsNames));
    return true;
  }
  bool operator()(uint64_t Config::*member) const {
    const std::optional<uint64_t> value = ParseNumber(text, field.unit);
    if (!value || *value < field.min || *value > field.max) return false;
    config->*member = *value;
    return true;
  }
};

struct ToText {
  const ConfigField& field;
  const Config& config;

  std::string operator()(std::string Config::*member) const { return config.*member; }
  std::string operator()(std::vector<std::string> Config::*member) const {
    return absl::StrJoin(config.*member, ",");
  }
  std::string operator()(bool Config::*member) const { return config.*member ? "true" : "false"; }
  std::string operator()(LogLevel Config::*member) const {
    return std::string(kLevelNames[static_cast<int>(config.*member)]);
  }
  std::string operator()(Eviction Config::*member) const {
    return std::string(kEvictionNames[static_cast<int>(config.*member)]);
  }
  std::string operator()(SharedMemoryPools Config::*member) const {
    return std::string(kSharedMemoryPoolsNames[static_cast<int>(config.*member)]);
  }
  std::string operator()(uint64_t Config::*member) const {
    return NumberText(config.*member, field.unit);
  }
};

template <size_t N>
std::string Names(const std::string_view (&names)[N]) {
  return absl::StrJoin(std::vector<std::string>(std::begin(names), std::end(names)), ", ");
}

const ConfigField* FindField(std::string_view name) {
  const auto field = std::find_if(std::begin(kFields), std::end(kFields),
                                  [&](const ConfigField& f) { return f.name == name; });
  return field == std::end(kFields) ? nullptr : field;
}

std::string FieldNames(const std::function<std::string(std::string_view)>& spell) {
  std::vector<std::string> names;
  for (const ConfigField& field : kFields) names.push_back(spell(field.name));
  return absl::StrJoin(names, ", ");
}

// Values by field name, from one source.
using Values = std::map<std::string, std::string, std::less<>>;

struct FlagValues {
  Values values;
  std::string config_file;
  bool print_config = false;
  std::string exit_text;  // of --help or --version
};

std::string FlagHelp(const ConfigField& field) {
  const std::string value = FieldText(field, Config());
  return absl::StrCat(std::string(field.help), " [", FieldRange(field),
                      value.empty() ? "" : absl::StrCat("; default ", value), "]");
}

absl::StatusOr<FlagValues> ReadFlags(int argc, const char* const* argv) {
  CLI::App app(
      "kvtierd: keeps the KV cache of prompts in GPU memory, RAM and SSD, over gRPC.\n"
      "Each flag is also a key in the file and, as KVTIER_..., an environment variable;\n"
      "a flag wins over the environment, that over the file.");
  FlagValues out;
  Values given;
  std::map<std::string, CLI::Option*> options;
  for (const ConfigField& field : kFields) {
    const std::string name(field.name);
    const std::string flag = "--" + name;
    options[name] = std::holds_alternative<bool Config::*>(field.member)
                        ? app.add_flag(flag, given[name], FlagHelp(field))
                        : app.add_option(flag, given[name], FlagHelp(field))->type_name("");
  }
  app.add_option("--config", out.config_file, "TOML file to read")->type_name("FILE");
  app.add_flag("--print-config", out.print_config, "print the effective configuration and exit");
  app.set_version_flag("--version", "kvtierd " KVTIER_VERSION);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    out.exit_text = app.help();
  } catch (const CLI::CallForVersion&) {
    out.exit_text = "kvtierd " KVTIER_VERSION "\n";
  } catch (const CLI::ParseError& error) {
    return absl::InvalidArgumentError(absl::StrCat(error.what(), " (see kvtierd --help)"));
  }
  for (const auto& [name, option] : options) {
    if (option->count() > 0) out.values[name] = given[name];
  }
  return out;
}

bool OfOthers(std::string_view variable) {
  return std::count(std::begin(kVariablesOfOthers), std::end(kVariablesOfOthers), variable) > 0;
}

absl::StatusOr<Values> ReadEnvironment(const std::vector<std::string>& environment,
                                       std::string* config_file) {
  Values out;
  for (const std::string& entry : environment) {
    const size_t equals = entry.find('=');
    const std::string name = entry.substr(0, equals);
    if (name.rfind(kEnvironmentPrefix, 0) != 0 || equals == std::string::npos) continue;
    const std::string value = entry.substr(equals + 1);
    if (name == "KVTIER_CONFIG") {
      *config_file = value;
      continue;
    }
    if (OfOthers(name)) continue;
    const auto field = std::find_if(std::begin(kFields), std::end(kFields),
                                    [&](const auto& f) { return EnvironmentName(f.name) == name; });
    if (field == std::end(kFields)) {
      return absl::InvalidArgumentError(absl::StrCat("unknown environment variable ", name,
                                                     "; known: KVTIER_CONFIG, ",
                                                     FieldNames(EnvironmentName)));
    }
    out[std::string(field->name)] = value;
  }
  return out;
}

// Text of a TOML value that a field can have; nothing for tables, dates and the like.
std::optional<std::string> TomlText(const toml::node& node) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* number = node.as_integer()) return absl::StrCat(number->get());
  if (const auto* truth = node.as_boolean()) return truth->get() ? "true" : "false";
  const toml::array* array = node.as_array();
  if (array == nullptr) return std::nullopt;
  std::vector<std::string> items;
  for (const toml::node& item : *array) {
    if (!item.is_string()) return std::nullopt;
    items.push_back(item.as_string()->get());
  }
  return absl::StrJoin(items, ",");
}

absl::StatusOr<Values> ReadFile(const std::string& path) {
  Values out;
  if (path.empty()) return out;
  if (std::filesystem::is_directory(path)) {
    return absl::InvalidArgumentError(absl::StrCat("config file ", path, " is a directory"));
  }
  toml::table table;
  try {
    table = toml::parse_file(path);
  } catch (const toml::parse_error& error) {
    return absl::InvalidArgumentError(absl::StrCat("config file ", path, ", line ",
                                                   error.source().begin.line, ": ",
                                                   std::string(error.description())));
  }
  for (const auto& [key, node] : table) {
    const std::string name(key.str());
    const ConfigField* field = FindField(name);
    if (field == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(
          "config file ", path, ", line ", key.source().begin.line, ": unknown key '", name,
          "'; known: ",
          FieldNames([](std::string_view field_name) { return std::string(field_name); })));
    }
    const std::optional<std::string> text = TomlText(node);
    if (!text) {
      return absl::InvalidArgumentError(absl::StrCat("config file ", path, ", line ",
                                                     key.source().begin.line, ": ", name,
                                                     " must be ", FieldRange(*field)));
    }
    out[name] = *text;
  }
  return out;
}

absl::Status CheckAddress(std::string_view flag, const std::string& text, bool unix_allowed,
                          bool insecure) {
  const absl::StatusOr<Address> address = ParseAddress(text);
  const std::string name(flag);
  if (!address.ok()) return Annotate(address.status(), name);
  if (!unix_allowed && !address->unix_path.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": '", text, "' is not allowed, must be HOST:PORT"));
  }
  if (insecure || address->IsLoopback()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      name, ": '", text,
      "' is not a loopback address. Connections are neither encrypted nor "
      "authenticated: listen on a Unix socket or 127.0.0.1, or, on a network where every host may "
      "read and write the cache, add --insecure-listen"));
}

absl::Status FinishAddresses(Config* config) {
  if (config->data_dir.empty()) {
    return absl::InvalidArgumentError("data-dir: '' is not allowed, must be a path");
  }
  const std::filesystem::path absolute = std::filesystem::absolute(config->data_dir);
  config->data_dir = absolute.lexically_normal().string();
  if (config->data_dir.size() > 1 && config->data_dir.back() == '/') config->data_dir.pop_back();
  if (config->listen.empty()) config->listen = {"unix:" + config->data_dir + "/kvtier.sock"};
  if (config->admin_listen.empty()) {
    config->admin_listen = "unix:" + config->data_dir + "/admin.sock";
  }
  const bool insecure = config->insecure_listen;
  for (const std::string& address : config->listen) {
    KVTIER_RETURN_IF_ERROR(CheckAddress("listen", address, true, insecure));
  }
  KVTIER_RETURN_IF_ERROR(CheckAddress("admin-listen", config->admin_listen, true, insecure));
  if (config->metrics_listen.empty()) return absl::OkStatus();
  return CheckAddress("metrics-listen", config->metrics_listen, false, insecure);
}

absl::Status CheckUids(const std::vector<std::string>& uids) {
  for (const std::string& text : uids) {
    const std::optional<uint64_t> uid = ParseNumber(text, Unit::kNone);
    if (uid && *uid < kMaxUid) continue;
    return absl::InvalidArgumentError(absl::StrCat("shared-memory-uids: '", text,
                                                   "' is not allowed, must be 0 to ", kMaxUid - 1));
  }
  return absl::OkStatus();
}

struct Source {
  const char* name;
  std::string place;  // for errors
  const Values& values;
};

// Later sources win.
absl::Status Apply(std::span<const Source> sources, Config* config,
                   std::map<std::string, std::string>* origin) {
  for (const Source& source : sources) {
    for (const auto& [name, text] : source.values) {
      KVTIER_RETURN_IF_ERROR(Annotate(SetField(*FindField(name), text, config), source.place));
      (*origin)[name] = source.name;
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::span<const ConfigField> ConfigFields() { return kFields; }

std::string EnvironmentName(std::string_view field_name) {
  std::string name = absl::StrCat(std::string(kEnvironmentPrefix), std::string(field_name));
  absl::AsciiStrToUpper(&name);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

absl::Status SetField(const ConfigField& field, std::string_view text, Config* config) {
  const bool good = std::visit(Assign{field, text, config}, field.member);
  return good ? absl::OkStatus() : BadValue(field, field.secret ? "***" : text);
}

std::string FieldText(const ConfigField& field, const Config& config) {
  const std::string text = std::visit(ToText{field, config}, field.member);
  return field.secret && !text.empty() ? "***" : text;
}

std::string FieldRange(const ConfigField& field) {
  if (std::holds_alternative<uint64_t Config::*>(field.member)) {
    return absl::StrCat(NumberText(field.min, field.unit), " to ",
                        NumberText(field.max, field.unit),
                        field.unit == Unit::kMilliseconds ? " milliseconds" : "");
  }
  if (std::holds_alternative<bool Config::*>(field.member)) return "true or false";
  if (std::holds_alternative<LogLevel Config::*>(field.member)) return Names(kLevelNames);
  if (std::holds_alternative<Eviction Config::*>(field.member)) return Names(kEvictionNames);
  if (std::holds_alternative<SharedMemoryPools Config::*>(field.member)) {
    return Names(kSharedMemoryPoolsNames);
  }
  return "text";
}

absl::StatusOr<CommandLine> ReadConfig(int argc, const char* const* argv,
                                       const std::vector<std::string>& environment) {
  KVTIER_ASSIGN_OR_RETURN(const FlagValues flags, ReadFlags(argc, argv));
  CommandLine out;
  if (!flags.exit_text.empty()) {
    out.action = CommandLine::Action::kPrintAndExit;
    out.text = flags.exit_text;
    return out;
  }
  std::string file = flags.config_file;
  std::string file_from_environment;
  KVTIER_ASSIGN_OR_RETURN(const Values variables,
                          ReadEnvironment(environment, &file_from_environment));
  if (file.empty()) file = file_from_environment;
  KVTIER_ASSIGN_OR_RETURN(const Values keys, ReadFile(file));
  const Source sources[] = {{"file", absl::StrCat("config file ", file), keys},
                            {"environment", "environment", variables},
                            {"flag", "command line", flags.values}};
  std::map<std::string, std::string> origin;
  KVTIER_RETURN_IF_ERROR(Apply(sources, &out.config, &origin));
  KVTIER_RETURN_IF_ERROR(FinishAddresses(&out.config));
  KVTIER_RETURN_IF_ERROR(CheckUids(out.config.shared_memory_uids));
  if (flags.print_config) out.action = CommandLine::Action::kPrintConfig;
  for (const ConfigField& field : kFields) {
    const std::string name(field.name);
    const auto found = origin.find(name);
    out.settings.push_back(
        {name, FieldText(field, out.config), found == origin.end() ? "default" : found->second});
  }
  return out;
}

std::string SharedMemorySocket(const Config& config) {
  constexpr std::string_view kUnix = "unix:";
  constexpr std::string_view kSuffix = ".sock";
  for (const std::string& address : config.listen) {
    if (!address.starts_with(kUnix)) continue;
    std::string path = address.substr(kUnix.size());
    if (path.ends_with(kSuffix)) path.resize(path.size() - kSuffix.size());
    return absl::StrCat(path, ".shm.sock");
  }
  return "";
}

std::string FormatSettings(const std::vector<EffectiveSetting>& settings) {
  std::string out;
  for (const EffectiveSetting& setting : settings) {
    absl::StrAppend(&out, setting.name, " = \"", setting.value, "\"  # ", setting.source, "\n");
  }
  return out;
}

bool Address::IsLoopback() const {
  in_addr v4{};
  in6_addr v6{};
  if (!unix_path.empty() || host == "localhost") return true;
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  return inet_pton(AF_INET6, host.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

absl::StatusOr<Address> ParseAddress(std::string_view text) {
  Address address;
  const std::string all(text);
  if (all.rfind("unix:", 0) == 0) {
    address.unix_path = all.substr(5);
    if (address.unix_path.empty() || address.unix_path.size() > kMaxUnixPath) {
      return absl::InvalidArgumentError(absl::StrCat("'", all, "': the path of a Unix socket has ",
                                                     address.unix_path.size(),
                                                     " bytes, must have 1 to ", kMaxUnixPath));
    }
    return address;
  }
  const absl::Status bad = absl::InvalidArgumentError(absl::StrCat(
      "'", all, "' is no address, must be unix:PATH or HOST:PORT with a port of 0 to 65535"));
  const size_t colon = all.rfind(':');
  if (colon == std::string::npos || colon == 0) return bad;
  address.host = all.substr(0, colon);
  const std::string port = all.substr(colon + 1);
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), address.port);
  if (port.empty() || error != std::errc() || end != port.data() + port.size()) return bad;
  const bool bracketed = address.host.front() == '[' && address.host.back() == ']';
  if (bracketed) address.host = address.host.substr(1, address.host.size() - 2);
  if (address.host.empty() || (!bracketed && address.host.find(':') != std::string::npos))
    return bad;
  return address;
}

}  // namespace kvtier
