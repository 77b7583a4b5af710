"""From the engine's state to the rows of the next step: view → composer → rules → applied."""

import bisect
import logging
from collections.abc import Iterable
from collections.abc import Sequence as ReadOnlySequence
from dataclasses import dataclass

from policies.batching import Chunked, Composer, PolicyError, check_plan, fcfs
from policies.types import StepPlan

from .kv_cache import BlockManager
from .sequence import Sequence, SequenceState

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StepRow:
    """The next `num_tokens` tokens of a running sequence; its blocks are reserved."""

    sequence: Sequence
    num_tokens: int

    @property
    def token_ids(self) -> list[int]:
        start = self.sequence.computed_tokens
        return self.sequence.token_ids[start : start + self.num_tokens]

    @property
    def reaches_end(self) -> bool:
        """Whether the step computes the sequence's last token, so that a new one can be sampled."""
        return self.sequence.computed_tokens + self.num_tokens == self.sequence.num_tokens


@dataclass(frozen=True, slots=True)
class Step:
    """One planned and applied step."""

    rows: tuple[StepRow, ...]
    num_preempted: int


class Scheduler:
    """Owns the running and the waiting sequences and asks the composer what to compute. Implements `EngineLike`."""

    def __init__(
        self, blocks: BlockManager, composer: Composer, *, max_num_batched_tokens: int, max_num_seqs: int
    ) -> None:
        if max_num_seqs < 1 or max_num_batched_tokens < max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens ({max_num_batched_tokens}) must be at least max_num_seqs ({max_num_seqs}), "
                "and that at least 1: every running sequence may want a token in every step"
            )
        self.blocks = blocks
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_num_seqs = max_num_seqs
        self.now_s = 0.0
        """When the step that is planned began."""
        self.num_policy_errors = 0
        self._composer = composer
        self._fallback = Chunked(fcfs)
        self._running: list[Sequence] = []
        self._waiting: list[Sequence] = []

    @property
    def running(self) -> ReadOnlySequence[Sequence]:
        return self._running

    @property
    def waiting(self) -> ReadOnlySequence[Sequence]:
        return self._waiting

    @property
    def block_size(self) -> int:
        return self.blocks.block_size

    @property
    def free_blocks(self) -> int:
        return self.blocks.free_blocks

    @property
    def has_work(self) -> bool:
        return bool(self._running or self._waiting)

    def add(self, sequence: Sequence) -> None:
        """Let a new sequence wait."""
        _insert(self._waiting, sequence)

    def finish(self, sequence: Sequence) -> None:
        """Forget a sequence, wherever it is, and give back its blocks. Once it is forgotten: no effect."""
        if sequence.state is SequenceState.FINISHED:
            return
        (self._running if sequence.state is SequenceState.RUNNING else self._waiting).remove(sequence)
        sequence.stop(SequenceState.FINISHED)

    def plan_step(self, now_s: float) -> Step:
        """Plan the step that begins now and apply it: preempt, hold cached prefixes, reserve blocks.

        The composer's plan is dropped and counted when it breaks a rule; chunked FCFS then plans this step.
        """
        self.now_s = now_s
        try:
            plan = self._composer.compose(self)
            check_plan(self, plan)
        except PolicyError as error:
            logger.warning("the composer's plan is dropped: %s", error)
            plan = self._plan_instead()
        except Exception:
            logger.exception("the composer failed")
            plan = self._plan_instead()
        return self._apply(plan)

    def check_integrity(self) -> None:
        """Raise `KVCacheError` or `AssertionError` unless lists, states and blocks agree."""
        self.blocks.check_integrity(sequence.block_table for sequence in self._running)
        for sequences, state in ((self._running, SequenceState.RUNNING), (self._waiting, SequenceState.WAITING)):
            for sequence in sequences:
                if sequence.state is not state:
                    raise AssertionError(f"sequence {sequence.sequence_id} is {sequence.state}, listed as {state}")
        for sequence in self._waiting:
            if sequence.block_table:
                raise AssertionError(f"sequence {sequence.sequence_id} waits but holds blocks")
        for sequence in self._running:
            if not sequence.computed_tokens <= len(sequence.block_table) * self.block_size:
                raise AssertionError(f"sequence {sequence.sequence_id} has computed more than its blocks hold")

    def _plan_instead(self) -> StepPlan:
        self.num_policy_errors += 1
        plan = self._fallback.compose(self)
        check_plan(self, plan)
        return plan

    def _apply(self, plan: StepPlan) -> Step:
        running = {sequence.sequence_id: sequence for sequence in self._running}
        for sequence_id in plan.preempt:
            sequence = running.pop(sequence_id)
            self._running.remove(sequence)
            sequence.stop(SequenceState.WAITING)
            _insert(self._waiting, sequence)
        admitted = {row.sequence_id for row in plan.rows if row.sequence_id not in running}
        # Cached prefixes are held before any block is allocated, which could evict them.
        for sequence in self._pop_waiting(admitted):
            sequence.start()
            _insert(self._running, sequence)
            running[sequence.sequence_id] = sequence
        rows = tuple(StepRow(running[row.sequence_id], row.num_tokens) for row in plan.rows)
        for row in rows:
            row.sequence.reserve(row.num_tokens)
        return Step(rows=rows, num_preempted=len(plan.preempt))

    def _pop_waiting(self, sequence_ids: set[int]) -> Iterable[Sequence]:
        if not sequence_ids:
            return ()
        popped = [sequence for sequence in self._waiting if sequence.sequence_id in sequence_ids]
        self._waiting = [sequence for sequence in self._waiting if sequence.sequence_id not in sequence_ids]
        return popped


def _insert(sequences: list[Sequence], sequence: Sequence) -> None:
    bisect.insort(sequences, sequence, key=lambda other: (other.arrival_s, other.sequence_id))
