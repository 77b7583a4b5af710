"""The chunked composer, example by example."""

from policies.batching import StepSpec, build_composer
from policies.types import StepPlan, StepRow

from .world import Seq, World


def compose(world: World, order: str = "fcfs") -> StepPlan:
    return build_composer(StepSpec(order=order)).compose(world)


def decode(sequence_id: int, num_tokens: int, **fields: float) -> Seq:
    """A running sequence with one token to compute, in blocks of 4."""
    computed = num_tokens - 1
    return Seq(sequence_id, num_tokens, computed_tokens=computed, held_blocks=-(-computed // 4), **fields)  # type: ignore[arg-type]


def test_nothing_to_do_is_an_empty_plan() -> None:
    """Without sequences there is nothing to plan."""
    assert compose(World(num_blocks=4)) == StepPlan()


def test_decodes_come_first_and_a_prompt_gets_the_rest_of_the_budget() -> None:
    """A prompt that arrived before is cut so that a running decode still advances."""
    world = World(num_blocks=100, running=[Seq(1, 40, computed_tokens=0), decode(2, 9)])
    assert compose(world).rows == (StepRow(2, 1), StepRow(1, 15))


def test_waiting_sequences_start_in_order_of_arrival_until_the_budget_is_used() -> None:
    """The second gets what the first leaves; the third waits."""
    world = World(num_blocks=100, waiting=[Seq(1, 10), Seq(2, 10), Seq(3, 10)])
    assert compose(world).rows == (StepRow(1, 10), StepRow(2, 6))


def test_priority_goes_before_arrival_and_arrival_before_id() -> None:
    """Higher priority first; equals by arrival, then id."""
    waiting = [Seq(3, 2, arrival_s=0.0), Seq(2, 2, arrival_s=0.0), Seq(1, 2, arrival_s=1.0, priority=5)]
    world = World(num_blocks=100, waiting=waiting)
    assert [row.sequence_id for row in compose(world, "priority").rows] == [1, 2, 3]
    assert [row.sequence_id for row in compose(world, "fcfs").rows] == [2, 3, 1]


def test_a_waiting_short_prompt_of_higher_priority_goes_before_a_running_long_one() -> None:
    """Priority protects a short call from a long prefill that already runs."""
    world = World(
        num_blocks=100, running=[Seq(1, 100, computed_tokens=16, held_blocks=4)], waiting=[Seq(2, 6, priority=1)]
    )
    assert compose(world, "priority").rows == (StepRow(2, 6), StepRow(1, 10))
    assert compose(world, "fcfs").rows == (StepRow(1, 16),)


def test_no_more_sequences_run_than_allowed() -> None:
    """A waiting sequence stays out when max_num_seqs run."""
    world = World(num_blocks=100, max_num_seqs=2, running=[decode(1, 5), decode(2, 5)], waiting=[Seq(3, 2)])
    assert {row.sequence_id for row in compose(world).rows} == {1, 2}


def test_the_cached_prefix_is_not_computed_and_costs_only_idle_blocks() -> None:
    """8 cached tokens in blocks that others hold: 3 more tokens take one block, all that is free."""
    world = World(num_blocks=1, waiting=[Seq(1, 11, cached_tokens=8, cached_idle_blocks=0)])
    assert compose(world).rows == (StepRow(1, 3),)
    world.waiting[0].cached_idle_blocks = 1
    assert compose(world).rows == ()


def test_a_prompt_starts_only_when_all_of_it_fits() -> None:
    """Its first chunk would fit, but the rest would have to be preempted: the one behind it waits too."""
    world = World(num_blocks=5, max_num_batched_tokens=8, running=[decode(1, 8)], waiting=[Seq(2, 16), Seq(3, 2)])
    assert compose(world).rows == (StepRow(1, 1),)


def test_what_a_running_prompt_still_needs_is_kept_for_it() -> None:
    """Sequence 1 has 4 blocks to go; of the 6 free, only 2 are there for a newcomer."""
    world = World(num_blocks=8, max_num_batched_tokens=20, running=[Seq(1, 24, computed_tokens=8, held_blocks=2)])
    world.waiting = [Seq(2, 9, arrival_s=1.0)]
    assert compose(world).rows == (StepRow(1, 16),)
    world.waiting = [Seq(2, 8, arrival_s=1.0)]
    assert compose(world).rows == (StepRow(1, 16), StepRow(2, 4))


def test_out_of_blocks_the_last_arrival_gives_way() -> None:
    """The older decode needs a block; the younger one is preempted and nobody starts in that step."""
    world = World(num_blocks=4, running=[decode(1, 9), decode(2, 6, arrival_s=1.0)], waiting=[Seq(3, 1, arrival_s=2.0)])
    assert compose(world) == StepPlan(rows=(StepRow(1, 1),), preempt=(2,))


def test_out_of_blocks_the_lowest_priority_gives_way() -> None:
    """Under `priority` the victim is the older one when it matters less."""
    world = World(num_blocks=4, running=[decode(1, 6), decode(2, 9, arrival_s=1.0, priority=1)])
    assert compose(world, "priority") == StepPlan(rows=(StepRow(2, 1),), preempt=(1,))


def test_a_victim_that_was_planned_already_loses_its_row() -> None:
    """A prompt ahead of a decode takes its blocks, and the decode's token goes back to the budget."""
    prompt = Seq(1, 20, computed_tokens=8, held_blocks=2)
    world = World(num_blocks=4, running=[prompt, decode(2, 6, arrival_s=1.0)])
    plan = compose(world)
    assert plan == StepPlan(rows=(StepRow(1, 8),), preempt=(2,))


def test_the_last_in_order_waits_for_blocks_instead_of_preempting_others() -> None:
    """Nobody comes after the stalled one, so it keeps what it has and the first goes on."""
    world = World(num_blocks=4, running=[decode(1, 8), decode(2, 9, arrival_s=1.0)])
    assert compose(world) == StepPlan(rows=(StepRow(1, 1),))


def test_several_are_preempted_until_one_token_fits() -> None:
    """One victim whose blocks are shared frees nothing; the next one does."""

    class Sharing(Seq):
        exclusive_blocks = property(lambda self: 0)

    shared = Sharing(3, 6, arrival_s=2.0, computed_tokens=5, held_blocks=2)
    world = World(num_blocks=7, running=[decode(1, 9), decode(2, 10, arrival_s=1.0), shared])
    assert compose(world) == StepPlan(rows=(StepRow(1, 1),), preempt=(3, 2))


def test_a_budget_smaller_than_the_decodes_leaves_the_last_out() -> None:
    """Decodes past the budget wait for the next step."""
    world = World(num_blocks=100, max_num_batched_tokens=2, running=[decode(1, 6), decode(2, 6), decode(3, 6)])
    assert compose(world).rows == (StepRow(1, 1), StepRow(2, 1))
