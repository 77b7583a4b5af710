"""What a request costs: `a · uncached prompt tokens + b · output tokens`, both in seconds of one replica.

Both are fitted to what calls take. Lanes and order depend on `a / b` alone, what a prompt token weighs against an
output token, and after so many calls the fitted weight takes the place of the configured one. The scale stays that of
the configured `decode_s_per_token`, so that what a second of cost is worth (ageing, quanta) means the same before and
after, and costs of requests that wait stay comparable.
"""

from .timing import CallTiming, ReplicaTiming

_MANY_CALLS, _GAP_S = 128, 0.05
"""After so many calls one is learned from each twentieth of a second: more add nothing to the last hundred, and each
costs as much as all other decisions on a request."""
_MIN_CALLS = 16
"""Fewer, and a replica's figures are those of all."""


class CostModel:
    """Fitted per replica, and for all together: a request's cost is known before its replica is."""

    def __init__(self, *, prefill_s_per_token: float, decode_s_per_token: float, fit_after_calls: int | None) -> None:
        """Seconds a prompt token and an output token take while nothing was seen; both above 0.

        Once `fit_after_calls` were seen, the fitted weight of a prompt token replaces the configured one; None: never.
        """
        self._fit_after_calls = fit_after_calls
        self._prior = (prefill_s_per_token, decode_s_per_token)
        self._pooled = ReplicaTiming(*self._prior)
        self._replicas: dict[str, ReplicaTiming] = {}
        self._learned_s: dict[str, float] = {}  # by replica id, when it was learned from last
        self._scale_s = decode_s_per_token
        self._prompt_weight = prefill_s_per_token / decode_s_per_token

    def learn(self, replica_id: str, timing: CallTiming, now_s: float) -> None:
        """A call to this replica was answered."""
        replica = self._replicas.get(replica_id)
        if replica is not None and replica.num_calls >= _MANY_CALLS and now_s < self._learned_s[replica_id] + _GAP_S:
            return
        self._learned_s[replica_id] = now_s
        if replica is None:
            replica = self._replicas[replica_id] = ReplicaTiming(*self._prior)
        replica.add(timing)
        self._pooled.add(timing)
        if self._fit_after_calls is not None and self._pooled.num_calls >= self._fit_after_calls:
            self._prompt_weight = self._pooled.prefill_s_per_token / self._pooled.decode_s_per_token

    def forget(self, replica_id: str) -> None:
        """The replica is gone."""
        self._replicas.pop(replica_id, None)
        self._learned_s.pop(replica_id, None)

    def timing(self, replica_id: str) -> ReplicaTiming:
        """How fast a replica is: as fitted, or as all are where little was seen of it."""
        replica = self._replicas.get(replica_id)
        return self._pooled if replica is None or replica.num_calls < _MIN_CALLS else replica

    @property
    def prompt_weight(self) -> float:
        """What a prompt token costs, in output tokens."""
        return self._prompt_weight

    def prefill_s(self, replica_id: str, prompt_tokens: int) -> float:
        """Seconds until so many prompt tokens are computed there."""
        return self.timing(replica_id).prefill_s_per_token * prompt_tokens

    def cost_s(self, prompt_tokens: int, output_tokens: int) -> float:
        return self._scale_s * (self._prompt_weight * prompt_tokens + output_tokens)

    def budget_tokens(self, prompt_tokens: int, output_tokens: int) -> float:
        """The weighted token budget: the cost in output tokens, so that a prompt token counts for what it costs."""
        return self._prompt_weight * prompt_tokens + output_tokens
