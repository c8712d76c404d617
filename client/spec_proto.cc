#include "client/spec_proto.h"

namespace kvtier::client_internal {
namespace {

v1::LayerGroup ToProto(const LayerGroup& group) {
  v1::LayerGroup proto;
  proto.set_layers(group.layers);
  proto.set_window_tokens(group.window_tokens);
  if (const auto* grouped = std::get_if<GroupedAttention>(&group.attention)) {
    v1::GroupedAttention* out = proto.mutable_grouped();
    out->set_kv_heads(grouped->kv_heads);
    out->set_head_dim(grouped->head_dim);
    out->set_value_head_dim(grouped->value_head_dim);
  } else if (const auto* latent = std::get_if<LatentAttention>(&group.attention)) {
    v1::LatentAttention* out = proto.mutable_latent();
    out->set_kv_lora_rank(latent->kv_lora_rank);
    out->set_rope_head_dim(latent->rope_head_dim);
  } else {
    proto.mutable_state()->set_state_bytes(std::get<StateLayers>(group.attention).state_bytes);
  }
  return proto;
}

}  // namespace

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
  proto.mutable_explicit_part_bytes()->Assign(spec.explicit_part_bytes.begin(),
                                              spec.explicit_part_bytes.end());
  proto.set_explicit_groups(spec.explicit_groups);
  return proto;
}

}  // namespace kvtier::client_internal
