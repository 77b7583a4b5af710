"""Arithmetic of KV blocks that composers and the plan rules share."""

from ..types import SequenceLike


def blocks_for(num_tokens: int, block_size: int) -> int:
    """Blocks that hold `num_tokens` tokens."""
    return -(-num_tokens // block_size)


def growth_blocks(sequence: SequenceLike, num_tokens: int, block_size: int) -> int:
    """New blocks that a running sequence takes to compute `num_tokens` more."""
    return max(0, blocks_for(sequence.computed_tokens + num_tokens, block_size) - sequence.held_blocks)


def outstanding_blocks(sequence: SequenceLike, block_size: int) -> int:
    """New blocks that a running sequence still takes for the tokens it has."""
    return max(0, blocks_for(sequence.num_tokens, block_size) - sequence.held_blocks)


def admission_blocks(sequence: SequenceLike, num_tokens: int, block_size: int, *, preempting: bool) -> int:
    """Free blocks that a waiting sequence takes to start with `num_tokens` tokens past its cached prefix.

    Cached blocks that another sequence holds cost nothing. While the same step preempts, that holder may be the one
    that leaves, so all cached blocks are charged.
    """
    cached_blocks = sequence.cached_tokens // block_size
    charged = cached_blocks if preempting else sequence.cached_idle_blocks
    return blocks_for(sequence.cached_tokens + num_tokens, block_size) - cached_blocks + charged
