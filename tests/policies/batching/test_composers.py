"""What every step composer must hold, in every order."""

import random

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from policies.batching import COMPOSERS, ORDERS, Composer, StepSpec, build_composer, check_plan
from policies.batching.config import parse_options
from policies.registry import PolicyConfigError
from policies.types import StepPlan

from .world import Seq, World

EVERY = [(composer, order) for composer in COMPOSERS.names() for order in ORDERS.names()]


def composer_of(composer: str, order: str) -> Composer:
    """Levels, where there are any, that a few tokens sink through, and promotion within the worlds of these tests."""
    options = {"first_quantum_s": 0.5, "num_levels": 4, "promote_after_s": 5.0, "prefill_s_per_token": 0.05}
    given = {"sj-mlfq": {**options, "decode_s_per_token": 0.1}} if composer == "sj-mlfq" else {}
    return build_composer(StepSpec(composer, order, given))


@pytest.mark.parametrize(("composer", "order"), EVERY)
def test_nothing_to_do_is_an_empty_plan(composer: str, order: str) -> None:
    """Without sequences there is nothing to plan."""
    assert composer_of(composer, order).compose(World(num_blocks=4)) == StepPlan()


sequence_fields = st.tuples(st.integers(1, 40), st.integers(1, 20), st.integers(0, 60), st.integers(-1, 1))


@settings(max_examples=400, deadline=None, print_blob=True)
@given(
    specs=st.lists(sequence_fields, min_size=1, max_size=12),
    num_blocks=st.integers(15, 30),
    budget=st.integers(4, 24),
    names=st.sampled_from(EVERY),
)
def test_random_load_always_finishes_within_the_rules(
    specs: list[tuple[int, int, int, int]], num_blocks: int, budget: int, names: tuple[str, str]
) -> None:
    """Every plan keeps the rules, every sequence that fits alone finishes once, in a bounded number of steps."""
    note(f"{specs=} {num_blocks=} {budget=} {names=}")
    runs = []
    for _ in range(2):
        world = World(num_blocks=num_blocks, max_num_batched_tokens=budget)
        composer = composer_of(*names)
        pending = [
            (arrival, Seq(index, prompt, arrival * world.step_s, priority, target_tokens=prompt + output))
            for index, (prompt, output, arrival, priority) in enumerate(specs)
        ]
        for step in range(5000):
            for _, sequence in [entry for entry in pending if entry[0] <= step]:
                world.add(sequence)
            pending = [entry for entry in pending if entry[0] > step]
            if not pending and not world.running and not world.waiting:
                break
            if world.running or world.waiting:
                world.step(composer)
            else:
                world.now_s += world.step_s
        assert sorted(world.finished) == list(range(len(specs)))
        runs.append((world.finished, world.now_s, world.num_preempted))
    assert runs[0] == runs[1], "the same inputs give the same plans"


@pytest.mark.parametrize("composer", ["chunked", "prefill-first"])
@pytest.mark.parametrize("order", ORDERS.names())
def test_under_the_tightest_memory_the_first_is_never_preempted(composer: str, order: str) -> None:
    """Where turns don't change, the one whose turn it is keeps what it has, while others give way."""
    world = World(num_blocks=6, max_num_batched_tokens=4)
    for number in range(4):
        world.add(Seq(number, 8, number * 1e-3, target_tokens=20))
    made = composer_of(composer, order)
    before = 0
    while 0 not in world.finished:
        world.step(made)
        now = [sequence.computed_tokens for sequence in world.running if sequence.sequence_id == 0]
        assert not now or now[0] >= before
        before = now[0] if now else before
    assert world.num_preempted > 0


def test_sequences_that_share_cached_blocks_keep_the_rules() -> None:
    """What a newcomer finds cached may be held by the one that makes place for it; the plan counts with that."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for number in range(600):
        running = []
        for sequence_id in range(rng.randint(1, 4)):
            prompt = rng.randint(4, 24)
            tokens = prompt + rng.randint(0, 12)
            computed = tokens - 1 if tokens > prompt else rng.randrange(prompt)
            running.append(Seq(sequence_id, tokens, rng.random(), 0, computed, -(-computed // 4), prompt_tokens=prompt))
        waiting = []
        for sequence_id in range(10, 10 + rng.randint(1, 4)):
            prompt = rng.randint(2, 24)
            cached = rng.randrange(0, prompt, 4)
            idle = rng.randint(0, cached // 4)
            waiting.append(Seq(sequence_id, prompt, rng.random(), cached_tokens=cached, cached_idle_blocks=idle))
        held = sum(sequence.held_blocks for sequence in running)
        world = World(num_blocks=max(held, 12) + rng.randint(0, 8), running=running, waiting=waiting, now_s=2.0)
        world.max_num_seqs = rng.randint(len(running), 5)
        check_plan(world, composer_of(COMPOSERS.names()[number % 3], "fcfs").compose(world))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (StepSpec("nonsense"), "composer: 'nonsense' isn't allowed; allowed: chunked, prefill-first, sj-mlfq"),
        (StepSpec(order="nonsense"), "order: 'nonsense' isn't allowed; allowed: aged-sjf, boost, fcfs, priority"),
        (StepSpec(options={"sj-mlfq": {}}), "options.sj-mlfq: .* sj-mlfq isn't in use: composer is chunked"),
        (
            StepSpec("sj-mlfq", options={"sj-mlfq": {"num_levels": 0}}),
            "options.sj-mlfq.num_levels: 0 isn't allowed; must be a whole number at least 1 at most 64",
        ),
        (
            StepSpec("sj-mlfq", "aged-sjf", parse_options(["sj-mlfq.first_quantum_s=soon", "aged-sjf.ageing=0.2"])),
            "options.sj-mlfq.first_quantum_s: 'soon' isn't allowed",
        ),
    ],
)
def test_a_bad_spec_names_key_value_and_choices(spec: StepSpec, message: str) -> None:
    """Nothing is guessed."""
    with pytest.raises(PolicyConfigError, match=message):
        build_composer(spec)


@pytest.mark.parametrize("text", ["sj-mlfq", "first_quantum_s=1", "=", "a.b"])
def test_an_option_of_another_form_is_an_error(text: str) -> None:
    """As it was given, with the form it should have."""
    with pytest.raises(PolicyConfigError, match=r"must be NAME\.OPTION=VALUE"):
        parse_options([text])


def test_options_of_a_command_line_are_numbers_where_they_look_like_it() -> None:
    """Each by its name; the last of one key holds."""
    texts = ["sj-mlfq.num_levels=3", "sj-mlfq.num_levels=4", "sj-mlfq.first_quantum_s=0.25", "boost.factor=null"]
    assert parse_options(texts) == {"sj-mlfq": {"num_levels": 4, "first_quantum_s": 0.25}, "boost": {"factor": None}}
