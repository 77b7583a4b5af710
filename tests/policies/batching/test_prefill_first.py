"""Prefill first: prompts alone, then decodes alone, and how long decodes stand still at most."""

from policies.batching import PrefillFirst, fcfs
from policies.types import StepPlan, StepRow

from .world import Seq, World


def compose(world: World) -> StepPlan:
    return PrefillFirst(fcfs).compose(world)


def test_a_step_computes_prompts_or_decodes_never_both() -> None:
    """While a prompt can be computed the stream waits, though tokens are left for it; then it goes on."""
    stream = Seq(1, 9, computed_tokens=8, held_blocks=2)
    world = World(num_blocks=100, running=[stream], waiting=[Seq(2, 6, 1.0), Seq(3, 4, 2.0)])
    assert compose(world).rows == (StepRow(2, 6), StepRow(3, 4))
    world.waiting = []
    assert compose(world).rows == (StepRow(1, 1),)


def test_a_prompt_longer_than_the_budget_takes_steps_in_a_row() -> None:
    """Its pieces go before the stream's tokens, too."""
    stream = Seq(1, 9, computed_tokens=8, held_blocks=2)
    world = World(num_blocks=100, running=[stream, Seq(2, 40, 1.0, computed_tokens=16, held_blocks=4)])
    assert compose(world).rows == (StepRow(2, 16),)


def test_prompts_that_find_no_place_leave_the_step_to_decodes() -> None:
    """A full batch, or memory too small for the next prompt."""
    streams = [Seq(number, 9, computed_tokens=8, held_blocks=2) for number in range(2)]
    full = World(num_blocks=100, max_num_seqs=2, running=streams, waiting=[Seq(2, 6, 1.0)])
    assert compose(full).rows == (StepRow(0, 1), StepRow(1, 1))
    tight = World(num_blocks=7, running=streams, waiting=[Seq(2, 8, 1.0)])
    assert compose(tight).rows == (StepRow(0, 1), StepRow(1, 1))


def test_between_two_decode_steps_at_most_a_batch_of_prompts_starts() -> None:
    """However many wait: each takes a place that only a decode step frees."""
    world = World(num_blocks=1000, max_num_batched_tokens=16, max_num_seqs=4)
    for number in range(40):
        world.add(Seq(number, 16, target_tokens=20))
    composer = PrefillFirst(fcfs)
    num_started = longest = 0
    while len(world.finished) < 40:
        waiting = len(world.waiting)
        world.step(composer)
        started = waiting - len(world.waiting)
        num_started = num_started + started if started else 0
        longest = max(longest, num_started)
    assert longest == 4
