// A ModelSpec as the protocol carries it.
#pragma once

#include "common/model_spec.h"
#include "kvtier/v1/kvtier.pb.h"

namespace kvtier::client_internal {

v1::ModelSpec ToProto(const ModelSpec& spec);

}  // namespace kvtier::client_internal
