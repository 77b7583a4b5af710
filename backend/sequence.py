"""A request inside the engine, and the sequences (one a choice) it becomes."""

from collections.abc import Sequence as ReadOnlySequence
from dataclasses import dataclass, field
from enum import Enum

import torch

from .kv_cache import BlockManager, block_hash, root_hash
from .sampler import SamplingParams


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """What to generate. Immutable; checked by the API before it gets here."""

    request_id: str
    prompt_token_ids: ReadOnlySequence[int]
    max_tokens: int
    arrival_s: float
    sampling: SamplingParams = field(default_factory=SamplingParams)
    num_choices: int = 1
    first_choice: int = 0
    """Index of its first choice in the answer: requests of several prompts share one answer."""
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    min_tokens: int = 0
    skip_special_tokens: bool = True
    priority: int = 0
    """Higher goes first."""
    cache_salt: str | None = None


class SequenceState(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class Sequence:
    """One choice of a request: its tokens and what of them the KV cache holds. Implements `SequenceLike`.

    Owned by the engine thread.
    """

    def __init__(self, sequence_id: int, request: GenerationRequest, choice: int, blocks: BlockManager) -> None:
        self.sequence_id = sequence_id
        self.request = request
        self.choice = choice
        self.token_ids = list(request.prompt_token_ids)
        self.prompt_tokens = len(self.token_ids)
        self.computed_tokens = 0
        self.block_table: list[int] = []
        self.state = SequenceState.WAITING
        self.scheduled_s: float | None = None
        self.first_token_s: float | None = None
        self.last_token_s: float | None = None
        self.cached_prompt_tokens = 0
        self.generator = _generator(request.sampling.seed, choice)
        self._blocks = blocks
        self._hashes: list[bytes] = []
        self._root = root_hash(salt=request.cache_salt)
        self._num_registered = 0

    @property
    def arrival_s(self) -> float:
        return self.request.arrival_s

    @property
    def priority(self) -> int:
        return self.request.priority

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.prompt_tokens

    @property
    def held_blocks(self) -> int:
        return len(self.block_table)

    @property
    def exclusive_blocks(self) -> int:
        return self._blocks.count_exclusive(self.block_table)

    @property
    def cached_tokens(self) -> int:
        return len(self.cached_blocks()) * self._blocks.block_size

    @property
    def cached_idle_blocks(self) -> int:
        return self._blocks.count_idle(self.cached_blocks())

    def rewind_generator(self) -> None:
        """To before the draw of the next token: each token takes one number."""
        self.generator = _generator(self.request.sampling.seed, self.choice)
        if self.generator is not None:
            for _ in range(self.num_output_tokens):
                torch.rand((), dtype=torch.float64, generator=self.generator)

    def cached_blocks(self) -> list[int]:
        """While waiting, the blocks the prefix cache would supply; none once running.

        The last token is never among them: its logits have to be computed.
        """
        if self.state is not SequenceState.WAITING or not self._blocks.enable_prefix_caching:
            return []
        return self._blocks.match(self._chain((self.num_tokens - 1) // self._blocks.block_size))

    def start(self) -> None:
        """Waiting → running: hold the cached prefix."""
        blocks = self.cached_blocks()
        self._blocks.take(blocks)
        self.block_table.extend(blocks)
        self.computed_tokens = len(blocks) * self._blocks.block_size
        self._num_registered = len(blocks)
        self.state = SequenceState.RUNNING

    def reserve(self, num_tokens: int) -> None:
        """Hold the blocks for the next `num_tokens` tokens."""
        end = self.computed_tokens + num_tokens
        self.block_table.extend(self._blocks.allocate(-(-end // self._blocks.block_size) - len(self.block_table)))

    def computed(self, num_tokens: int) -> None:
        """The next `num_tokens` tokens are in the cache now; full blocks become available to others."""
        self.computed_tokens += num_tokens
        num_full = self.computed_tokens // self._blocks.block_size
        if self._blocks.enable_prefix_caching and num_full > self._num_registered:
            chain = self._chain(num_full)
            for position in range(self._num_registered, num_full):
                self._blocks.register(self.block_table[position], chain[position])
            self._num_registered = num_full

    def stop(self, state: SequenceState) -> None:
        """Give back all blocks: to wait for a recomputation, or finished."""
        self._blocks.release(self.block_table)
        self.block_table = []
        self.computed_tokens = 0
        self._num_registered = 0
        self.state = state

    def _chain(self, num_blocks: int) -> ReadOnlySequence[bytes]:
        """Hashes of its first `num_blocks` full blocks."""
        size = self._blocks.block_size
        while len(self._hashes) < num_blocks:
            start = len(self._hashes) * size
            parent = self._hashes[-1] if self._hashes else self._root
            self._hashes.append(block_hash(parent, self.token_ids[start : start + size]))
        return self._hashes[:num_blocks]


def _generator(seed: int | None, choice: int) -> torch.Generator | None:
    """Choices of one request must differ, and be the same in every run."""
    if seed is None:
        return None
    generator = torch.Generator()
    generator.manual_seed((seed + choice) % (1 << 63))
    return generator
