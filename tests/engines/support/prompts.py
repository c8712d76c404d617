"""Seeded prompts of the tiny models' vocabulary."""
import random

BLOCK_TOKENS = 32
FIRST_TOKEN = 3  # after the special ones
VOCABULARY = 512


def tokens(seed: int, count: int) -> list[int]:
    """The same for the same seed; a longer prompt of a seed continues a shorter one."""
    generator = random.Random(f"kvtier/{seed}")
    return [generator.randrange(FIRST_TOKEN, VOCABULARY) for _ in range(count)]


def split(seed: int, blocks: int, rest: int) -> tuple[list[int], list[int]]:
    """A prompt of whole blocks and one that continues it by `rest` tokens: the second hits the first's
    blocks, all of them when 0 < rest."""
    whole = tokens(seed, blocks * BLOCK_TOKENS + rest)
    return whole[:blocks * BLOCK_TOKENS], whole
