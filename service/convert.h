// Between the public protocol's messages and our own types, for both services and the models file.
#pragma once

#include "common/model_spec.h"
#include "common/prompt.h"
#include "common/status.h"
#include "kvtier/v1/kvtier.pb.h"
#include "storage/tier.h"

namespace kvtier {

// Fills in the documented defaults (tensor_parallel 0 = 1, explicit_groups 0 = 1). INVALID_ARGUMENT
// for an enum value this build does not know or a layer group without attention; ValidateSpec does
// the rest.
absl::StatusOr<ModelSpec> ToModelSpec(const v1::ModelSpec& proto);
v1::ModelSpec ToProto(const ModelSpec& spec);

// INVALID_ARGUMENT over a length limit.
absl::StatusOr<Namespace> ToNamespace(const v1::Namespace& proto);

// INVALID_ARGUMENT unless it has 16 bytes.
absl::StatusOr<ModelId> ToModelId(const std::string& bytes);

v1::Tier ToProto(TierKind tier);
// INVALID_ARGUMENT for TIER_UNSPECIFIED and values this build does not know.
absl::StatusOr<TierKind> ToTierKind(v1::Tier tier);

}  // namespace kvtier
