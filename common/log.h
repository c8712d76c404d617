// One line per event on stderr: time, level, message, then key=value fields. Never salts, tokens or
// payload. Thread-safe.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"

namespace kvtier {

enum class LogLevel { kDebug = 0, kInfo = 1, kWarning = 2, kError = 3 };

bool ParseLogLevel(std::string_view name, LogLevel* level);  // "debug", "info", "warning", "error"
void SetLogLevel(LogLevel level);
LogLevel GetLogLevel();

// Values with spaces or quotes come out quoted.
struct LogField {
  std::string_view name;
  std::string value;
  LogField(std::string_view n, std::string v) : name(n), value(std::move(v)) {}
  LogField(std::string_view n, const char* v) : name(n), value(v) {}
  LogField(std::string_view n, std::string_view v) : name(n), value(v) {}
  template <typename T>
  requires std::is_arithmetic_v<T> LogField(std::string_view n, T v)
      : name(n), value(absl::StrCat(v)) {}
};

void Log(LogLevel level, std::string_view message, std::initializer_list<LogField> fields = {});

}  // namespace kvtier
