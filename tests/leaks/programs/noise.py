"""What all programs share: a random generator by seed, and work that allocates and frees much more than a leak does."""

import os
import random

SEED = int(os.environ.get("HIWATER_LEAK_SEED", "0"))
draw = random.Random(SEED)
SIZE = draw.randrange(300, 3000)
"""Of one value, in bytes."""
VALUES = draw.randrange(8, 20)
"""In one call."""


def text(size: int = SIZE) -> str:
    return chr(97 + draw.randrange(26)) * (size + draw.randrange(100))


def work() -> int:
    rows = [text(draw.randrange(10, 5000)) for _ in range(draw.randrange(20, 60))]
    return sum(len(row) for row in rows)
