#include "client/retry_delay.h"

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "kvtier/client.h"

namespace kvtier {
namespace {

constexpr char kUrl[] = "kvtier/retry-delay-ms";

std::optional<Duration> ParseMilliseconds(const std::string& text) {
  uint32_t milliseconds = 0;
  if (!absl::SimpleAtoi(text, &milliseconds)) return std::nullopt;
  return std::chrono::milliseconds(milliseconds);
}

}  // namespace

std::optional<Duration> RetryDelay(const absl::Status& status) {
  const auto payload = status.GetPayload(kUrl);
  if (!payload.has_value()) return std::nullopt;
  return ParseMilliseconds(std::string(*payload));
}

namespace client_internal {

void SetRetryDelay(absl::Status* status, std::string_view milliseconds) {
  const std::string text(milliseconds);
  if (ParseMilliseconds(text).has_value()) status->SetPayload(kUrl, absl::Cord(text));
}

}  // namespace client_internal
}  // namespace kvtier
