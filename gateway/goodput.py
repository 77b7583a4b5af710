"""Whether a request was served as its lane's objectives, and its caller's deadline, want it."""

from policies.objectives import Objective

from .attribution import Record

MET = "met"
NOT_SERVED = "not-served"
_SERVED = "ok"
_UNDECIDED = ("bad-request",)
"""Nobody could have served it."""
_LEFT = "client-left"


def result(record: Record, objective: Objective) -> str | None:
    """`met`, or the first that was missed: `not-served` (shed, evicted, failed), `ttft`, `tpot`, `e2e`.

    None where it can't be said: it was no request that could be served, or its client left before it was late. A
    deadline of the caller's own stands in for the lane's time to first token; an answer that isn't a stream has none.
    """
    outcome = record.outcome
    if outcome in _UNDECIDED:
        return None
    if outcome not in (_SERVED, _LEFT):
        return NOT_SERVED
    ttft_s, has_left = record.ttft_s, outcome == _LEFT
    if ttft_s is None and has_left:
        ttft_s = record.total_s
    wanted_s = objective.ttft_s
    if record.first_token_by_s is not None:
        wanted_s = record.first_token_by_s - record.arrival_s
    for name, took_s, within_s in (
        ("ttft", ttft_s, wanted_s),
        ("tpot", record.tpot_s, objective.tpot_s),
        ("e2e", record.total_s, objective.e2e_s),
    ):
        if took_s is not None and within_s is not None and took_s > within_s:
            return name
    return None if has_left else MET
