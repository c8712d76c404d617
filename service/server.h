// The whole daemon in one object, from a Config: what main() runs and what tests run in process.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/status.h"
#include "service/config.h"

namespace kvtier {

// Thread-safe.
class Server {
 public:
  // Takes the data directory, takes and pre-faults the tiers' memory, knows the registered models
  // again and listens. `settings` is shown by GetStatus. Errors: INVALID_ARGUMENT for a
  // configuration that this host or build cannot serve; anything else is a start that failed.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const Config& config,
                                                       std::vector<EffectiveSetting> settings);
  // Stops.
  virtual ~Server() = default;

  // New data calls are refused and the health service says NOT_SERVING; calls in flight go on.
  virtual void Drain() = 0;
  // Drains, lets calls in flight finish within drain-ms, ends the rest, and removes the sockets.
  virtual void Stop() = 0;

  // As bound: a port of 0 is replaced by the one chosen.
  virtual const std::vector<std::string>& listen() const = 0;
  virtual const std::string& admin_listen() const = 0;
  virtual const std::string& metrics_listen() const = 0;  // empty: off
  // "ready listen=... admin=... ..." without a newline.
  virtual std::string ReadyLine() const = 0;
};

}  // namespace kvtier
