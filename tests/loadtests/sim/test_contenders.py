"""Contenders by name."""

import pytest

from loadtests.errors import LoadtestError
from loadtests.sim.contenders import contender
from loadtests.sim.model import ReplicaModel
from loadtests.workload import Costs
from policies.batching import Chunked, PrefillFirst, SkipJoinMlfq

from .worlds import SPEED

COSTS = Costs(0.001, 0.02)
MODEL = ReplicaModel(SPEED, num_blocks=1000)


@pytest.mark.parametrize(
    ("name", "composer"),
    [
        ("direct:prefill-first", PrefillFirst),
        ("default:sj-mlfq+priority", SkipJoinMlfq),
        ("fcfs:aged-sjf", Chunked),
    ],
)
def test_a_name_says_what_the_engines_do(name: str, composer: type) -> None:
    """After a colon, composer, order or both; what the name doesn't say is usual."""
    made = contender(name, COSTS, MODEL)
    assert made.name == name
    assert made.make_composer is not None
    assert isinstance(made.make_composer(), composer)
    assert made.is_direct == name.startswith("direct")
    assert contender(name.partition(":")[0], COSTS, MODEL).make_composer is None


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("direct:nonsense", "order: 'nonsense' isn't allowed; allowed: aged-sjf"),
        ("direct:chunked+sj-mlfq", "sj-mlfq and chunked are both the engines' composer"),
        ("ps:chunked", "ps has engines of its own"),
        ("nonsense:chunked", "'nonsense' is none of default"),
    ],
)
def test_a_bad_name_is_refused(name: str, message: str) -> None:
    """With what it is, and what would do."""
    with pytest.raises(LoadtestError, match=message):
        contender(name, COSTS, MODEL)
