#include "service/request_id.h"

#include <algorithm>
#include <random>
#include <string_view>

#include "absl/strings/str_format.h"

namespace kvtier {
namespace {

constexpr char kRequestIdKey[] = "kvtier-request-id";
constexpr size_t kMaxRequestId = 64;

std::string RandomPrefix() {
  std::random_device device;
  return absl::StrFormat("%07x", device() & 0xfffffff);
}

bool IsRequestId(std::string_view text) {
  return !text.empty() && text.size() <= kMaxRequestId &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~'; });
}

}  // namespace

RequestIds::RequestIds() : prefix_(RandomPrefix()) {}

std::string RequestIds::Take(grpc::CallbackServerContext* context) {
  const auto& metadata = context->client_metadata();
  const auto given = metadata.find(kRequestIdKey);
  std::string id;
  if (given != metadata.end() &&
      IsRequestId(std::string_view(given->second.data(), given->second.size()))) {
    id.assign(given->second.data(), given->second.size());
  } else {
    id = New();
  }
  context->AddInitialMetadata(kRequestIdKey, id);
  return id;
}

// 15 characters: as many as a string holds without allocating.
std::string RequestIds::New() {
  constexpr char kHex[] = "0123456789abcdef";
  std::string id = prefix_;
  const uint32_t number = counter_.fetch_add(1, std::memory_order_relaxed);
  for (int shift = 28; shift >= 0; shift -= 4) id.push_back(kHex[number >> shift & 15]);
  return id;
}

grpc::Status ToGrpcStatus(const absl::Status& status, const std::string& request_id) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()),
                      absl::StrCat(status.message(), " [request ", request_id, "]"));
}

}  // namespace kvtier
