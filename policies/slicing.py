"""How a long prefill is cut into calls that short requests can pass.

An engine that computes a long prompt gives it the whole of every step, and an engine that caches prefixes lets it be
computed piece by piece: a call with the first n tokens of the prompt leaves their blocks in the cache, and the next one
goes on from there. So a long prompt that nobody waits behind goes whole; when somebody comes, its call is closed (what
was computed stays cached) and it goes on in slices, each of which ends after about the same time.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from .estimate.prefill import PrefillTiming


class Prefill(NamedTuple):
    """A long prompt that is being computed on a replica, or is about to be."""

    prompt_tokens: int
    computed_tokens: int
    """How many of them are in the replica's cache."""
    block_tokens: int
    """How many go into a block of that cache, which keeps whole blocks only."""
    timing: PrefillTiming
    left_s: float | None
    """Until the request's deadline; None: it has none."""
    quiet_s: float
    """How long nobody else has come; 0 while somebody waits for a first token there."""

    @property
    def remaining_s(self) -> float:
        """How long the rest takes at one go."""
        return self.timing.seconds(self.computed_tokens, self.prompt_tokens)


class Slicing(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def patience_s(self) -> float:
        """How long the next slice waits at most for others to get their first token."""
        ...

    def is_long(self, prefill_s: float) -> bool:
        """Whether a prompt that takes so long is worth slicing."""
        ...

    def next_end(self, prefill: Prefill) -> int | None:
        """Up to which token the next call goes; None: the whole request as the client sent it.

        Above `computed_tokens`, inside the prompt, and the end of a block.
        """
        ...

    def may_stop(self, prefill: Prefill) -> bool:
        """Whether to close a call that computes all the rest, now that somebody waits behind it."""
        ...


class WholeCalls:
    """Nothing is cut: every request is one call."""

    name = "whole"
    patience_s = 0.0

    def is_long(self, prefill_s: float) -> bool:
        return False

    def next_end(self, prefill: Prefill) -> int | None:
        return None

    def may_stop(self, prefill: Prefill) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class Slices:
    """Slices of `slice_s` seconds, while others come.

    `min_prefill_s`: prompts that take less go whole. `patience_s`: as in the port. `quiet_s`: when nobody has come for
    so long, the rest goes at one go. All above 0.
    """

    slice_s: float
    min_prefill_s: float
    patience_s: float
    quiet_s: float
    name: str = "slices"

    def is_long(self, prefill_s: float) -> bool:
        return prefill_s >= self.min_prefill_s

    def next_end(self, prefill: Prefill) -> int | None:
        if prefill.quiet_s >= self.quiet_s or self._is_urgent(prefill):
            return None
        computed, block = prefill.computed_tokens, prefill.block_tokens
        end = int(prefill.timing.end_tokens(computed, self.slice_s)) // block * block
        end = max(end, (computed // block + 1) * block)
        return end if end < prefill.prompt_tokens and self._is_worth_a_slice(prefill) else None

    def may_stop(self, prefill: Prefill) -> bool:
        return self._is_worth_a_slice(prefill) and not self._is_urgent(prefill)

    def _is_worth_a_slice(self, prefill: Prefill) -> bool:
        """Whether enough is left: a slice that leaves next to nothing to the final call is a call for nothing."""
        return prefill.remaining_s > 1.25 * self.slice_s

    def _is_urgent(self, prefill: Prefill) -> bool:
        """Whether the deadline leaves no time to let others pass."""
        return prefill.left_s is not None and prefill.left_s < 2.0 * prefill.remaining_s
