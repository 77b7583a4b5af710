"""Making one workload of traces: jitter, division, scaling of time, superposition by share of the work."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..errors import LoadtestError
from ..workload import Costs
from .trace import Trace


@dataclass(frozen=True, slots=True)
class Mixed:
    """A superposition; `part[i]` is the place of the trace that request i is from."""

    trace: Trace
    part: NDArray[np.int64]


def jittered(trace: Trace, quantum_s: float, rng: np.random.Generator) -> Trace:
    """Arrivals that were rounded down to `quantum_s`, spread evenly over it again, in order.

    Raises `LoadtestError` for a trace without arrivals.
    """
    if trace.arrival_s is None:
        raise LoadtestError("a trace without arrivals has no stamps to be jittered")
    return _at(trace, trace.arrival_s + rng.uniform(0.0, quantum_s, len(trace)))


def divided(trace: Trace, divisor: float) -> Trace:
    """Lengths over `divisor`, at least one token each: a big machine's trace on a small one."""
    if divisor == 1.0:
        return trace
    if trace.block_ids is not None:
        raise LoadtestError("lengths of a trace with prefix blocks can't be divided: the blocks would no longer fit")
    prompts, outputs = (
        np.maximum(1, np.rint(lengths / divisor)).astype(np.int64)
        for lengths in (trace.prompt_tokens, trace.output_tokens)
    )
    return replace(trace, prompt_tokens=prompts, output_tokens=outputs)


def usable(trace: Trace, *, max_tokens: int | None = None) -> Trace:
    """Without what can't be sent: empty prompts, empty answers, and requests of more than `max_tokens` in all."""
    keep = (trace.prompt_tokens > 0) & (trace.output_tokens > 0)
    if max_tokens is not None:
        keep &= trace.prompt_tokens + trace.output_tokens <= max_tokens
    if not keep.any():
        raise LoadtestError("no request of the trace can be sent")
    return taken(trace, np.flatnonzero(keep))


def taken(trace: Trace, places: NDArray[np.int64]) -> Trace:
    """These requests, in this order, arrivals counted from the first."""
    arrival_s = None if trace.arrival_s is None else trace.arrival_s[places]
    return replace(
        trace,
        arrival_s=None if arrival_s is None else arrival_s - arrival_s[0],
        prompt_tokens=trace.prompt_tokens[places],
        output_tokens=trace.output_tokens[places],
        tenant=None if trace.tenant is None else trace.tenant[places],
        block_ids=None if trace.block_ids is None else tuple(trace.block_ids[place] for place in places),
    )


def work_s(trace: Trace, costs: Costs) -> NDArray[np.float64]:
    """Seconds of work of each request."""
    return costs.prompt_token_s * trace.prompt_tokens + costs.output_token_s * trace.output_tokens


def scaled(trace: Trace, costs: Costs, *, work_per_s: float, rng: np.random.Generator) -> Trace:
    """The same requests in the same order, time stretched so that `work_per_s` seconds of work come a second.

    A trace without arrivals gets those of a Poisson process. Raises `LoadtestError` where all come at one instant.
    """
    span_s = float(work_s(trace, costs).sum()) / work_per_s
    if trace.arrival_s is None:
        gaps = rng.exponential(1.0, len(trace) + 1)
        instants = np.cumsum(gaps)
        return replace(trace, arrival_s=(instants[:-1] - instants[0]) * (span_s / instants[-1]))
    own_span_s = float(trace.arrival_s[-1])
    if own_span_s <= 0.0:
        raise LoadtestError("all requests of the trace come at one instant: there is no time to be stretched")
    # The last request's own gap counts, so that a single span isn't loaded more than was asked for.
    return replace(trace, arrival_s=trace.arrival_s * (span_s / (own_span_s * len(trace) / (len(trace) - 1))))


def superposed(
    parts: Sequence[tuple[Trace, float]], costs: Costs, *, num_first: int, rng: np.random.Generator
) -> Mixed:
    """Traces side by side over one span, each with its share of the work; the first gives `num_first` requests.

    A later trace starts over when it runs out. Arrivals keep each trace's own rhythm; one without arrivals comes as a
    Poisson process. Raises `LoadtestError` unless the shares are positive and sum to 1.
    """
    shares = [share for _, share in parts]
    if any(share <= 0.0 for share in shares) or abs(sum(shares) - 1.0) > 1e-6:
        raise LoadtestError(f"shares of the work must be positive and sum to 1, not {', '.join(map(str, shares))}")
    first = _first_requests(parts[0][0], num_first)
    first_work_s = float(work_s(first, costs).sum())
    chosen = [first]
    for trace, share in parts[1:]:
        wanted_s = first_work_s * share / shares[0]
        each_s = work_s(trace, costs)
        whole, rest_s = divmod(wanted_s, float(each_s.sum()))
        num_rest = int(np.searchsorted(np.cumsum(each_s), rest_s))
        chosen.append(_first_requests(trace, max(1, int(whole) * len(trace) + num_rest)))
    # Each over a span of the same length: a second a second of all work together.
    spread = [scaled(trace, costs, work_per_s=share, rng=rng) for trace, share in zip(chosen, shares, strict=True)]
    arrivals = np.concatenate([trace.arrival_s for trace in spread if trace.arrival_s is not None])
    order = np.argsort(arrivals, kind="stable")
    part = np.concatenate([np.full(len(trace), place) for place, trace in enumerate(spread)])[order]
    blocks = None
    if any(trace.block_ids is not None for trace in spread):
        blocks = [ids for trace in spread for ids in (trace.block_ids or ((),) * len(trace))]
    tenants = np.concatenate(
        [np.zeros(len(trace), dtype=np.int64) if trace.tenant is None else trace.tenant for trace in spread]
    )
    mixed = Trace(
        format="+".join(trace.format for trace in spread),
        arrival_s=arrivals[order] - arrivals[order][0],
        prompt_tokens=np.concatenate([trace.prompt_tokens for trace in spread])[order],
        output_tokens=np.concatenate([trace.output_tokens for trace in spread])[order],
        tenant=tenants[order],
        block_ids=None if blocks is None else tuple(blocks[place] for place in order),
        block_tokens=next((trace.block_tokens for trace in spread if trace.block_tokens is not None), None),
    )
    return Mixed(mixed, part)


def _first_requests(trace: Trace, count: int) -> Trace:
    """The first `count`, starting over as often as needed, a mean gap after the last."""
    if count <= len(trace):
        return taken(trace, np.arange(count))
    places = np.arange(count) % len(trace)
    many = replace(taken(trace, places), arrival_s=None)
    if trace.arrival_s is None:
        return many
    period_s = float(trace.arrival_s[-1]) * len(trace) / max(1, len(trace) - 1)
    return replace(many, arrival_s=trace.arrival_s[places] + period_s * (np.arange(count) // len(trace)))


def _at(trace: Trace, arrival_s: NDArray[np.float64]) -> Trace:
    order = np.argsort(arrival_s, kind="stable")
    return replace(taken(trace, order), arrival_s=arrival_s[order] - arrival_s[order][0])
