"""Seeded mixes: which requests a run sends, and when. Same scenario, costs and seed: the same plan, bit by bit."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .scenario import Arrivals, LaneSpec, Scenario


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of the machine that one prompt token and one output token take, measured at a typical batch."""

    prompt_token_s: float
    output_token_s: float

    def work_s(self, prompt_tokens: float, output_tokens: float) -> float:
        """Seconds of work in a request of these lengths."""
        return self.prompt_token_s * prompt_tokens + self.output_token_s * output_tokens


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One request of a plan; `arrival_s` counts from the plan's start."""

    index: int
    lane: str
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    shared_prefix_tokens: int = 0
    declare_lane: str | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """Requests by arrival. `duration_s` is the span they are spread over, `work_s` their summed work."""

    requests: tuple[PlannedRequest, ...]
    duration_s: float
    work_s: float

    def lane(self, name: str) -> tuple[PlannedRequest, ...]:
        """The requests of one lane."""
        return tuple(request for request in self.requests if request.lane == name)


def rng_for(*parts: object) -> np.random.Generator:
    """A generator that depends on nothing but the parts (PCG64, seeded through BLAKE2b)."""
    text = "/".join(str(part) for part in parts)
    return np.random.Generator(np.random.PCG64(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest())))


def make_plan(
    scenario: Scenario,
    costs: Costs,
    *,
    capacity_work_per_s: float,
    seed: int,
    load: float | None = None,
    num_first_lane: int | None = None,
) -> Plan:
    """An open-loop plan at `load` times the capacity (work seconds a second), work shares as the scenario says.

    The first lane gets `num_first_lane` requests; each other lane as many as its share of the work asks for (at least
    one); the span follows from the total.
    """
    load = scenario.load if load is None else load
    count = scenario.num_first_lane if num_first_lane is None else num_first_lane
    first = scenario.lanes[0]
    lengths: dict[str, tuple[NDArray[np.int64], NDArray[np.int64]]] = {}
    lengths[first.name] = sample_lengths(first, count, rng_for(seed, first.name, "lengths"))
    first_work_s = _work_s(costs, lengths[first.name])
    for lane in scenario.lanes[1:]:
        wanted_s = first_work_s * lane.work_share / first.work_share
        lengths[lane.name] = _lengths_worth(lane, costs, wanted_s, rng_for(seed, lane.name, "lengths"))
    total_s = sum(_work_s(costs, pair) for pair in lengths.values())
    duration_s = total_s / (load * capacity_work_per_s)
    drafts: list[tuple[float, LaneSpec, int, int]] = []
    for lane in scenario.lanes:
        prompts, outputs = lengths[lane.name]
        instants = draw_arrivals(lane.arrivals, len(prompts), duration_s, rng_for(seed, lane.name, "arrivals"))
        drafts += [
            (float(at), lane, int(prompt), int(output))
            for at, prompt, output in zip(instants, prompts, outputs, strict=True)
        ]
    drafts.sort(key=lambda draft: draft[0])
    requests = tuple(
        _request(index, lane, at, prompt, output) for index, (at, lane, prompt, output) in enumerate(drafts)
    )
    return Plan(requests, duration_s, total_s)


def stream_of_mix(scenario: Scenario, costs: Costs, seed: int) -> Iterator[PlannedRequest]:
    """Endless requests of the mix without arrivals, work shares kept at every moment: for closed-loop runs.

    The lane that is furthest behind its share of the work goes next.
    """
    rngs = {lane.name: rng_for(seed, lane.name, "stream") for lane in scenario.lanes}
    done_s = {lane.name: 0.0 for lane in scenario.lanes}
    index = 0
    while True:
        lane = min(scenario.lanes, key=lambda lane: done_s[lane.name] / lane.work_share)
        prompts, outputs = sample_lengths(lane, 1, rngs[lane.name])
        request = _request(index, lane, 0.0, int(prompts[0]), int(outputs[0]))
        done_s[lane.name] += costs.work_s(request.prompt_tokens, request.output_tokens)
        index += 1
        yield request


def sample_lengths(lane: LaneSpec, count: int, rng: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Prompt and output tokens [count] of a lane: drawn, divided, held inside the lane's bounds."""
    prompts, outputs = lane.lengths.sample(count, rng)
    scaled = (np.rint(prompts / lane.divisor).astype(np.int64), np.rint(outputs / lane.divisor).astype(np.int64))
    return np.clip(scaled[0], *lane.prompt_bounds_tokens), np.clip(scaled[1], *lane.output_bounds_tokens)


def draw_arrivals(arrivals: Arrivals, count: int, duration_s: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """`count` sorted instants in (0, duration_s), scaled so that one more gap would end the span."""
    if arrivals.mean_burst is None:
        shape = 1.0 / arrivals.cv**2
        gaps = rng.gamma(shape, 1.0 / shape, count + 1)
    else:
        num_bursts = max(1, round(count / arrivals.mean_burst))
        is_start = np.zeros(count, dtype=bool)
        is_start[0] = True
        is_start[rng.choice(np.arange(1, count), size=min(num_bursts, count) - 1, replace=False)] = True
        on_gap = arrivals.on_share / count
        off_gap = (1.0 - arrivals.on_share) / num_bursts + on_gap
        gaps = np.append(rng.exponential(np.where(is_start, off_gap, on_gap)), rng.exponential(off_gap))
    instants = np.cumsum(gaps)
    return np.asarray(instants[:-1] * (duration_s / instants[-1]), dtype=np.float64)


def _lengths_worth(
    lane: LaneSpec, costs: Costs, wanted_s: float, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """As many requests as come nearest to `wanted_s` of work, at least one."""
    prompts: list[int] = []
    outputs: list[int] = []
    have_s = 0.0
    while True:
        prompt, output = (int(values[0]) for values in sample_lengths(lane, 1, rng))
        work_s = costs.work_s(prompt, output)
        if prompts and have_s + work_s / 2.0 > wanted_s:
            return np.asarray(prompts, dtype=np.int64), np.asarray(outputs, dtype=np.int64)
        prompts.append(prompt)
        outputs.append(output)
        have_s += work_s


def _work_s(costs: Costs, lengths: tuple[NDArray[np.int64], NDArray[np.int64]]) -> float:
    return costs.work_s(float(lengths[0].sum()), float(lengths[1].sum()))


def _request(index: int, lane: LaneSpec, arrival_s: float, prompt: int, output: int) -> PlannedRequest:
    return PlannedRequest(
        index=index,
        lane=lane.name,
        arrival_s=arrival_s,
        prompt_tokens=prompt,
        output_tokens=output,
        shared_prefix_tokens=min(lane.shared_prefix_tokens, prompt),
        declare_lane=lane.declare_lane,
    )
