"""A token for each sequence that reached its end: together, and one by one where that fails."""

import logging
from collections.abc import Sequence

import torch

from .sampler import SampledToken, Sampler
from .sequence import Sequence as EngineSequence

logger = logging.getLogger(__name__)


class Drawing:
    """The sampler, as sequences use it."""

    def __init__(self, sampler: Sampler, eos_token_ids: frozenset[int]) -> None:
        self._sampler = sampler
        self._eos_token_ids = eos_token_ids

    def draw(self, sequences: Sequence[EngineSequence], logits: torch.Tensor) -> list[SampledToken | None]:
        """A token for each row of logits [sequences, vocab]; None where that failed, which is no other's concern."""
        if not sequences:
            return []
        try:
            return [*self._draw(sequences, logits)]
        except Exception:
            logger.exception("sampling %d sequences together failed: now one by one", len(sequences))
        tokens: list[SampledToken | None] = []
        for position, sequence in enumerate(sequences):
            sequence.rewind_generator()
            try:
                tokens += self._draw([sequence], logits[position : position + 1])
            except Exception:
                logger.exception("sampling request %s failed", sequence.request.request_id)
                tokens.append(None)
        return tokens

    def _draw(self, sequences: Sequence[EngineSequence], logits: torch.Tensor) -> list[SampledToken]:
        for position, sequence in enumerate(sequences):
            if sequence.num_output_tokens < sequence.request.min_tokens:
                ends = self._eos_token_ids | sequence.request.stop_token_ids
                logits[position, list(ends)] = float("-inf")
        return self._sampler.sample(
            logits,
            [sequence.request.sampling for sequence in sequences],
            [sequence.generator for sequence in sequences],
        )
