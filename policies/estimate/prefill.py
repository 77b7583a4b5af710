"""How long a replica computes a part of a prompt: a token costs more the more tokens stand before it.

A token attends to all tokens before it, so tokens m to n take `(n − m) · (a + c · (m + n) / 2)`: a token's time is a
line over the middle of the part. It is fitted to parts that a replica computed while it had no other prompt.
"""

import math

from .fit import RobustFit

MIN_TOKENS = 64
"""Shorter parts say more about a call's fixed cost than about the tokens in it."""
TELLING_TOKENS = 512
"""Whole prompts of so many are learned from, whether they could be cut or not."""


class PrefillTiming:
    """One replica's line."""

    __slots__ = ("_fit", "_prior_s")

    def __init__(self, prefill_s_per_token: float) -> None:
        """Seconds a token takes while nothing was seen; above 0."""
        self._prior_s = prefill_s_per_token
        self._fit = RobustFit(prefill_s_per_token, 0.0)

    def add(self, start_tokens: int, end_tokens: int, duration_s: float) -> None:
        """The replica computed these tokens of a prompt in so many seconds."""
        num_tokens = end_tokens - start_tokens
        if num_tokens >= MIN_TOKENS and duration_s > 0.0:
            self._fit.add((num_tokens, num_tokens * (start_tokens + end_tokens) / 2), duration_s)

    def seconds(self, start_tokens: int, end_tokens: int) -> float:
        """How long it computes these tokens."""
        return (end_tokens - start_tokens) * self._at((start_tokens + end_tokens) / 2)

    def end_tokens(self, start_tokens: int, duration_s: float) -> float:
        """How far it comes in so many seconds."""
        first_s, growth = self._at(start_tokens), 2.0 * self._fit.rates[1] * duration_s
        return start_tokens + 2.0 * duration_s / (first_s + math.sqrt(first_s * first_s + growth))

    def _at(self, position: float) -> float:
        """Seconds of one token; never nothing, whatever was measured."""
        base_s, growth_s = self._fit.rates
        return max(base_s + growth_s * position, self._prior_s / 1000.0)


class PrefillTimings:
    """Those of all replicas, and of all together."""

    def __init__(self, prefill_s_per_token: float) -> None:
        """Seconds a token takes while nothing was seen; above 0."""
        self._pooled = PrefillTiming(prefill_s_per_token)
        self._replicas: dict[str, PrefillTiming] = {}

    def of(self, replica_id: str) -> PrefillTiming:
        """That of a replica, or of all while nothing was seen of it."""
        return self._replicas.get(replica_id, self._pooled)

    def add(self, replica_id: str, start_tokens: int, end_tokens: int, duration_s: float) -> None:
        """The replica computed these tokens of a prompt in so many seconds, and no other prompt meanwhile."""
        timing = self._replicas.get(replica_id)
        if timing is None:
            timing = self._replicas[replica_id] = PrefillTiming(self._pooled.seconds(0, 1))
        timing.add(start_tokens, end_tokens, duration_s)
        self._pooled.add(start_tokens, end_tokens, duration_s)

    def typical_s(self, prompt_tokens: int) -> float:
        """How long such a prompt takes on whichever replica."""
        return self._pooled.seconds(0, prompt_tokens)

    def forget(self, replica_id: str) -> None:
        """The replica is gone."""
        self._replicas.pop(replica_id, None)
