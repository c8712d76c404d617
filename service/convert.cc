#include "service/convert.h"

#include <utility>

namespace kvtier {
namespace {

absl::Status UnknownEnum(const char* field, int value) {
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": ", value, " is no value this server knows"));
}

absl::StatusOr<LayerGroup> ToLayerGroup(const v1::LayerGroup& proto, int position) {
  LayerGroup group;
  group.layers = proto.layers();
  group.window_tokens = proto.window_tokens();
  switch (proto.attention_case()) {
    case v1::LayerGroup::kGrouped:
      group.attention = GroupedAttention{proto.grouped().kv_heads(), proto.grouped().head_dim(),
                                         proto.grouped().value_head_dim()};
      return group;
    case v1::LayerGroup::kLatent:
      group.attention =
          LatentAttention{proto.latent().kv_lora_rank(), proto.latent().rope_head_dim()};
      return group;
    case v1::LayerGroup::kState:
      group.attention = StateLayers{proto.state().state_bytes()};
      return group;
    case v1::LayerGroup::ATTENTION_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError(absl::StrCat("spec.layer_groups[", position,
                                                 "].attention: must be grouped, latent or state"));
}

v1::LayerGroup ToProto(const LayerGroup& group) {
  v1::LayerGroup proto;
  proto.set_layers(group.layers);
  proto.set_window_tokens(group.window_tokens);
  if (const auto* grouped = std::get_if<GroupedAttention>(&group.attention)) {
    proto.mutable_grouped()->set_kv_heads(grouped->kv_heads);
    proto.mutable_grouped()->set_head_dim(grouped->head_dim);
    proto.mutable_grouped()->set_value_head_dim(grouped->value_head_dim);
  } else if (const auto* latent = std::get_if<LatentAttention>(&group.attention)) {
    proto.mutable_latent()->set_kv_lora_rank(latent->kv_lora_rank);
    proto.mutable_latent()->set_rope_head_dim(latent->rope_head_dim);
  } else {
    proto.mutable_state()->set_state_bytes(std::get<StateLayers>(group.attention).state_bytes);
  }
  return proto;
}

}  // namespace

absl::StatusOr<ModelSpec> ToModelSpec(const v1::ModelSpec& proto) {
  if (!v1::DType_IsValid(proto.dtype())) return UnknownEnum("spec.dtype", proto.dtype());
  if (!v1::PackOrder_IsValid(proto.pack_order())) {
    return UnknownEnum("spec.pack_order", proto.pack_order());
  }
  ModelSpec spec;
  spec.name = proto.name();
  spec.revision = proto.revision();
  spec.block_tokens = proto.block_tokens();
  spec.dtype = static_cast<DType>(proto.dtype());
  for (int i = 0; i < proto.layer_groups_size(); ++i) {
    KVTIER_ASSIGN_OR_RETURN(LayerGroup group, ToLayerGroup(proto.layer_groups(i), i));
    spec.layer_groups.push_back(std::move(group));
  }
  spec.tensor_parallel = proto.tensor_parallel() == 0 ? 1 : proto.tensor_parallel();
  spec.pack_order = static_cast<PackOrder>(proto.pack_order());
  spec.layout_fingerprint = proto.layout_fingerprint();
  spec.explicit_part_bytes.assign(proto.explicit_part_bytes().begin(),
                                  proto.explicit_part_bytes().end());
  spec.explicit_groups = proto.explicit_groups() == 0 ? 1 : proto.explicit_groups();
  return spec;
}

v1::ModelSpec ToProto(const ModelSpec& spec) {
  v1::ModelSpec proto;
  proto.set_name(spec.name);
  proto.set_revision(spec.revision);
  proto.set_block_tokens(spec.block_tokens);
  proto.set_dtype(static_cast<v1::DType>(spec.dtype));
  for (const LayerGroup& group : spec.layer_groups) *proto.add_layer_groups() = ToProto(group);
  proto.set_tensor_parallel(spec.tensor_parallel);
  proto.set_pack_order(static_cast<v1::PackOrder>(spec.pack_order));
  proto.set_layout_fingerprint(spec.layout_fingerprint);
  proto.mutable_explicit_part_bytes()->Add(spec.explicit_part_bytes.begin(),
                                           spec.explicit_part_bytes.end());
  proto.set_explicit_groups(spec.explicit_groups);
  return proto;
}

absl::StatusOr<Namespace> ToNamespace(const v1::Namespace& proto) {
  Namespace name{proto.tenant(), proto.salt(), proto.adapter()};
  KVTIER_RETURN_IF_ERROR(ValidateNamespace(name));
  return name;
}

absl::StatusOr<ModelId> ToModelId(const std::string& bytes) {
  const std::optional<ModelId> id = ModelId::FromBytes(bytes);
  if (!id) {
    return absl::InvalidArgumentError(
        absl::StrCat("model_id: ", bytes.size(), " bytes, must be ", ModelId::kBytes));
  }
  return *id;
}

v1::Tier ToProto(TierKind tier) {
  switch (tier) {
    case TierKind::kGpu:
      return v1::TIER_GPU;
    case TierKind::kRam:
      return v1::TIER_RAM;
    case TierKind::kSsd:
      return v1::TIER_SSD;
  }
  return v1::TIER_UNSPECIFIED;
}

absl::StatusOr<TierKind> ToTierKind(v1::Tier tier) {
  for (const TierKind kind : kAllTiers) {
    if (ToProto(kind) == tier) return kind;
  }
  return UnknownEnum("tier", tier);
}

}  // namespace kvtier
