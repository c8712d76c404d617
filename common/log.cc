#include "common/log.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <ctime>

#include "absl/strings/escaping.h"

namespace kvtier {
namespace {

std::atomic<LogLevel> g_level{LogLevel::kInfo};
constexpr std::string_view kNames[] = {"debug", "info", "warning", "error"};

std::string Timestamp() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  tm utc{};
  gmtime_r(&now.tv_sec, &utc);
  char text[40];
  const size_t length = std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &utc);
  std::snprintf(text + length, sizeof(text) - length, ".%03ldZ", now.tv_nsec / 1000000);
  return text;
}

std::string Quoted(const std::string& value) {
  const bool plain = std::all_of(value.begin(), value.end(), [](unsigned char c) {
    return c > ' ' && c < 0x7f && c != '"' && c != '=' && c != '\\';
  });
  if (plain && !value.empty()) return value;
  return absl::StrCat("\"", absl::CEscape(value), "\"");
}

}  // namespace

bool ParseLogLevel(std::string_view name, LogLevel* level) {
  for (int i = 0; i < 4; ++i) {
    if (kNames[i] == name) {
      *level = static_cast<LogLevel>(i);
      return true;
    }
  }
  return false;
}

void SetLogLevel(LogLevel level) { g_level = level; }
LogLevel GetLogLevel() { return g_level; }

void Log(LogLevel level, std::string_view message, std::initializer_list<LogField> fields) {
  if (level < g_level.load(std::memory_order_relaxed)) return;
  std::string line = absl::StrCat(Timestamp(), " ", std::string(kNames[static_cast<int>(level)]),
                                  " ", std::string(message));
  for (const LogField& field : fields) {
    absl::StrAppend(&line, " ", std::string(field.name), "=", Quoted(field.value));
  }
  line.push_back('\n');
  std::fwrite(line.data(), 1, line.size(), stderr);  // one call: lines never mix
}

}  // namespace kvtier
