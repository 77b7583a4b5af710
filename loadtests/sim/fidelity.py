"""How near the simulator comes to requests that were measured and not fitted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .fit import as_requests, pass_through
from .measured import MeasuredRequest
from .model import ReplicaModel
from .simulation import Setup, simulate

LEVELS = (50, 90, 95, 99)


@dataclass(frozen=True, slots=True)
class Fidelity:
    """Simulated over measured, minus 1, by percentile: of time to first token and of time per output token."""

    ttft: Mapping[int, float]
    tpot: Mapping[int, float]

    @property
    def worst_ttft_ratio(self) -> float:
        """The largest deviation of any percentile."""
        return max(map(abs, self.ttft.values()))

    @property
    def worst_tpot_ratio(self) -> float:
        return max(map(abs, self.tpot.values()))


def fidelity(measured: Sequence[MeasuredRequest], model: ReplicaModel, *, first: int) -> Fidelity:
    """Simulates all requests and judges those from `first` on."""
    outcomes = simulate(as_requests(measured), pass_through, Setup(model)).outcomes[first:]
    seen = measured[first:]
    ttft = [outcome.token_s[0] - outcome.request.arrival_s for outcome in outcomes]
    tpot = [
        (outcome.token_s[-1] - outcome.token_s[0]) / (len(outcome.token_s) - 1)
        for outcome in outcomes
        if len(outcome.token_s) > 1
    ]
    return Fidelity(
        ttft=_deviations(ttft, [request.ttft_s for request in seen]),
        tpot=_deviations(tpot, [request.tpot_s for request in seen if request.tpot_s is not None]),
    )


def _deviations(simulated: Sequence[float], measured: Sequence[float]) -> dict[int, float]:
    return {level: float(np.percentile(simulated, level) / np.percentile(measured, level)) - 1.0 for level in LEVELS}
