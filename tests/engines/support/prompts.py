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


def shared_prefixes(seed: int, prefixes: int = 5, each: int = 10) -> list[list[int]]:
    """prefixes * each prompts: those of one prefix begin alike for 3 to 8 blocks and some tokens, then
    go on for 5 to 60 tokens of their own. In mixed order."""
    generator = random.Random(f"kvtier/shared/{seed}")
    out = []
    for number in range(prefixes):
        count = generator.randint(3, 8) * BLOCK_TOKENS + generator.randrange(20)
        prefix = tokens(seed * 1000 + number, count)
        for one in range(each):
            out.append(prefix + tokens(seed * 1000 + 100 + number * each + one, generator.randint(5, 60)))
    generator.shuffle(out)
    return out
