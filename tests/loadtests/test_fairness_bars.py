"""The workload of the flood bar, and what its figure is of."""

from dataclasses import replace

import numpy as np
import pytest

from loadtests.bars.fairness import DEFAULT, FCFS, flood, others_p99_s
from loadtests.traces import Trace

LENGTHS = Trace("azure", None, np.array([100, 200, 50, 1000]), np.array([20, 10, 40, 5]))


def test_the_others_send_the_very_same_whatever_one_does() -> None:
    """Ten times as much of the first tenant, and not a token's difference of the rest."""
    calm, flooded = (flood(LENGTHS, factor, seed=3) for factor in (1.0, 10.0))
    by_tenant = [
        [sum(request.tenant == f"t{tenant}" for request in requests) for tenant in range(8)]
        for requests in (calm, flooded)
    ]
    assert by_tenant[0][1:] == by_tenant[1][1:]
    assert by_tenant[1][0] == pytest.approx(10 * by_tenant[0][0], rel=0.1)
    others = [
        [replace(request, request_id="") for request in requests if request.tenant != "t0"]
        for requests in (calm, flooded)
    ]
    assert others[0] == others[1]
    assert [request.arrival_s for request in flooded] == sorted(request.arrival_s for request in flooded)


def test_the_figure_is_of_the_others() -> None:
    """In order of arrival they wait behind the flood; when tenants take turns they hardly do."""
    flooded = flood(LENGTHS, 10.0, seed=3)[:4000]
    assert others_p99_s(flooded, FCFS) > 3 * others_p99_s(flooded, DEFAULT)
