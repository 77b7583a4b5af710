"""The simulator: many steps in one event are exactly those steps, nothing is lost, times are what the model says."""

import random
from dataclasses import replace

import pytest

from loadtests.errors import LoadtestError
from loadtests.sim.gateway import RequestOutcome
from loadtests.sim.model import ReplicaModel
from loadtests.sim.request import SimRequest
from loadtests.sim.simulation import Outage, Result, Setup, simulate
from loadtests.sim.step_time import StepTime
from policies.batching import COMPOSERS, Chunked, StepSpec, fcfs
from policies.types import Call, Effect, StepPlan, StepRow

from .worlds import SPEED, pass_through, policy, requests, setup

ALONE = ReplicaModel(SPEED, num_blocks=1000)


def _run(rng_seed: str, *, is_stepwise: bool, tight: bool, composer: str) -> tuple[Result, list[object]]:
    rng = random.Random(rng_seed)
    log: list[object] = []

    def note(gateway: int, now_s: float, effect: Effect) -> None:
        what = (effect.request.request_id, effect.replica_id) if isinstance(effect, Call) else effect
        log.append((gateway, now_s, what))

    world = setup(rng, is_stepwise=is_stepwise, tight=tight)
    world = replace(world, step=StepSpec(composer, world.step.order))
    mix = requests(rng, 60, rate_per_s=rng.choice([4.0, 40.0]))
    name = rng.choice(["fcfs", "aged-sjf"])
    return simulate(mix, lambda: policy(ordering=name), world, on_effect=note), log


@pytest.mark.parametrize("tight", [False, True], ids=["roomy", "tight"])
@pytest.mark.parametrize("composer", COMPOSERS.names())
def test_many_steps_in_one_event_are_exactly_those_steps(composer: str, tight: bool) -> None:
    """Bit by bit: every token's instant, every decision, every preemption, in random worlds with outages, shared
    prefixes, several gateways and replicas, against the same worlds simulated one step at a time."""
    num_preempted = num_failed_calls = 0
    for number in range(25):
        seed = f"{composer}/{tight}/{number}"
        print(seed)
        fast, fast_log = _run(seed, is_stepwise=False, tight=tight, composer=composer)
        slow, slow_log = _run(seed, is_stepwise=True, tight=tight, composer=composer)
        assert fast_log == slow_log
        assert fast.outcomes == slow.outcomes
        assert (fast.num_steps, fast.num_preempted, fast.num_evicted_chunks, fast.num_policy_errors) == (
            slow.num_steps,
            slow.num_preempted,
            slow.num_evicted_chunks,
            slow.num_policy_errors,
        )
        assert fast.busy_s == pytest.approx(slow.busy_s)
        assert fast.num_policy_errors == 0
        num_preempted += fast.num_preempted
        num_failed_calls += sum(outcome.num_calls > 1 for outcome in fast.outcomes)
    assert num_failed_calls > 0
    assert (num_preempted > 0) == (tight or composer == "sj-mlfq")  # which preempts for turns, too


def test_the_same_arguments_give_the_same_result() -> None:
    """Nothing is random, and nothing depends on hashes or on time."""
    first, again = (_run("again", is_stepwise=False, tight=True, composer="chunked") for _ in range(2))
    assert first == again


def test_every_request_ends_once_with_all_its_tokens() -> None:
    """Whatever happens on the way; one that no replica answered in three calls says so."""
    rng = random.Random(7)
    mix = requests(rng, 80, rate_per_s=20.0)
    world = Setup(ALONE, num_replicas=2, outages=(Outage(0, 0.5, 1.5), Outage(1, 2.0, 2.5)))
    ended: list[RequestOutcome] = []
    result = simulate(mix, policy, world, on_end=ended.append)
    assert sorted(outcome.request.index for outcome in ended) == list(range(80))
    for outcome in result.outcomes:
        if outcome.error is None:
            assert len(outcome.token_s) == outcome.request.output_tokens
            assert outcome.token_s == sorted(outcome.token_s)
    answers = result.answers()
    assert [answer.received_tokens for answer in answers if answer.is_ok] == [
        outcome.request.output_tokens for outcome in result.outcomes if outcome.error is None
    ]
    assert any(outcome.num_calls > 1 for outcome in result.outcomes)


@pytest.mark.parametrize("network_s", [0.0, 0.003])
def test_an_engine_that_fails_amid_its_steps_has_told_of_those_before(network_s: float) -> None:
    """At every instant of an answer, on and between the ends of steps: the same decisions as one step at a time."""
    engine = ReplicaModel(StepTime(0.25, 0.0), num_blocks=100)
    mix = [SimRequest(index, f"q{index}", 0.0, 20, 60) for index in range(2)]
    for eighth in range(1, 130):
        at_s = eighth * 0.125
        world = Setup(engine, num_replicas=2, network_s=network_s, outages=(Outage(0, at_s, at_s + 1.0),))
        fast, slow = (simulate(mix, policy, replace(world, is_stepwise=one)) for one in (False, True))
        assert fast.outcomes == slow.outcomes
        assert fast.num_steps == slow.num_steps
        assert fast.busy_s == pytest.approx(slow.busy_s)


def test_a_request_alone_takes_what_the_model_says() -> None:
    """Two chunks of a prompt, then a step a token; the network is passed twice before the first one."""
    engine = ReplicaModel(StepTime(0.01, 1e-3, 2e-3, 1e-5, 1e-6, 5e-4), num_blocks=100, max_num_batched_tokens=64)
    result = simulate([SimRequest(0, "q", 1.0, 100, 3)], pass_through, Setup(engine, network_s=0.5))
    chunks_s = [0.01 + 64e-3 + 2e-3 + 64 * 32e-6 + 64 * 5e-4, 0.01 + 36e-3 + 2e-3 + 36 * 82e-6 + 36 * 5e-4]
    decodes_s = [0.01 + 1e-3 + 2e-3 + 1e-5 * context for context in (100, 101)]
    first_s = 2.0 + sum(chunks_s)
    assert result.outcomes[0].token_s == pytest.approx([first_s, first_s + decodes_s[0], first_s + sum(decodes_s)])
    assert result.outcomes[0].scheduled_s == 1.5
    assert result.answers()[0].ttft_s == pytest.approx(first_s - 1.0)


def test_a_prefix_that_is_cached_is_not_computed_again() -> None:
    """Whole chunks only; and never the last token of a prompt."""
    mix = [SimRequest(index, f"q{index}", 10.0 * index, 1024, 2, chunk_ids=(1, 2)) for index in range(3)]
    mix.append(SimRequest(3, "q3", 30.0, 1100, 2, chunk_ids=(1, 2)))
    result = simulate(mix, pass_through, Setup(ALONE))
    assert [outcome.cached_tokens for outcome in result.outcomes] == [0, 512, 512, 1024]
    without = Setup(replace(ALONE, enable_prefix_caching=False))
    assert [outcome.cached_tokens for outcome in simulate(mix, pass_through, without).outcomes] == [0, 0, 0, 0]


def test_the_least_recently_used_prefix_is_evicted_first() -> None:
    """Room for two prompts: the third pushes out the one that was used longest ago."""
    engine = replace(ALONE, num_blocks=3 * 32 + 2)
    mix = [
        SimRequest(index, f"q{index}", 10.0 * index, 513, 1, chunk_ids=(chunk,))
        for index, chunk in enumerate([1, 2, 1, 3, 4, 1, 2])
    ]
    result = simulate(mix, pass_through, Setup(engine))
    assert [outcome.cached_tokens for outcome in result.outcomes] == [0, 0, 512, 0, 0, 512, 0]


def test_a_turned_away_request_is_an_answer_with_429() -> None:
    """The queue is full: the report sees what a client would."""
    options = {"fixed": {"in_flight_tokens": 50}, "queue": {"max_requests": 1}}
    mix = [SimRequest(index, f"q{index}", 0.001 * index, 40, 20) for index in range(4)]
    answers = simulate(mix, lambda: policy(options=options), Setup(ALONE)).answers()
    assert [answer.error for answer in answers] == [None, None, "http-429", "http-429"]
    assert answers[2].status == 429


def test_a_composer_that_breaks_the_rules_is_counted_and_fcfs_serves() -> None:
    """As in the bundled engine."""

    class Broken:
        def compose(self, engine: object) -> StepPlan:
            return StepPlan(rows=(StepRow(10_000, 1),))

    mix = [SimRequest(0, "q0", 0.0, 40, 20)]
    broken = simulate(mix, pass_through, Setup(ALONE), make_composer=Broken)
    good = simulate(mix, pass_through, Setup(ALONE), make_composer=lambda: Chunked(fcfs))
    assert broken.outcomes == good.outcomes
    assert (broken.num_policy_errors, good.num_policy_errors) == (2, 0)


def test_the_engines_own_order_is_respected() -> None:
    """With `priority`, a later request of higher priority is computed first."""
    engine = replace(ALONE, max_num_seqs=1)
    mix = [SimRequest(index, f"q{index}", 0.001 * index, 40, 20, priority=index) for index in range(3)]
    ends = {}
    for order in ("fcfs", "priority"):
        outcomes = simulate(mix, pass_through, Setup(engine, step=StepSpec(order=order))).outcomes
        ends[order] = [outcome.request.index for outcome in sorted(outcomes, key=lambda o: o.end_s or 0.0)]
    assert ends == {"fcfs": [0, 1, 2], "priority": [0, 2, 1]}


@pytest.mark.parametrize(
    ("mix", "world", "words"),
    [
        ([SimRequest(0, "big", 0.0, 20_000, 5)], Setup(ALONE), "request big has 20000"),
        ([SimRequest(0, "none", 0.0, 0, 5)], Setup(ALONE), "request none"),
        ([], Setup(ALONE, step=StepSpec("nonsense")), "composer: 'nonsense' isn't allowed; allowed: chunked"),
        ([], Setup(ALONE, step=StepSpec(order="nonsense")), "order: 'nonsense' isn't allowed; allowed: aged-sjf"),
        ([], Setup(ALONE, outages=(Outage(1, 0.0, 1.0),)), "outage"),
        ([], Setup(replace(ALONE, chunk_tokens=20)), "whole number of KV blocks"),
    ],
)
def test_what_cannot_be_simulated_is_an_error(mix: list[SimRequest], world: Setup, words: str) -> None:
    """Before anything runs, in words."""
    with pytest.raises(LoadtestError, match=words):
        simulate(mix, pass_through, world)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ({"base_s": 1.0}, "token_s: missing"),
        ({"base_s": 1.0, "token_s": 1.0, "speed": 1}, "speed: unknown; allowed: base_s"),
        ({"base_s": "1", "token_s": 1.0}, "base_s: '1'"),
        ({"base_s": -1.0, "token_s": 1.0}, "base_s: -1.0"),
        ({"base_s": 0.0, "token_s": 0.0}, "must take time"),
        ({"base_s": float("nan"), "token_s": 0.0}, "base_s: nan"),
    ],
)
def test_a_step_time_that_is_none_is_an_error(raw: dict[str, object], words: str) -> None:
    """Key, value and what is allowed."""
    with pytest.raises(LoadtestError, match=words):
        StepTime.from_dict(raw)
    assert StepTime.from_dict(SPEED.to_dict()) == SPEED
