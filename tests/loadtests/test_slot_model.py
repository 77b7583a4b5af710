"""The slot model against what is known of it by hand."""

import numpy as np
import pytest

from loadtests.slot_model import DECODE_S, NUM_SLOTS, SlotRequest, serve, workload
from loadtests.traces import Trace
from policies.config import PolicySpec

FCFS = PolicySpec(ordering="fcfs", lanes="single")
SJF = PolicySpec(ordering="aged-sjf", lanes="single", options={"wait": {"max_wait_s": 1e9}})


def trace(arrival_s: list[float] | None, output_tokens: list[int]) -> Trace:
    return Trace(
        "azure",
        None if arrival_s is None else np.array(arrival_s),
        np.zeros(len(output_tokens), dtype=np.int64),
        np.array(output_tokens),
    )


def test_a_workload_has_the_stated_utilisation() -> None:
    """Arrivals are stretched, their pattern kept; lengths stay as they are."""
    requests = workload(trace([0.0, 1.0, 4.0], [40, 80, 120]), 0.5)
    assert [request.arrival_s for request in requests] == pytest.approx([0.0, 0.09375, 0.375])
    assert sum(request.output_tokens for request in requests) * DECODE_S == pytest.approx(0.5 * NUM_SLOTS * 0.375)
    assert [request.predicted_output_tokens for request in requests] == [40, 80, 120]


def test_noise_is_seeded() -> None:
    """The same seed tells the same wrong lengths, another one others."""
    told = [
        [
            request.predicted_output_tokens
            for request in workload(trace([0, 1], [500, 900]), 0.5, noise_sigma=0.8, seed=s)
        ]
        for s in (1, 1, 2)
    ]
    assert told[0] == told[1] != told[2]


def test_a_trace_without_arrivals_is_refused() -> None:
    """There is nothing to stretch."""
    with pytest.raises(ValueError, match="no arrivals"):
        workload(trace(None, [1]), 0.5)


def test_nobody_waits_while_a_slot_is_free_and_the_next_waits_for_the_first_end() -> None:
    """One more than there are slots waits for as long as the shortest takes."""
    requests = [SlotRequest(f"q{index}", 0.0, 0, 40 + index, 40) for index in range(NUM_SLOTS + 1)]
    served = serve(requests, FCFS)
    assert served.wait_s[:-1].max() == 0.0
    assert served.wait_s[-1] == pytest.approx(1.0)
    assert served.response_s[-1] == pytest.approx(1.0 + 72 * DECODE_S)


def test_the_order_is_the_policys() -> None:
    """Of those that wait, the one predicted short goes first where the policy says so."""
    busy = [SlotRequest(f"busy{index}", 0.0, 0, 400, 400) for index in range(NUM_SLOTS)]
    waiting = [SlotRequest("long", 1.0, 0, 800, 800), SlotRequest("short", 2.0, 0, 4, 4)]
    first, second = (serve([*busy, *waiting], spec).wait_s[-2:] for spec in (FCFS, SJF))
    assert first == pytest.approx([9.0, 8.0])
    assert second == pytest.approx([9.0, 8.0])  # as many slots are free at once as wait
    crowded = [*busy, *(SlotRequest(f"long{index}", 1.0, 0, 800, 800) for index in range(NUM_SLOTS)), waiting[1]]
    first, second = (serve(crowded, spec).wait_s[-1:] for spec in (FCFS, SJF))
    assert (first[0], second[0]) == (pytest.approx(28.0), pytest.approx(8.0))


def test_a_request_that_is_turned_away_is_an_error() -> None:
    """A figure over what was served only would hide it."""
    spec = PolicySpec(options={"queue": {"max_requests": 0}})
    with pytest.raises(RuntimeError, match="q32 was turned away"):
        serve([SlotRequest(f"q{index}", 0.0, 0, 40, 40) for index in range(NUM_SLOTS + 1)], spec)
