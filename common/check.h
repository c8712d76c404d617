// KVTIER_CHECK stays on in release: serving a wrong byte is worse than stopping.
#pragma once

namespace kvtier {

[[noreturn]] void CheckFailed(const char* file, int line, const char* condition);

}  // namespace kvtier

#define KVTIER_CHECK(condition)                                              \
  do {                                                                       \
    if (!(condition)) ::kvtier::CheckFailed(__FILE__, __LINE__, #condition); \
  } while (false)
