"""What requests of a lane are to be served within."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from .registry import PolicyProblem
from .types import Lane, RequestLike


class Objective(NamedTuple):
    """Seconds, above 0: to the first token, for each output token after it, to the end. None: no such objective."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None


NO_OBJECTIVE = Objective()


def due_s(request: RequestLike, objective: Objective) -> float | None:
    """The instant by which its first token is wanted: the caller's own, else its lane's; None: nobody said."""
    if request.first_token_by_s is not None:
        return request.first_token_by_s
    return None if objective.ttft_s is None else request.arrival_s + objective.ttft_s


def problems(objectives: Mapping[Lane, Objective]) -> Iterator[PolicyProblem]:
    """What is wrong with these."""
    for lane, objective in objectives.items():
        for name, value in zip(Objective._fields, objective, strict=True):
            if value is not None and not 0.0 < value < float("inf"):
                yield PolicyProblem(f"objectives.{lane}.{name}", value, "must be a number above 0 or null")
