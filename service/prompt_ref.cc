#include "service/prompt_ref.h"

#include <utility>
#include <vector>

#include "common/model_spec.h"

namespace kvtier {

absl::StatusOr<ServedModel> ServedModels::Get(const ModelId& id) {
  {
    MutexLock lock(mutex_);
    const auto it = models_.find(id);
    if (it != models_.end()) return it->second;
  }
  KVTIER_ASSIGN_OR_RETURN(const ModelInfo info, manager_->GetModel(id));
  ServedModel model;
  model.block_tokens = info.spec.block_tokens;
  model.groups = GroupCount(info.spec);
  model.ranks = PartCount(info.spec) / model.groups;
  MutexLock lock(mutex_);
  models_[id] = model;
  return model;
}

absl::StatusOr<ModelId> RequireModelId(const wire::Prompt& prompt) {
  if (prompt.model_id.has_value()) return *prompt.model_id;
  return absl::InvalidArgumentError("prompt.model_id has 0 bytes, it must have 16");
}

absl::StatusOr<PromptRef> ToPromptRef(wire::Prompt* prompt, const ModelId& id,
                                      const ServedModel& model) {
  const bool hashes = prompt->engine_hash_count > 0;
  if (hashes && prompt->token_count > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("prompt has ", prompt->token_count, " tokens and ", prompt->engine_hash_count,
                     " engine_hashes, only one of them may be given"));
  }
  if (hashes && !prompt->media.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("prompt.media has ", prompt->media.size(),
                                                   " spans, with engine_hashes the limit is 0"));
  }
  KVTIER_RETURN_IF_ERROR(Annotate(ValidateMedia(prompt->media, prompt->token_count), "prompt"));
  const uint32_t block_bytes = hashes ? prompt->engine_hash_bytes : model.block_tokens * 4;
  std::string root = CanonicalRoot(
      id, prompt->name, hashes ? PromptKind::kEngineHashes : PromptKind::kTokens, block_bytes);
  std::vector<std::string_view> slices = std::move(prompt->tokens);
  if (hashes) slices = {prompt->engine_hashes};
  PromptCursor cursor(Digest128::Of(root), std::move(slices), block_bytes, prompt->media);
  return PromptRef{id, std::move(root), std::move(cursor)};
}

absl::StatusOr<uint32_t> PartIndex(const wire::Part& part, const ServedModel& model) {
  if (part.layer_group >= model.groups) {
    return absl::InvalidArgumentError(absl::StrCat("part.layer_group is ", part.layer_group,
                                                   ", the model has ", model.groups,
                                                   " layer groups"));
  }
  if (part.rank >= model.ranks) {
    return absl::InvalidArgumentError(
        absl::StrCat("part.rank is ", part.rank, ", the model has ", model.ranks, " ranks"));
  }
  return part.layer_group * model.ranks + part.rank;
}

}  // namespace kvtier
