// Error plumbing over absl::Status: codes as in the public API, context added on the way up.
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#define KVTIER_CONCAT_INNER(a, b) a##b
#define KVTIER_CONCAT(a, b) KVTIER_CONCAT_INNER(a, b)

// Returns from the enclosing function when `expr` is not OK.
#define KVTIER_RETURN_IF_ERROR(expr)               \
  do {                                             \
    absl::Status kvtier_status = (expr);           \
    if (!kvtier_status.ok()) return kvtier_status; \
  } while (false)

// KVTIER_ASSIGN_OR_RETURN(auto x, F()): x = *F(), or returns F()'s error.
#define KVTIER_ASSIGN_OR_RETURN(lhs, expr) \
  KVTIER_ASSIGN_OR_RETURN_IMPL(KVTIER_CONCAT(kvtier_or_, __LINE__), lhs, expr)
#define KVTIER_ASSIGN_OR_RETURN_IMPL(tmp, lhs, expr) \
  auto tmp = (expr);                                 \
  if (!tmp.ok()) return tmp.status();                \
  lhs = std::move(*tmp)

namespace kvtier {

// The same code, "context: message".
inline absl::Status Annotate(const absl::Status& status, const std::string& context) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(context, ": ", status.message()));
}

}  // namespace kvtier
