"""Many prompts at once with asyncio: looks each up, fetches what is there, computes and stores the rest.

async_client.py ADDRESS       for instance unix:/tmp/kvtier/kvtier.sock
"""

import asyncio
import sys
import uuid

import kvtier

SPEC = kvtier.ModelSpec(
    name="example/opaque",
    revision="1",
    block_tokens=16,
    pack_order=kvtier.PackOrder.OPAQUE,
    layout_fingerprint=b"example layout 1",
    explicit_part_bytes=[100_000],
)
SYSTEM = list(range(64))  # a system prompt of four blocks


async def serve(client, model, tenant, question):
    """The blocks that had to be computed."""
    prompt = kvtier.Prompt(model.id, SYSTEM + question, namespace=kvtier.Namespace(tenant=tenant))
    buffers = [bytearray(model.part_bytes[0]) for _ in range(prompt.block_count(model.block_tokens))]
    hit = 0
    async with await client.lookup(prompt, lease=10.0) as found:
        if found.blocks:
            hit = (await client.fetch_into(found.lease, buffers[: found.blocks])).leading
    for block in range(hit, len(buffers)):  # stands for a prefill
        buffers[block][:] = bytes([block]) * len(buffers[block])
    stored = await client.store_from(prompt, buffers, first_missing=hit)
    if stored.failure is not None:
        print(f"not stored: {stored.failure}")
    return len(buffers) - hit


async def main(address):
    async with kvtier.AsyncClient(address) as client:
        model = await client.register_model(SPEC)
        tenant = f"async example {uuid.uuid4().hex}"  # of this run alone, so that the first prompt is new
        first = await serve(client, model, tenant, [1000] * 16)
        rest = await asyncio.gather(*(serve(client, model, tenant, [2000 + i] * 16) for i in range(8)))
        print(f"computed {first} blocks of the first prompt, {rest} of the others")
        return 0 if first == 5 and rest == [1] * 8 else 1


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(asyncio.run(main(sys.argv[1])))
