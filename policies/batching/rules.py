"""The rules of a `StepPlan`, checked before the engine runs it."""

from ..types import EngineLike, SequenceLike, StepPlan
from .blocks import admission_blocks, growth_blocks


class PolicyError(Exception):
    """A plan broke a rule. `rule` is a stable short name, the message gives the figures."""

    def __init__(self, rule: str, detail: str) -> None:
        super().__init__(f"{rule}: {detail}")
        self.rule = rule


def check_plan(engine: EngineLike, plan: StepPlan) -> None:
    """Raise `PolicyError` for the first rule that `plan` breaks.

    Rules, by name: `unknown-id` (a row of a running or waiting sequence, a preemption of a running one);
    `repeated-id` (an id is in one list, once); `row-tokens` (1 up to what the sequence has left to compute);
    `token-budget`; `sequence-limit`; `blocks` (new blocks fit those free and freed); `idle` (work, but no plan).
    """
    running = {sequence.sequence_id: sequence for sequence in engine.running}
    waiting = {sequence.sequence_id: sequence for sequence in engine.waiting}
    if (running or waiting) and not plan.rows and not plan.preempt:
        raise PolicyError("idle", f"nothing planned for {len(running)} running and {len(waiting)} waiting sequences")
    _check_ids(running, waiting, plan)
    _check_tokens(engine, running, waiting, plan)
    num_admitted = sum(row.sequence_id in waiting for row in plan.rows)
    num_running = len(running) - len(plan.preempt) + num_admitted
    if num_admitted and num_running > engine.max_num_seqs:
        raise PolicyError("sequence-limit", f"{num_running} running sequences, allowed are {engine.max_num_seqs}")
    _check_blocks(engine, running, waiting, plan)


def _check_ids(running: dict[int, SequenceLike], waiting: dict[int, SequenceLike], plan: StepPlan) -> None:
    seen: set[int] = set()
    for sequence_id in (*plan.preempt, *(row.sequence_id for row in plan.rows)):
        if sequence_id in seen:
            raise PolicyError("repeated-id", f"sequence {sequence_id} is planned twice")
        seen.add(sequence_id)
    for sequence_id in plan.preempt:
        if sequence_id not in running:
            raise PolicyError("unknown-id", f"preempts sequence {sequence_id}, which is not running")
    for row in plan.rows:
        if row.sequence_id not in running and row.sequence_id not in waiting:
            raise PolicyError("unknown-id", f"computes sequence {row.sequence_id}, which the engine doesn't have")


def _check_tokens(
    engine: EngineLike, running: dict[int, SequenceLike], waiting: dict[int, SequenceLike], plan: StepPlan
) -> None:
    total = 0
    for row in plan.rows:
        sequence = running.get(row.sequence_id)
        if sequence is not None:
            left = sequence.num_tokens - sequence.computed_tokens
        else:
            sequence = waiting[row.sequence_id]
            left = sequence.num_tokens - sequence.cached_tokens
        if not 1 <= row.num_tokens <= left:
            raise PolicyError(
                "row-tokens", f"{row.num_tokens} tokens of sequence {row.sequence_id}, which has {left} left"
            )
        total += row.num_tokens
    if total > engine.max_num_batched_tokens:
        raise PolicyError("token-budget", f"{total} tokens, allowed are {engine.max_num_batched_tokens}")


def _check_blocks(
    engine: EngineLike, running: dict[int, SequenceLike], waiting: dict[int, SequenceLike], plan: StepPlan
) -> None:
    free = engine.free_blocks + sum(running[sequence_id].exclusive_blocks for sequence_id in plan.preempt)
    needed = 0
    for row in plan.rows:
        sequence = running.get(row.sequence_id)
        if sequence is not None:
            needed += growth_blocks(sequence, row.num_tokens, engine.block_size)
        else:
            needed += admission_blocks(
                waiting[row.sequence_id], row.num_tokens, engine.block_size, preempting=bool(plan.preempt)
            )
    if needed > free:
        raise PolicyError("blocks", f"{needed} new blocks, {free} are free or freed")
