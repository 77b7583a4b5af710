"""How long to fuzz, and from which seed."""

import os
import random

EFFORT = int(os.environ.get("FUZZ_EFFORT", "1"))
"""Multiplies the number of examples; 1 is what every test run takes."""


def seeded() -> random.Random:
    """A source of chance whose seed is printed; `FUZZ_SEED` repeats a run."""
    seed = os.environ.get("FUZZ_SEED") or str(random.randrange(2**32))
    print(f"FUZZ_SEED={seed}")
    return random.Random(seed)


def mutated(data: bytes, rng: random.Random, odd: bytes) -> bytes:
    """One to four changes: a byte replaced (by one of `odd`, mostly), a stretch dropped, repeated, or moved."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        if not changed:
            break
        at = rng.randrange(len(changed))
        end = min(len(changed), at + rng.randint(1, 12))
        what = rng.random()
        if what < 0.5:
            changed[at] = rng.choice(odd) if rng.random() < 0.7 else rng.randrange(256)
        elif what < 0.65:
            del changed[at:end]
        elif what < 0.8:
            changed[at:at] = changed[at:end]
        elif what < 0.9:
            changed[at:at] = bytes([rng.choice(odd)])
        else:
            piece = bytes(changed[at:end])
            del changed[at:end]
            place = rng.randrange(len(changed) + 1)
            changed[place:place] = piece
    return bytes(changed)
