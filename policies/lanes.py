"""Which lane a request is in: a bucket of its weighted token budget, or the one its caller declared."""

from typing import Final, NamedTuple

from .estimate.window import RecentQuantiles
from .types import Lane, RequestLike

# For every request: see `policies.types`.
_INTERACTIVE: Final = Lane.INTERACTIVE


class LaneDecision(NamedTuple):
    lane: Lane
    why: str


class BudgetLanes:
    """Cuts at the 60th and 90th percentile of recent budgets, or at fixed ones.

    A declared lane is believed, with two limits on `interactive`, the one that others pay for: a budget far over the
    lane's cut is moved down to the lane of its size, and so is what exceeds the declared requests' share of the work.
    """

    def __init__(
        self,
        *,
        interactive_max_tokens: float | None,
        standard_max_tokens: float | None,
        overlong_prompt_tokens: int | None,
        declared_max_share: float,
        declared_max_factor: float,
        window: int,
        min_samples: int,
        prior_interactive_tokens: float,
        prior_standard_tokens: float,
    ) -> None:
        """Budgets in weighted tokens.

        Fixed cuts (`…_max_tokens`) replace the learned ones; the priors stand in until `min_samples` were seen.
        `declared_max_share`: of recent work, 0..1. `declared_max_factor`: how many times the standard cut a request
        declared interactive may cost.
        """
        self._fixed = (interactive_max_tokens, standard_max_tokens)
        self._prior = (prior_interactive_tokens, prior_standard_tokens)
        self._overlong_prompt_tokens = overlong_prompt_tokens
        self._declared_max_share = declared_max_share
        self._declared_max_factor = declared_max_factor
        self._min_samples = min_samples
        self._budgets = RecentQuantiles(window)
        # Exponentially weighted work, all and declared interactive; the decay makes `window` requests its horizon.
        self._decay = 1.0 - 1.0 / window
        self._all_work = 0.0
        self._declared_work = 0.0

    def cuts(self) -> tuple[float, float]:
        """(largest interactive budget, largest standard budget), in weighted tokens."""
        if len(self._budgets) >= self._min_samples:
            learned = (self._budgets.quantile(0.6), self._budgets.quantile(0.9))
        else:
            learned = self._prior
        interactive = learned[0] if self._fixed[0] is None else self._fixed[0]
        standard = learned[1] if self._fixed[1] is None else self._fixed[1]
        return interactive, standard if standard > interactive else interactive

    def classify(self, request: RequestLike, budget_tokens: float) -> LaneDecision:
        by_size = self._by_size(request, budget_tokens)
        declared = request.declared_lane
        if declared is None:
            return by_size
        if declared is not _INTERACTIVE or by_size.lane is _INTERACTIVE:
            return LaneDecision(declared, "declared")
        limit = self._declared_max_factor * self.cuts()[1]
        if by_size.lane is Lane.OVERLONG or budget_tokens > limit:
            return LaneDecision(
                by_size.lane, f"declared interactive, but its budget of {budget_tokens:.0f} is over {limit:.0f}"
            )
        if self._declared_work + budget_tokens > self._declared_max_share * (self._all_work + budget_tokens):
            return LaneDecision(
                by_size.lane, f"declared interactive, but over the share of {self._declared_max_share:.0%} of the work"
            )
        return LaneDecision(declared, "declared")

    def observe(self, decision: LaneDecision, request: RequestLike, budget_tokens: float) -> None:
        """Called once for each request that joins the queue; moves the learned cuts and the shares."""
        self._budgets.add(budget_tokens)
        self._all_work = self._all_work * self._decay + budget_tokens
        declared = request.declared_lane is _INTERACTIVE and decision.lane is _INTERACTIVE
        self._declared_work = self._declared_work * self._decay + (budget_tokens if declared else 0.0)

    def _by_size(self, request: RequestLike, budget_tokens: float) -> LaneDecision:
        if self._overlong_prompt_tokens is not None and request.prompt_tokens > self._overlong_prompt_tokens:
            return LaneDecision(Lane.OVERLONG, f"prompt over {self._overlong_prompt_tokens} tokens")
        interactive, standard = self.cuts()
        if budget_tokens <= interactive:
            return LaneDecision(_INTERACTIVE, f"budget {round(budget_tokens)} of at most {round(interactive)}")
        if budget_tokens <= standard:
            return LaneDecision(Lane.STANDARD, f"budget {round(budget_tokens)} of at most {round(standard)}")
        return LaneDecision(Lane.LONG, f"budget {round(budget_tokens)} over {round(standard)}")
