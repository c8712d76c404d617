"""A paged KV pool: blocks are gathered from, and scattered to, pages of several layers without a staging
copy. Needs numpy, which kvtier itself does not; it is the same with torch, through
tensor.view(torch.uint8).numpy().

    numpy_pages.py ADDRESS       for instance unix:/tmp/kvtier/kvtier.sock
"""

import sys

import numpy

import kvtier

LAYERS, PAGES, TOKENS, HEADS, DIM = 3, 32, 16, 2, 8
# One array per layer, as engines have them: [page][K|V][token][head][dim].
SHAPE = (PAGES, 2, TOKENS, HEADS, DIM)


def pages_of(pool, numbers):
    """Per block its page in each layer."""
    return [[layer[number] for layer in pool] for number in numbers]


def main(address):
    page_bytes = 2 * TOKENS * HEADS * DIM * 2
    spec = kvtier.ModelSpec(
        name="example/paged",
        block_tokens=TOKENS,
        pack_order=kvtier.PackOrder.OPAQUE,
        layout_fingerprint=b"layers of [K|V][16][2][8] float16",
        explicit_part_bytes=[LAYERS * page_bytes],
    )
    pool = [
        numpy.random.default_rng(layer).standard_normal(SHAPE).astype(numpy.float16)
        for layer in range(LAYERS)
    ]
    with kvtier.Client(address) as client:
        model = client.register_model(spec)
        prompt = kvtier.Prompt(model.id, numpy.arange(50, dtype=numpy.uint32))
        mine, free = [5, 9, 2], [20, 21, 22]  # pages with the prompt's KV; pages to load it to
        client.store_from(prompt, pages_of(pool, mine))
        with client.lookup(prompt, lease=10.0) as found:
            report = client.fetch_into(found.lease, pages_of(pool, free[: found.blocks]))
        same = all((layer[mine] == layer[free]).all() for layer in pool)
        print(f"{report.leading} blocks loaded, {'the same' if same else 'others than'} as were stored")
        return 0 if report.leading == 3 and same else 1


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1]))
