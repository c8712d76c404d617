// From a decoded prompt to what TierManager takes.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/container/flat_hash_map.h"
#include "common/block_key.h"
#include "common/mutex.h"
#include "common/status.h"
#include "common/wire.h"
#include "storage/tier_manager.h"

namespace kvtier {

// What decoding needs of a model. A model's id is the digest of its spec, so this never changes.
struct ServedModel {
  uint32_t block_tokens = 0;
  uint32_t groups = 0;
  uint32_t ranks = 0;
};

// Remembers models, so that a call does not copy a whole spec. Thread-safe.
class ServedModels {
 public:
  explicit ServedModels(const TierManager* manager) : manager_(manager) {}
  // NOT_FOUND. May still know a model that was removed since: TierManager has the last word.
  absl::StatusOr<ServedModel> Get(const ModelId& id);

 private:
  const TierManager* const manager_;
  Mutex mutex_;
  absl::flat_hash_map<ModelId, ServedModel> models_ KVTIER_GUARDED_BY(mutex_);
};

// INVALID_ARGUMENT when it is missing.
absl::StatusOr<ModelId> RequireModelId(const wire::Prompt& prompt);

// Takes the tokens' slices out of `prompt`, which must outlive the result (and so must the
// message). INVALID_ARGUMENT: tokens and engine hashes together, media with hashes, invalid media.
absl::StatusOr<PromptRef> ToPromptRef(wire::Prompt* prompt, const ModelId& id,
                                      const ServedModel& model);

// The part's number: layer_group * ranks + rank. INVALID_ARGUMENT when the model has no such part.
absl::StatusOr<uint32_t> PartIndex(const wire::Part& part, const ServedModel& model);

}  // namespace kvtier
