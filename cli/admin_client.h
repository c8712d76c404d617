// The operators' API of a running kvtierd, as the commands use it.
#pragma once

#include <memory>
#include <string>

#include "common/status.h"
#include "kvtier/v1/admin.pb.h"

namespace kvtier::cli {

// $KVTIER_ADMIN, else kvtierd's default: its socket in the data directory below the current one.
std::string DefaultAdminAddress();

// Blocking; each call ends within 10 s, or 60 s where it moves or drops blocks. An unreachable
// daemon comes back as UNAVAILABLE with a hint at what to do; other errors are the daemon's own.
class AdminClient {
 public:
  explicit AdminClient(
      std::string address);  // "unix:/path" or "host:port"; connects when first used
  ~AdminClient();

  absl::StatusOr<v1::GetStatusResponse> GetStatus();
  absl::StatusOr<v1::ListModelsResponse> ListModels();
  absl::StatusOr<v1::GetHitCurveResponse> GetHitCurve(const v1::GetHitCurveRequest& request);
  absl::StatusOr<v1::UnregisterModelResponse> UnregisterModel(
      const v1::UnregisterModelRequest& request);
  absl::StatusOr<v1::SetTierCapacityResponse> SetTierCapacity(
      const v1::SetTierCapacityRequest& request);
  absl::StatusOr<v1::ResetResponse> Reset(const v1::ResetRequest& request);
  absl::Status Drain();
  absl::StatusOr<v1::StartRecordingResponse> StartRecording(
      const v1::StartRecordingRequest& request);
  absl::StatusOr<v1::StopRecordingResponse> StopRecording();

 private:
  struct Stub;

  const std::string address_;
  const std::unique_ptr<Stub> stub_;
};

}  // namespace kvtier::cli
