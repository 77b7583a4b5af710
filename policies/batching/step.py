"""One step's plan in the making: what composers have in common."""

from collections.abc import Iterable

from ..types import EngineLike, SequenceLike, StepPlan, StepRow
from .blocks import admission_blocks, growth_blocks, outstanding_blocks
from .order import StepOrder


class StepInTheMaking:
    """Counts what is left of tokens, blocks and places while sequences are planned one after the other.

    Out of blocks, a running sequence preempts the last running one in the order that comes after itself; if there is
    none it waits for those before it. So the first in the order always advances when it is planned for. A waiting
    sequence is admitted only when all of it fits beside what running prefills still need, and never in a step that
    stalls or preempts for want of blocks: two half-computed prompts would otherwise take turns in throwing each other
    out.
    """

    def __init__(self, engine: EngineLike, order: StepOrder) -> None:
        self._engine = engine
        self._order = order
        self._budget = engine.max_num_batched_tokens
        self._free = engine.free_blocks
        self.running = sorted(engine.running, key=order)
        self._num_running = len(self.running)
        # Blocks that running sequences still need for the tokens they have.
        self._reserved = sum(outstanding_blocks(sequence, engine.block_size) for sequence in self.running)
        self._rows: dict[int, StepRow] = {}
        self._taken_blocks: dict[int, int] = {}
        self._preempted: dict[int, None] = {}
        self._is_short_of_blocks = False

    @property
    def is_empty(self) -> bool:
        """Whether nothing is planned yet."""
        return not self._rows and not self._preempted

    def plan(self) -> StepPlan:
        return StepPlan(rows=tuple(self._rows.values()), preempt=tuple(self._preempted))

    def decode(self) -> None:
        """Every running sequence that lacks a single token, in order."""
        for sequence in self.running:
            if not is_prefill(sequence):
                self._advance(sequence)

    def prefill(self) -> None:
        """Share out what is left between running prefills and waiting sequences, both in order."""
        waiting = sorted(self._engine.waiting, key=self._order)
        next_waiting = 0
        for sequence in self.running:
            if not is_prefill(sequence):
                continue
            while next_waiting < len(waiting) and self._order(waiting[next_waiting]) < self._order(sequence):
                if not self._admit(waiting[next_waiting]):
                    break
                next_waiting += 1
            self._advance(sequence)
        while next_waiting < len(waiting) and self._admit(waiting[next_waiting]):
            next_waiting += 1

    def displace(self, victims: Iterable[SequenceLike]) -> None:
        """Preempt these, before anything is planned, to make place for others."""
        for victim in victims:
            self._reserved -= outstanding_blocks(victim, self._engine.block_size)
            self._num_running -= 1
            self._preempt(victim)

    def _advance(self, sequence: SequenceLike) -> None:
        """Compute as much of a running sequence as budget and blocks allow."""
        if sequence.sequence_id in self._preempted or self._budget == 0:
            return
        left = sequence.num_tokens - sequence.computed_tokens
        block_size = self._engine.block_size
        # At least one token must find a place, in blocks it holds already or in free ones.
        while growth_blocks(sequence, 1, block_size) > self._free:
            self._is_short_of_blocks = True
            if not self._preempt_last_after(sequence):
                return
        num_tokens = min(left, self._budget)
        room = (sequence.held_blocks + self._free) * block_size - sequence.computed_tokens
        if room < num_tokens:
            self._is_short_of_blocks = True
            num_tokens = room
        self._take(sequence, num_tokens, growth_blocks(sequence, num_tokens, block_size))

    def _preempt_last_after(self, sequence: SequenceLike) -> bool:
        """Take everything from the last running sequence; False if none comes after `sequence`."""
        victim = next(other for other in reversed(self.running) if other.sequence_id not in self._preempted)
        if victim is sequence:
            return False
        self._preempt(victim)
        return True

    def _preempt(self, victim: SequenceLike) -> None:
        row = self._rows.pop(victim.sequence_id, None)
        if row is not None:
            self._budget += row.num_tokens
            self._free += self._taken_blocks.pop(victim.sequence_id)
        self._free += victim.exclusive_blocks
        self._preempted[victim.sequence_id] = None

    def _admit(self, sequence: SequenceLike) -> bool:
        """Start a waiting sequence if all of it fits; False ends admissions for this step."""
        if self._is_short_of_blocks or self._budget == 0 or self._num_running >= self._engine.max_num_seqs:
            return False
        block_size = self._engine.block_size
        left = sequence.num_tokens - sequence.cached_tokens
        is_preempting = bool(self._preempted)
        all_blocks = admission_blocks(sequence, left, block_size, preempting=is_preempting)
        if all_blocks > self._free - self._reserved:
            return False
        num_tokens = min(left, self._budget)
        self._reserved += all_blocks
        self._num_running += 1
        self._take(sequence, num_tokens, admission_blocks(sequence, num_tokens, block_size, preempting=is_preempting))
        return True

    def _take(self, sequence: SequenceLike, num_tokens: int, num_blocks: int) -> None:
        self._rows[sequence.sequence_id] = StepRow(sequence.sequence_id, num_tokens)
        self._taken_blocks[sequence.sequence_id] = num_blocks
        self._budget -= num_tokens
        self._free -= num_blocks
        self._reserved -= num_blocks


def is_prefill(sequence: SequenceLike) -> bool:
    """Whether a running sequence lacks more than the one token of a decode."""
    return sequence.num_tokens - sequence.computed_tokens > 1
