#include "service/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace kvtier {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class ConfigTest : public ::testing::Test {
 protected:
  ConfigTest() {
    std::string name = ::testing::TempDir() + "kvtier_config_XXXXXX";
    folder_ = mkdtemp(name.data());
  }
  ~ConfigTest() override { std::filesystem::remove_all(folder_); }

  std::string WriteFile(const std::string& content) {
    const std::string path = folder_ + "/kvtierd.toml";
    std::ofstream(path) << content;
    return path;
  }

  static absl::StatusOr<CommandLine> Read(std::vector<const char*> flags,
                                          const std::vector<std::string>& environment = {}) {
    flags.insert(flags.begin(), "kvtierd");
    return ReadConfig(static_cast<int>(flags.size()), flags.data(), environment);
  }

  static std::string Error(std::vector<const char*> flags,
                           const std::vector<std::string>& environment = {}) {
    const absl::StatusOr<CommandLine> read = Read(std::move(flags), environment);
    if (read.ok()) return "(accepted)";
    EXPECT_EQ(read.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(read.status().message());
  }

  static std::string SourceOf(const CommandLine& line, const std::string& name) {
    for (const EffectiveSetting& setting : line.settings) {
      if (setting.name == name) return setting.source;
    }
    return "(none)";
  }

  std::string folder_;
};

TEST_F(ConfigTest, DefaultsPutTheSocketsInTheDataDirectory) {
  const auto line = Read({"--data-dir", "/tmp/x/../d/"});
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_EQ(line->config.data_dir, "/tmp/d");
  EXPECT_THAT(line->config.listen, ::testing::ElementsAre("unix:/tmp/d/kvtier.sock"));
  EXPECT_EQ(line->config.admin_listen, "unix:/tmp/d/admin.sock");
  EXPECT_EQ(line->config.metrics_listen, "");
  EXPECT_EQ(line->config.ram_bytes, uint64_t{1} << 30);
  EXPECT_EQ(line->config.ssd_bytes, 0u);
  EXPECT_EQ(line->config.gpu_bytes, 0u);
  EXPECT_EQ(line->settings.size(), ConfigFields().size());
}

TEST_F(ConfigTest, SharedMemoryIsBesideTheFirstUnixSocket) {
  const auto socket = [](std::vector<std::string> listen) {
    Config config;
    config.listen = std::move(listen);
    return SharedMemorySocket(config);
  };
  EXPECT_EQ(socket({"unix:/tmp/d/kvtier.sock"}), "/tmp/d/kvtier.shm.sock");
  EXPECT_EQ(socket({"127.0.0.1:1", "unix:/tmp/other", "unix:/tmp/x.sock"}), "/tmp/other.shm.sock");
  EXPECT_EQ(socket({"127.0.0.1:1"}), "");
}

TEST_F(ConfigTest, UidsAreNumbers) {
  EXPECT_TRUE(Read({"--shared-memory-uids", "0,1000,4294967294"}).ok());
  for (const char* uids : {"4294967295", "root", "-1", "1000,x"}) {
    EXPECT_THAT(Error({"--shared-memory-uids", uids}),
                AllOf(HasSubstr("shared-memory-uids"), HasSubstr("0 to 4294967294")))
        << uids;
  }
  EXPECT_FALSE(Read({"--shared-memory=false"})->config.shared_memory);
}

TEST_F(ConfigTest, FlagWinsOverEnvironmentOverFileOverDefault) {
  const std::string file = WriteFile("ram-bytes = \"1MiB\"\nmax-tokens = 7\ndrain-ms = 5\n");
  const auto line = Read({"--config", file.c_str(), "--ram-bytes", "3MiB"},
                         {"KVTIER_RAM_BYTES=2MiB", "KVTIER_MAX_TOKENS=8", "PATH=/bin"});
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_EQ(line->config.ram_bytes, 3u << 20);
  EXPECT_EQ(SourceOf(*line, "ram-bytes"), "flag");
  EXPECT_EQ(line->config.max_tokens, 8u);
  EXPECT_EQ(SourceOf(*line, "max-tokens"), "environment");
  EXPECT_EQ(line->config.drain_ms, 5u);
  EXPECT_EQ(SourceOf(*line, "drain-ms"), "file");
  EXPECT_EQ(SourceOf(*line, "log-level"), "default");
}

TEST_F(ConfigTest, TheFileMayBeNamedByTheEnvironment) {
  const std::string file = WriteFile("listen = [\"unix:/tmp/a\", \"127.0.0.1:0\"]\n");
  const auto line = Read({}, {"KVTIER_CONFIG=" + file});
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_THAT(line->config.listen, ::testing::ElementsAre("unix:/tmp/a", "127.0.0.1:0"));
}

TEST_F(ConfigTest, EvictionIsShownAsItWasGiven) {
  const auto line = Read({"--eviction", "protected"});
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_EQ(line->config.eviction, Eviction::kProtected);
  EXPECT_THAT(FormatSettings(line->settings), HasSubstr("eviction = \"protected\"  # flag\n"));
  const auto without = Read({});
  ASSERT_TRUE(without.ok()) << without.status();
  EXPECT_EQ(without->config.eviction, Eviction::kLru);
}

TEST_F(ConfigTest, PoolsAreShownAsTheyWereGiven) {
  EXPECT_EQ(Read({})->config.shared_memory_pools, SharedMemoryPools::kOne);
  const auto line = Read({"--shared-memory-pools", "per-uid"});
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_EQ(line->config.shared_memory_pools, SharedMemoryPools::kPerUid);
  EXPECT_THAT(FormatSettings(line->settings),
              HasSubstr("shared-memory-pools = \"per-uid\"  # flag\n"));
  EXPECT_THAT(Error({"--shared-memory-pools", "per-gid"}),
              AllOf(HasSubstr("shared-memory-pools: 'per-gid'"), HasSubstr("one, per-uid")));
}

TEST_F(ConfigTest, UnknownNamesStopTheStart) {
  const std::string file = WriteFile("\nram-byte = 5\n");
  EXPECT_THAT(
      Error({"--config", file.c_str()}),
      AllOf(HasSubstr(file), HasSubstr("line 2"), HasSubstr("'ram-byte'"), HasSubstr("ram-bytes")));
  EXPECT_THAT(Error({}, {"KVTIER_RAM_BYTE=5"}),
              AllOf(HasSubstr("KVTIER_RAM_BYTE;"), HasSubstr("KVTIER_RAM_BYTES")));
  EXPECT_THAT(Error({"--ram-byte", "5"}), HasSubstr("--ram-byte"));
  EXPECT_THAT(Error({"extra"}), HasSubstr("extra"));
}

TEST_F(ConfigTest, VariablesOfTheToolDoNotStopTheStart) {
  EXPECT_EQ(Error({}, {"KVTIER_ADMIN=unix:/a", "KVTIER_SERVER=unix:/s", "KVTIER_TRACES=/t"}),
            "(accepted)");
  EXPECT_NE(Error({}, {"KVTIER_ADMINS=unix:/a"}), "(accepted)");
}

TEST_F(ConfigTest, BadValuesNameFieldValueAndRange) {
  const std::string file = WriteFile("max-lease-ms = 0\n");
  EXPECT_THAT(Error({"--config", file.c_str()}),
              AllOf(HasSubstr("max-lease-ms: '0'"), HasSubstr("1 to 86400000 milliseconds")));
  EXPECT_THAT(Error({}, {"KVTIER_RAM_BYTES=12 parsecs"}),
              AllOf(HasSubstr("ram-bytes: '12 parsecs'"), HasSubstr("64KiB to 16TiB")));
  EXPECT_THAT(Error({"--ram-bytes", "17TiB"}), HasSubstr("ram-bytes: '17TiB'"));
  EXPECT_THAT(Error({"--max-tokens", "-1"}), HasSubstr("max-tokens"));
  EXPECT_THAT(Error({"--log-level", "loud"}),
              AllOf(HasSubstr("log-level: 'loud'"), HasSubstr("debug, info, warning, error")));
  EXPECT_THAT(Error({"--eviction", "lfu"}),
              AllOf(HasSubstr("eviction: 'lfu'"), HasSubstr("lru, protected")));
  EXPECT_THAT(Error({}, {"KVTIER_INSECURE_LISTEN=yes"}), HasSubstr("true or false"));
  EXPECT_THAT(Error({"--data-dir="}), HasSubstr("data-dir"));
}

TEST_F(ConfigTest, FileOfAnotherShapeIsRefused) {
  EXPECT_THAT(Error({"--config", WriteFile("ram-bytes = 1.5\n").c_str()}),
              HasSubstr("ram-bytes must be"));
  EXPECT_THAT(Error({"--config", WriteFile("ram-bytes = \n").c_str()}), HasSubstr("line 1"));
  EXPECT_THAT(Error({"--config", WriteFile("[tiers]\nram = 1\n").c_str()}), HasSubstr("'tiers'"));
  EXPECT_THAT(Error({"--config", (folder_ + "/missing").c_str()}), HasSubstr("/missing"));
}

TEST_F(ConfigTest, OnlyLoopbackIsAllowedByDefault) {
  for (const char* address : {"127.0.0.1:1", "127.3.2.1:0", "localhost:1", "[::1]:1", "unix:/s"}) {
    EXPECT_TRUE(Read({"--listen", address}).ok()) << address;
  }
  for (const char* address : {"0.0.0.0:1", "10.0.0.1:1", "[::]:1", "somewhere:1"}) {
    EXPECT_THAT(Error({"--listen", address}), HasSubstr("--insecure-listen")) << address;
    EXPECT_THAT(Error({"--admin-listen", address}), HasSubstr("--insecure-listen")) << address;
    EXPECT_THAT(Error({"--metrics-listen", address}), HasSubstr("--insecure-listen")) << address;
    EXPECT_TRUE(Read({"--listen", address, "--insecure-listen"}).ok()) << address;
  }
}

TEST_F(ConfigTest, AddressesAreChecked) {
  for (const char* address :
       {"127.0.0.1", ":1", "127.0.0.1:", "127.0.0.1:65536", "::1:1", "unix:"}) {
    EXPECT_THAT(Error({"--listen", address}), HasSubstr("listen: ")) << address;
  }
  EXPECT_THAT(Error({"--metrics-listen", "unix:/m"}), HasSubstr("HOST:PORT"));
  const std::string longest = "unix:/" + std::string(106, 'a');
  EXPECT_TRUE(Read({"--listen", longest.c_str()}).ok());
  EXPECT_THAT(Error({"--listen", (longest + "a").c_str()}),
              AllOf(HasSubstr("108 bytes"), HasSubstr("107")));
}

TEST_F(ConfigTest, PrintedConfigurationReadsBackAsTheSame) {
  const auto line = Read({"--listen", "unix:/a,127.0.0.1:5", "--ram-bytes", "1234567",
                          "--insecure-listen", "--log-level", "debug", "--print-config"});
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_EQ(line->action, CommandLine::Action::kPrintConfig);
  const std::string printed = FormatSettings(line->settings);
  EXPECT_THAT(printed, HasSubstr("ram-bytes = \"1234567\"  # flag\n"));
  const auto again = Read({"--config", WriteFile(printed).c_str()});
  ASSERT_TRUE(again.ok()) << again.status();
  for (const ConfigField& field : ConfigFields()) {
    EXPECT_EQ(FieldText(field, again->config), FieldText(field, line->config)) << field.name;
  }
}

TEST_F(ConfigTest, SecretsAreNeverShown) {
  ConfigField field = ConfigFields().front();
  Config config;
  ASSERT_TRUE(SetField(field, "visible", &config).ok());
  EXPECT_EQ(FieldText(field, config), "visible");
  field.secret = true;
  EXPECT_EQ(FieldText(field, config), "***");
}

TEST_F(ConfigTest, EveryDefaultIsWithinItsRange) {
  for (const ConfigField& field : ConfigFields()) {
    Config config;
    const std::string text = FieldText(field, config);
    if (text.empty()) continue;
    EXPECT_TRUE(SetField(field, text, &config).ok()) << field.name;
  }
}

TEST_F(ConfigTest, EveryFieldIsInTheOperatorsManualWithItsDefault) {
  std::ostringstream manual;
  manual << std::ifstream(KVTIER_SOURCE_DIR "/docs/OPERATIONS.md").rdbuf();
  for (const ConfigField& field : ConfigFields()) {
    const std::string row = absl::StrCat("\n| `", std::string(field.name), "` | ");
    const size_t at = manual.str().find(row);
    ASSERT_NE(at, std::string::npos) << row;
    const std::string rest = manual.str().substr(at + row.size(), 200);
    if (std::holds_alternative<uint64_t Config::*>(field.member)) {
      EXPECT_EQ(rest.rfind(FieldText(field, Config()) + " | ", 0), 0u) << row << rest;
    }
  }
}

TEST_F(ConfigTest, HelpAndVersionAreTexts) {
  const auto help = Read({"--help"});
  ASSERT_TRUE(help.ok());
  for (const ConfigField& field : ConfigFields()) {
    EXPECT_THAT(help->text, HasSubstr("--" + std::string(field.name)));
  }
  const auto version = Read({"--version"});
  ASSERT_TRUE(version.ok());
  EXPECT_EQ(version->action, CommandLine::Action::kPrintAndExit);
  EXPECT_EQ(version->text, "kvtierd " KVTIER_VERSION "\n");
}

}  // namespace
}  // namespace kvtier
