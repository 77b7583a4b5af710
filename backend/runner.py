"""One forward pass over a mixed batch: decodes and prefill chunks of any number of sequences, in one go."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .model.attention import QUERY_BLOCK_TOKENS, AttentionPlan, DecodeGroup, PrefillChunk
from .model.cache import PagedCache, kv_bytes_per_block
from .model.causal_lm import CausalLM

__all__ = ["ModelRunner", "RunnerRow", "kv_bytes_per_block"]

# Decodes are attended in groups of similar length, each padded to its longest. A further group costs a layer about
# as much as this many padded positions (60 us against 0.08 us each; one Zen 4 core, 3 key/value heads of 64).
_GROUP_COST_TOKENS = 768


@dataclass(frozen=True, slots=True)
class RunnerRow:
    """One sequence in one step.

    token_ids: the tokens to compute (at least one). start_position: how many tokens of this sequence are in the cache
    already. block_table: blocks that cover start_position + len(token_ids) tokens. needs_logits: whether the logits
    after the last token are wanted (not for a prefill chunk that isn't the last).
    """

    token_ids: Sequence[int]
    start_position: int
    block_table: Sequence[int]
    needs_logits: bool

    @property
    def end_position(self) -> int:
        """Tokens of this sequence in the cache after the step."""
        return self.start_position + len(self.token_ids)


class ModelRunner:
    """A model and its paged key/value cache. Not thread-safe: one step at a time."""

    def __init__(self, model: CausalLM, *, num_blocks: int, block_size: int) -> None:
        self.model = model
        self.cache = PagedCache(model.config, num_blocks=num_blocks, block_size=block_size, dtype=model.dtype)

        block = torch.arange(QUERY_BLOCK_TOKENS)
        self._causal_mask = self._mask(block <= block.unsqueeze(1))

    def forward(self, rows: Sequence[RunnerRow]) -> torch.Tensor:
        """Compute the rows' tokens and store their keys and values.

        Returns float32 logits [rows with needs_logits, vocab], in the order of rows. Raises ValueError for a row
        without tokens, or whose block table doesn't cover it.
        """
        for row in rows:
            self._check(row)
        decodes = sorted(
            (i for i, row in enumerate(rows) if len(row.token_ids) == 1), key=lambda i: -rows[i].end_position
        )
        order = decodes + [i for i, row in enumerate(rows) if len(row.token_ids) > 1]
        with torch.inference_mode():
            return self._forward([rows[i] for i in order], order, len(decodes))

    def _forward(self, rows: Sequence[RunnerRow], order: Sequence[int], num_decodes: int) -> torch.Tensor:
        model = self.model
        if not rows:
            return torch.empty((0, model.config.vocab_size))
        ends = itertools.accumulate(len(row.token_ids) for row in rows)
        last_tokens = {i: end - 1 for i, row, end in zip(order, rows, ends, strict=True) if row.needs_logits}
        token_ids = torch.tensor([token for row in rows for token in row.token_ids])
        positions = torch.tensor([p for row in rows for p in range(row.start_position, row.end_position)])
        hidden = model.forward(token_ids, positions, self.cache, self._plan(rows, positions, num_decodes))
        if not last_tokens:
            return torch.empty((0, model.config.vocab_size))
        return model.logits(hidden[torch.tensor([last_tokens[i] for i in sorted(last_tokens)])])

    def _check(self, row: RunnerRow) -> None:
        if not row.token_ids:
            raise ValueError("a row needs at least one token to compute")
        if len(row.block_table) * self.cache.block_size < row.end_position:
            raise ValueError(
                f"{len(row.block_table)} blocks of {self.cache.block_size} tokens don't cover {row.end_position} tokens"
            )

    def _plan(self, rows: Sequence[RunnerRow], positions: torch.Tensor, num_decodes: int) -> AttentionPlan:
        block_size = self.cache.block_size
        blocks = torch.tensor(
            [row.block_table[p // block_size] for row in rows for p in range(row.start_position, row.end_position)]
        )
        chunks = []
        start = num_decodes
        for row in rows[num_decodes:]:
            chunks.append(self._prefill_chunk(row, start))
            start += len(row.token_ids)
        longest = max((row.end_position for row in rows[num_decodes:]), default=0)
        num_scores = self.model.config.num_heads * QUERY_BLOCK_TOKENS * longest
        bounds = _group_bounds([row.end_position for row in rows[:num_decodes]])
        return AttentionPlan(
            write_index=self.cache.write_index(blocks, positions % block_size),
            decode_groups=tuple(self._decode_group(rows[a:b], a, b) for a, b in bounds),
            prefill_chunks=tuple(chunks),
            scratch=torch.empty((2, num_scores), dtype=self.model.dtype),
            causal_mask=self._causal_mask,
        )

    def _decode_group(self, rows: Sequence[RunnerRow], start: int, end: int) -> DecodeGroup:
        """Rows are sorted, the longest first."""
        num_blocks = self._blocks_for(rows[0].end_position)
        tables = torch.zeros((len(rows), num_blocks), dtype=torch.int64)
        for table, row in zip(tables, rows, strict=True):
            used = self._blocks_for(row.end_position)
            table[:used] = torch.tensor(row.block_table[:used])
        lengths = torch.tensor([row.end_position for row in rows]).repeat_interleave(self.cache.num_kv_heads)
        context = torch.arange(num_blocks * self.cache.block_size)
        return DecodeGroup(start, end, self.cache.gather_index(tables), self._mask(context < lengths.view(-1, 1, 1)))

    def _prefill_chunk(self, row: RunnerRow, start: int) -> PrefillChunk:
        table = torch.tensor([row.block_table[: self._blocks_for(row.end_position)]])
        return PrefillChunk(start, start + len(row.token_ids), row.start_position, self.cache.gather_index(table))

    def _mask(self, visible: torch.Tensor) -> torch.Tensor:
        return torch.zeros(visible.shape, dtype=self.model.dtype).masked_fill_(~visible, float("-inf"))

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.cache.block_size)


def _group_bounds(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Cut lengths (descending) into groups, where a cut saves more padding than a further group costs."""
    bounds = []
    start = 0
    for i, length in enumerate(lengths):
        if (lengths[start] - length) * (len(lengths) - i) > _GROUP_COST_TOKENS:
            bounds.append((start, i))
            start = i
    if lengths:
        bounds.append((start, len(lengths)))
    return bounds
