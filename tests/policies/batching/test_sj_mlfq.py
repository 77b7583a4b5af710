"""Skip-join MLFQ: where a sequence enters, how it sinks and rises, whom it displaces, and what bounds its wait."""

import random

import pytest

from policies.batching import SkipJoinMlfq, fcfs
from policies.types import StepPlan, StepRow

from .world import Seq, World


def mlfq(*, num_levels: int = 4, promote_after_s: float = 1000.0) -> SkipJoinMlfq:
    """Quanta of 1, 2 and 4 s; a prompt token takes 0.1 s, an output token 0.5 s."""
    return SkipJoinMlfq(
        fcfs,
        first_quantum_s=1.0,
        num_levels=num_levels,
        promote_after_s=promote_after_s,
        prefill_s_per_token=0.1,
        decode_s_per_token=0.5,
    )


@pytest.mark.parametrize(("prompt", "level"), [(1, 0), (10, 0), (11, 1), (20, 1), (21, 2), (40, 2), (41, 3), (900, 3)])
def test_a_sequence_enters_where_its_prompt_fits_in_the_quantum(prompt: int, level: int) -> None:
    """It skips the levels above, and the last one takes what fits in none."""
    assert mlfq().level(Seq(1, prompt), 0.0) == level


@pytest.mark.parametrize(("outputs", "level"), [(0, 0), (1, 0), (2, 1), (5, 1), (6, 2), (13, 2), (14, 3), (500, 3)])
def test_it_sinks_a_level_with_each_quantum_it_uses_up(outputs: int, level: int) -> None:
    """A prompt of 0.5 s leaves 0.5 s on the first level: one token. Then 2 s, 4 s, and no end."""
    assert mlfq().level(Seq(1, 5 + outputs, prompt_tokens=5), 0.0) == level


def test_waiting_lifts_a_level_each_time_and_being_served_does_not() -> None:
    """After 10 s a level, after 20 s two; a sequence that was served all the time since it came stays where it is."""
    composer = mlfq(promote_after_s=10.0)
    long = Seq(1, 100, arrival_s=5.0)
    assert [composer.level(long, 5.0 + waited_s) for waited_s in (0.0, 9.9, 10.0, 20.0, 30.0, 99.0)] == [
        3,
        3,
        2,
        1,
        0,
        0,
    ]
    served = Seq(2, 100 + 40, arrival_s=5.0, prompt_tokens=100, computed_tokens=139, held_blocks=35)
    assert composer.level(served, 5.0 + 10.0 + 20.0) == 3
    computing = Seq(3, 100, arrival_s=5.0, computed_tokens=50, held_blocks=13)
    assert composer.level(computing, 5.0 + 5.0 + 9.9) == 3


def stream(sequence_id: int, outputs: int, **fields: float) -> Seq:
    """A running decode with a prompt of 5 tokens."""
    tokens = 5 + outputs
    return Seq(
        sequence_id,
        tokens,
        prompt_tokens=5,
        computed_tokens=tokens - 1,
        held_blocks=-(-(tokens - 1) // 4),
        **fields,  # type: ignore[arg-type]
    )


def test_a_short_prompt_passes_a_longer_one_that_runs_already() -> None:
    """It takes the tokens that decodes leave before the long prompt goes on."""
    long = Seq(1, 60, computed_tokens=16, held_blocks=4)
    world = World(num_blocks=100, running=[long, stream(2, 3)], waiting=[Seq(3, 8, arrival_s=0.2)], now_s=0.3)
    assert mlfq().compose(world).rows == (StepRow(1, 7), StepRow(2, 1), StepRow(3, 8))


def test_one_that_has_run_long_makes_place_for_one_that_has_not() -> None:
    """The batch is full: the lowest level's goes, and who is as high as the newcomer stays."""
    world = World(num_blocks=100, max_num_seqs=2, running=[stream(1, 20), stream(2, 3)], waiting=[Seq(3, 8, 0.2)])
    assert mlfq().compose(world) == StepPlan(rows=(StepRow(2, 1), StepRow(3, 8)), preempt=(1,))
    world.running = [stream(1, 1), stream(2, 1)]
    assert mlfq().compose(world) == StepPlan(rows=(StepRow(1, 1), StepRow(2, 1)))


def test_memory_is_made_free_as_far_as_it_is_needed_and_never_in_vain() -> None:
    """Two blocks for the newcomer come of one victim; where all victims wouldn't do, there is none."""
    world = World(num_blocks=17, running=[stream(1, 20), stream(2, 24)], waiting=[Seq(3, 8, 0.2)])
    assert world.free_blocks == 4, "each of the two takes one of them in this step"
    assert mlfq().compose(world).preempt == ()
    world.num_blocks = 16
    assert mlfq().compose(world).preempt == (2,)
    world.waiting = [Seq(3, 10, 0.2, cached_tokens=4, cached_idle_blocks=1)]
    world.num_blocks, world.running = 8, [stream(1, 1, arrival_s=0.1), stream(2, 20)]
    world.running[0].held_blocks = 2
    assert mlfq().compose(world).preempt == (2,)
    world.waiting = [Seq(3, 40, 0.2)]
    assert mlfq().compose(world).preempt == ()


def test_nobody_is_preempted_while_decodes_take_all_tokens() -> None:
    """The newcomer couldn't be computed in this step."""
    running = [stream(1, 20), stream(2, 20)]
    world = World(num_blocks=100, max_num_batched_tokens=2, max_num_seqs=2, running=running, waiting=[Seq(3, 2, 0.2)])
    assert mlfq().compose(world).preempt == ()


def test_bounds_starvation() -> None:
    """Under short ones without end: after (levels − 1) waits nobody that came later passes, and it goes."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    promote_after_s, num_levels = 3.0, 4
    composer = mlfq(num_levels=num_levels, promote_after_s=promote_after_s)
    world = World(num_blocks=200, max_num_batched_tokens=16, max_num_seqs=1, step_s=0.5)
    long = Seq(0, 60, arrival_s=1.0, target_tokens=62)
    world.add(long)
    started_s: dict[int, float] = {}
    for number in range(1, 400):
        prompt = rng.randint(1, 8)
        world.add(Seq(number, prompt, world.now_s, target_tokens=prompt + rng.randint(1, 3)))
        began_s = world.now_s
        world.step(composer)
        for sequence in world.running:
            started_s.setdefault(sequence.sequence_id, began_s)
    bound_s = long.arrival_s + (num_levels - 1) * promote_after_s
    assert 0 in started_s, "it waits for ever"
    passed = [number for number, at_s in started_s.items() if bound_s < at_s < started_s[0] and number > 2]
    assert started_s[0] > 5.0, "the load was to be heavy enough that it has to wait"
    assert passed == []
