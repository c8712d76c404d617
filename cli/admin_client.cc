#include "cli/admin_client.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdlib>
#include <utility>

#include "kvtier/v1/admin.grpc.pb.h"

namespace kvtier::cli {

struct AdminClient::Stub {
  std::unique_ptr<v1::KvCacheAdmin::Stub> rpc;
};

namespace {

constexpr std::chrono::seconds kQuick(10);
constexpr std::chrono::seconds kSlow(60);

absl::Status Explain(const grpc::Status& status, const std::string& address,
                     std::chrono::seconds deadline) {
  if (status.ok()) return absl::OkStatus();
  const auto code = static_cast<absl::StatusCode>(status.error_code());
  if (code == absl::StatusCode::kUnimplemented) {
    return absl::UnimplementedError(absl::StrCat(
        address,
        " does not serve the operators' API: --admin takes kvtierd's admin-listen address"));
  }
  if (code == absl::StatusCode::kDeadlineExceeded) {
    return absl::DeadlineExceededError(
        absl::StrCat("kvtierd at ", address, " gave no answer in ", deadline.count(),
                     " s: it stands still, or its host is short of CPU or memory; see its log"));
  }
  if (code != absl::StatusCode::kUnavailable) return absl::Status(code, status.error_message());
  return absl::UnavailableError(absl::StrCat(
      "cannot reach kvtierd at ", address,
      ": is it running? --admin or KVTIER_ADMIN gives its address (", status.error_message(), ")"));
}

template <typename Request, typename Response>
using Method = grpc::Status (v1::KvCacheAdmin::Stub::*)(grpc::ClientContext*, const Request&,
                                                        Response*);

template <typename Request, typename Response>
absl::StatusOr<Response> Call(v1::KvCacheAdmin::Stub& rpc, Method<Request, Response> method,
                              const Request& request, std::chrono::seconds deadline,
                              const std::string& address) {
  if (address.empty()) return absl::InvalidArgumentError("--admin is empty");
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + deadline);
  Response response;
  KVTIER_RETURN_IF_ERROR(Explain((rpc.*method)(&context, request, &response), address, deadline));
  return response;
}

}  // namespace

std::string DefaultAdminAddress() {
  const char* address = std::getenv("KVTIER_ADMIN");
  return address != nullptr && *address != '\0' ? address : "unix:./kvtier-data/admin.sock";
}

AdminClient::AdminClient(std::string address)
    : address_(std::move(address)), stub_(std::make_unique<Stub>()) {
  stub_->rpc =
      v1::KvCacheAdmin::NewStub(grpc::CreateChannel(address_, grpc::InsecureChannelCredentials()));
}

AdminClient::~AdminClient() = default;

absl::StatusOr<v1::GetStatusResponse> AdminClient::GetStatus() {
  return Call(*stub_->rpc, &v1::KvCacheAdmin::Stub::GetStatus, v1::GetStatusRequest(), kQuick,
              address_);
}

absl::StatusOr<v1::ListModelsResponse> AdminClient::ListModels() {
  return Call(*stub_->rpc, &v1::KvCacheAdmin::Stub::ListModels, v1::ListModelsRequest(), kQuick,
              address_);
}

absl::StatusOr<v1::GetHitCurveResponse> AdminClient::GetHitCurve(
    const v1::GetHitCurveRequest& request) {
  return Call(*stub_->rpc, &v1::KvCacheAdmin::Stub::GetHitCurve, request, kQuick, address_);
}

absl::StatusOr<v1::UnregisterModelResponse> AdminClient::UnregisterModel(
    const v1::UnregisterModelRequest& request) {
  return Call(*stub_->rpc, &v1::KvCacheAdmin::Stub::UnregisterModel, request, kSlow, address_);
}

absl::StatusOr<v1::SetTierCapacityResponse> AdminClient::SetTierCapacity(
    const v1::SetTierCapacityRequest& request) {
  return Call(*stub_->rpc, &v1::KvCacheAdmin::Stub::SetTierCapacity, request, kSlow, address_);
}

absl::StatusOr<v1::ResetResponse> AdminClient::Reset(const v1::ResetRequest& request) {
  return Call(*stub_->rpc, &v1::KvCacheAdmin::Stub::Reset, request, kSlow, address_);
}

absl::StatusOr<v1::StartRecordingResponse> AdminClient::StartRecording(
    const v1::StartRecordingRequest& request) {
  return Call(*stub_->rpc, &v1::KvCacheAdmin::Stub::StartRecording, request, kQuick, address_);
}

absl::StatusOr<v1::StopRecordingResponse> AdminClient::StopRecording() {
  return Call(*stub_->rpc, &v1::KvCacheAdmin::Stub::StopRecording, v1::StopRecordingRequest(),
              kSlow, address_);
}

absl::Status AdminClient::Drain() {
  return Call(*stub_->rpc, &v1::KvCacheAdmin::Stub::Drain, v1::DrainRequest(), kQuick, address_)
      .status();
}

}  // namespace kvtier::cli
