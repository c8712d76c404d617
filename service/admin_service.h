// KvCacheAdmin: what operators ask of a running daemon.
#pragma once

#include <array>
#include <functional>
#include <string>
#include <vector>

#include "common/executor.h"
#include "kvtier/v1/admin.grpc.pb.h"
#include "service/config.h"
#include "service/data_dir.h"
#include "service/request_id.h"
#include "storage/tier_manager.h"

namespace kvtier {

class Recorder;
class SharedMemory;
class SsdTier;

// What the service works on; all of it must outlive the service. The functions are called on any
// thread.
struct AdminContext {
  TierManager* manager = nullptr;
  const SsdTier* ssd = nullptr;  // null when off
  Executor* executor = nullptr;  // for what blocks: resize, reset, unregister, recording
  ModelStore* models = nullptr;
  const SharedMemory* shared_memory = nullptr;  // null: none is offered
  Recorder* recorder = nullptr;
  std::vector<EffectiveSetting> settings;
  std::array<std::string, kTiers> tier_notes;  // why a tier that was asked for is off
  std::function<double()> uptime_seconds;
  std::function<uint64_t()> open_streams;
  std::function<bool()> draining;
  // Before a reset while the SSD tier is off: what it left on disk must not be back when it is on
  // again. OK when there is nothing.
  std::function<absl::Status()> drop_idle_ssd;
  std::function<void()> drain;
};

// Thread-safe. Errors as in admin.proto.
class AdminService final : public v1::KvCacheAdmin::CallbackService {
 public:
  explicit AdminService(AdminContext context) : context_(std::move(context)) {}

  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* call,
                                      const v1::GetStatusRequest* request,
                                      v1::GetStatusResponse* response) override;
  grpc::ServerUnaryReactor* ListModels(grpc::CallbackServerContext* call,
                                       const v1::ListModelsRequest* request,
                                       v1::ListModelsResponse* response) override;
  grpc::ServerUnaryReactor* GetHitCurve(grpc::CallbackServerContext* call,
                                        const v1::GetHitCurveRequest* request,
                                        v1::GetHitCurveResponse* response) override;
  grpc::ServerUnaryReactor* UnregisterModel(grpc::CallbackServerContext* call,
                                            const v1::UnregisterModelRequest* request,
                                            v1::UnregisterModelResponse* response) override;
  grpc::ServerUnaryReactor* SetTierCapacity(grpc::CallbackServerContext* call,
                                            const v1::SetTierCapacityRequest* request,
                                            v1::SetTierCapacityResponse* response) override;
  grpc::ServerUnaryReactor* Reset(grpc::CallbackServerContext* call,
                                  const v1::ResetRequest* request,
                                  v1::ResetResponse* response) override;
  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* call,
                                  const v1::DrainRequest* request,
                                  v1::DrainResponse* response) override;
  grpc::ServerUnaryReactor* StartRecording(grpc::CallbackServerContext* call,
                                           const v1::StartRecordingRequest* request,
                                           v1::StartRecordingResponse* response) override;
  grpc::ServerUnaryReactor* StopRecording(grpc::CallbackServerContext* call,
                                          const v1::StopRecordingRequest* request,
                                          v1::StopRecordingResponse* response) override;

 private:
  // Answers on the executor.
  grpc::ServerUnaryReactor* Later(grpc::CallbackServerContext* call, const char* rpc,
                                  std::function<absl::Status()> work);
  absl::Status DoGetStatus(v1::GetStatusResponse* response);
  absl::Status DoGetHitCurve(const v1::GetHitCurveRequest& request,
                             v1::GetHitCurveResponse* response);
  absl::Status DoUnregister(const v1::UnregisterModelRequest& request,
                            v1::UnregisterModelResponse* response);
  absl::Status DoSetTierCapacity(const v1::SetTierCapacityRequest& request,
                                 v1::SetTierCapacityResponse* response);
  absl::Status DoReset(const v1::ResetRequest& request, v1::ResetResponse* response);
  absl::Status DoStartRecording(const v1::StartRecordingRequest& request,
                                v1::StartRecordingResponse* response);
  absl::StatusOr<uint64_t> ResetNamespace(const ModelId& model, const Namespace& name);

  const AdminContext context_;
  RequestIds request_ids_;
};

}  // namespace kvtier
