"""A connector that says it has every block of every prompt and loads none: the control of the comparisons.

With it the answers must differ from the truth; if they did not, equal answers with kvtier would prove
nothing about the KV that was loaded.
"""
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata


class LiarConnector(KVConnectorBase_V1):

    def __init__(self, vllm_config, role, kv_cache_config):
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        self._block_tokens = vllm_config.cache_config.block_size

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        whole = (request.num_tokens - 1) // self._block_tokens * self._block_tokens
        return max(0, whole - num_computed_tokens), False

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        pass

    def build_connector_meta(self, scheduler_output):
        return KVConnectorMetadata()

    def start_load_kv(self, forward_context, **kwargs):
        pass

    def wait_for_layer_load(self, layer_name):
        pass

    def save_kv_layer(self, layer_name, kv_layer, attn_metadata, **kwargs):
        pass

    def wait_for_save(self):
        pass
