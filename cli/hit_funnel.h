// What became of the blocks that engines asked for: looked up, found, fetched, verified, and the
// prefill time that was saved.
#pragma once

#include <string>

#include "cli/json_output.h"
#include "kvtier/v1/admin.pb.h"

namespace kvtier::cli {

Json FunnelJson(const v1::GetStatusResponse& status);
std::string FunnelText(const v1::GetStatusResponse& status);

}  // namespace kvtier::cli
