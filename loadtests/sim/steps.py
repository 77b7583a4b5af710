"""Steps that are alike: how many of them can be one event, and when each ends."""

from collections.abc import Sequence
from dataclasses import dataclass

from .sequence import SimSequence
from .step_time import StepTime

Rows = Sequence[tuple[SimSequence, int]]
"""Who is computed in a step, and how many tokens of each."""


@dataclass(slots=True)
class Run:
    """Steps that all do the same: a token for each of `rows`; a single step may also compute prompts."""

    rows: Rows
    is_decode: bool
    ends_s: list[float]


def num_equal_steps(rows: Rows, *, block_size: int, free_blocks: int) -> int:
    """How many steps of a token for each of `rows` follow each other until one ends, or blocks run out.

    This step's blocks are held already.
    """
    num_steps = min(sequence.target_tokens - sequence.num_tokens for sequence, _ in rows)
    # Tokens that fit in the blocks held, this step's included.
    rooms = [sequence.held_blocks * block_size - sequence.computed_tokens for sequence, _ in rows]

    def new_blocks(steps: int) -> int:
        return sum(-(-(steps - room) // block_size) for room in rooms if steps > room)

    if new_blocks(num_steps) <= free_blocks:
        return num_steps
    low, high = 1, num_steps
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (middle, high) if new_blocks(middle) <= free_blocks else (low, middle)
    return low


def decode_ends_s(time: StepTime, rows: Rows, num_steps: int, now_s: float) -> list[float]:
    """When each of so many steps ends that compute a token for each of `rows`."""
    count = len(rows)
    context = sum(sequence.computed_tokens for sequence, _ in rows)
    ends_s = []
    for step in range(num_steps):
        now_s += time.seconds(count, count, context + step * count, 0.0, 0)
        ends_s.append(now_s)
    return ends_s


def mixed_end_s(time: StepTime, rows: Rows, now_s: float) -> float:
    """When a step ends that computes prompts too."""
    tokens = context = prefill_tokens = 0
    pairs = 0.0
    for sequence, num_tokens in rows:
        tokens += num_tokens
        if num_tokens == 1:
            context += sequence.computed_tokens
        else:
            prefill_tokens += num_tokens
            pairs += num_tokens * (sequence.computed_tokens + num_tokens / 2.0)
    return now_s + time.seconds(tokens, len(rows), context, pairs, prefill_tokens)
