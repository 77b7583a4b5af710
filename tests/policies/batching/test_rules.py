"""Each rule of a step plan, broken once."""

import pytest

from policies.batching import PolicyError, check_plan
from policies.types import StepPlan, StepRow

from .world import Seq, World


def world() -> World:
    """Three blocks free of eight; 1 and 2 run, 3 waits with a cached block that 2 holds."""
    return World(
        num_blocks=8,
        max_num_seqs=3,
        running=[Seq(1, 9, computed_tokens=8, held_blocks=2), Seq(2, 30, computed_tokens=12, held_blocks=3)],
        waiting=[Seq(3, 9, cached_tokens=4), Seq(4, 2)],
    )


@pytest.mark.parametrize(
    "plan",
    [
        StepPlan(rows=(StepRow(1, 1), StepRow(2, 4), StepRow(3, 1))),
        StepPlan(rows=(StepRow(2, 15),), preempt=(1,)),
        StepPlan(preempt=(1, 2)),
    ],
)
def test_plans_within_the_rules_pass(plan: StepPlan) -> None:
    """Nothing is raised."""
    check_plan(world(), plan)


@pytest.mark.parametrize(
    ("rule", "plan"),
    [
        ("idle", StepPlan()),
        ("repeated-id", StepPlan(rows=(StepRow(1, 1), StepRow(1, 1)))),
        ("repeated-id", StepPlan(rows=(StepRow(1, 1),), preempt=(1,))),
        ("unknown-id", StepPlan(rows=(StepRow(9, 1),))),
        ("unknown-id", StepPlan(preempt=(3,))),
        ("row-tokens", StepPlan(rows=(StepRow(1, 2),))),
        ("row-tokens", StepPlan(rows=(StepRow(1, 0),))),
        ("row-tokens", StepPlan(rows=(StepRow(3, 6),))),
        ("token-budget", StepPlan(rows=(StepRow(2, 16), StepRow(1, 1)))),
        ("sequence-limit", StepPlan(rows=(StepRow(3, 1), StepRow(4, 1)))),
        ("blocks", StepPlan(rows=(StepRow(2, 14),))),
        ("blocks", StepPlan(rows=(StepRow(2, 12), StepRow(3, 1)))),
    ],
)
def test_a_broken_rule_is_named(rule: str, plan: StepPlan) -> None:
    """The error carries the rule's short name."""
    with pytest.raises(PolicyError) as caught:
        check_plan(world(), plan)
    assert caught.value.rule == rule
    assert str(caught.value).startswith(f"{rule}: ")


def test_a_preemption_charges_the_cached_blocks_of_a_newcomer() -> None:
    """The holder of sequence 3's cached block may be the one preempted: then it isn't free of charge."""
    tight = world()
    tight.num_blocks = 7
    tight.running.pop()
    tight.running.append(Seq(2, 30, computed_tokens=20, held_blocks=5))
    tight.waiting = [Seq(3, 24, cached_tokens=16)]
    check_plan(tight, StepPlan(rows=(StepRow(3, 4),), preempt=(2,)))
    tight.waiting = [Seq(3, 26, cached_tokens=20)]
    with pytest.raises(PolicyError, match="blocks"):
        check_plan(tight, StepPlan(rows=(StepRow(3, 5),), preempt=(2,)))


def test_an_idle_engine_needs_no_plan() -> None:
    """Without sequences the empty plan is right."""
    check_plan(World(num_blocks=1), StepPlan())
