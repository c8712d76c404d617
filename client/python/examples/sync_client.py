"""Stores the blocks of a prompt, then fetches what another prompt with the same beginning can use.

sync_client.py ADDRESS       for instance unix:/tmp/kvtier/kvtier.sock
"""

import sys

import kvtier

SPEC = kvtier.ModelSpec(
    name="example/tiny",
    revision="1",
    block_tokens=16,
    dtype=kvtier.DType.BF16,
    layer_groups=[kvtier.LayerGroup(kvtier.GroupedAttention(kv_heads=2, head_dim=64), layers=4)],
)


def compute(tokens, block, size):
    """Stands for a prefill: bytes that depend on all tokens up to the block's end."""
    end = (block + 1) * SPEC.block_tokens
    return (str(sum(tokens[:end])).encode() * size)[:size]


def main(address):
    with kvtier.Client(address) as client:
        model = client.register_model(SPEC)
        size = model.part_bytes[0]
        name = kvtier.Namespace(tenant="examples")

        first = list(range(100))  # six full blocks, and four tokens that are never cached
        prompt = kvtier.Prompt(model.id, first, namespace=name)
        blocks = [compute(first, i, size) for i in range(prompt.block_count(SPEC.block_tokens))]
        stored = client.store_from(prompt, blocks)
        print(f"{stored.held} blocks held, {stored.sent} sent")

        second = first[:70] + [7] * 40  # the same first four blocks
        buffers = [bytearray(size) for _ in range(len(second) // SPEC.block_tokens)]
        with client.lookup(kvtier.Prompt(model.id, second, namespace=name), lease=10.0) as found:
            fetched = client.fetch_into(found.lease, buffers[: found.blocks]) if found.blocks else None
        hit = fetched.leading if fetched else 0
        print(f"{hit * SPEC.block_tokens} of {len(second)} tokens need not be computed")
        return 0 if hit == 4 and buffers[3] == compute(second, 3, size) else 1


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1]))
