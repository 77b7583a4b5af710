"""Skip-join multi-level feedback queue (FastServe, arXiv 2305.05920): what has run least goes first."""

import math
from collections.abc import Sequence
from operator import attrgetter

from ..types import EngineLike, SequenceLike, StepPlan
from .blocks import admission_blocks, outstanding_blocks
from .order import StepOrder
from .step import StepInTheMaking, is_prefill


class SkipJoinMlfq:
    """Levels with quanta q₀·2^i seconds of work. A sequence enters at the first whose quantum its prompt fits in,
    skipping those above, and sinks a level with each quantum that it uses up; the last level has no end. Higher levels
    go first, within one the order decides. So short answers pass long ones that nobody knew to be long.

    Decodes first and prefills cut to the token budget, as `chunked`. Where a waiting sequence finds no place, running
    ones of lower levels make it, last ones first: they lose their memory and are computed anew later. Where FastServe
    swaps memory to the host, this pays with recomputation.

    Starvation bound: with every `promote_after_s` of waiting a sequence rises a level, for good. After as many of them
    as there are levels above it, at most `(num_levels − 1) · promote_after_s`, only those pass it that came before it.
    Work is counted in tokens times their seconds, so nothing has to be remembered from step to step, and a recomputed
    prompt doesn't count again.
    """

    def __init__(
        self,
        order: StepOrder,
        *,
        first_quantum_s: float,
        num_levels: int,
        promote_after_s: float,
        prefill_s_per_token: float,
        decode_s_per_token: float,
    ) -> None:
        """Seconds all above 0, at least one level."""
        self._order = order
        self._quanta_s = [first_quantum_s * 2.0**level for level in range(num_levels - 1)]
        self._promote_after_s = promote_after_s
        self._prefill_s_per_token = prefill_s_per_token
        self._decode_s_per_token = decode_s_per_token

    def level(self, sequence: SequenceLike, now_s: float) -> int:
        """0 goes first."""
        prefill_s = self._prefill_s_per_token * sequence.prompt_tokens
        decode_s = self._decode_s_per_token * (sequence.num_tokens - sequence.prompt_tokens)
        level, last = 0, len(self._quanta_s)
        while level < last and prefill_s > self._quanta_s[level]:
            level += 1
        left_s = prefill_s + decode_s
        while level < last and left_s > self._quanta_s[level]:
            left_s -= self._quanta_s[level]
            level += 1
        computed_s = self._prefill_s_per_token * min(sequence.computed_tokens, sequence.prompt_tokens)
        served_s = (prefill_s if decode_s else computed_s) + decode_s
        waited_s = max(0.0, now_s - sequence.arrival_s - served_s)
        return max(0, level - math.floor(waited_s / self._promote_after_s))

    def compose(self, engine: EngineLike) -> StepPlan:
        """Plan the next step; see `Composer`."""
        now_s = engine.now_s
        levels = {
            sequence.sequence_id: self.level(sequence, now_s)
            for sequences in (engine.running, engine.waiting)
            for sequence in sequences
        }

        def by_level(sequence: SequenceLike) -> tuple[float, ...]:
            return (levels[sequence.sequence_id], *self._order(sequence))

        step = StepInTheMaking(engine, by_level)
        step.displace(self._victims(engine, step.running, by_level))
        step.decode()
        step.prefill()
        plan = step.plan()
        # Levels change with time alone. What is computed is the same then, and should be told of in the same order.
        return StepPlan(rows=tuple(sorted(plan.rows, key=attrgetter("sequence_id"))), preempt=plan.preempt)

    def _victims(self, engine: EngineLike, running: Sequence[SequenceLike], by_level: StepOrder) -> list[SequenceLike]:
        """Running sequences, `running` being in order, that waiting ones of higher levels need the place of.

        Only for those whose turn comes before every running prefill's and for which tokens are left, so that nobody is
        preempted in vain.
        """
        places = _Places(engine, running)
        prefill_keys = [by_level(sequence) for sequence in running if is_prefill(sequence)]
        first_prefill = min(prefill_keys, default=(math.inf,))
        budget = engine.max_num_batched_tokens - (len(running) - len(prefill_keys))
        for sequence in sorted(engine.waiting, key=by_level):
            key = by_level(sequence)
            if budget <= 0 or key > first_prefill or not places.make(sequence, key[0], by_level):
                break
            budget -= sequence.num_tokens - sequence.cached_tokens
        return places.victims


class _Places:
    """What would be free if some running sequences weren't there."""

    def __init__(self, engine: EngineLike, running: Sequence[SequenceLike]) -> None:
        self.victims: list[SequenceLike] = []
        self._block_size = engine.block_size
        self._num_seqs = engine.max_num_seqs - len(running)
        self._blocks = engine.free_blocks - sum(self._needed_blocks(sequence) for sequence in running)
        self._cached_blocks = 0  # what those placed so far cost more in a step that preempts
        self._left = list(running)

    def make(self, sequence: SequenceLike, level: float, by_level: StepOrder) -> bool:
        """A place for a waiting sequence, if need be of running ones that are below its level; False: there is none."""
        num_tokens = sequence.num_tokens - sequence.cached_tokens
        plain = admission_blocks(sequence, num_tokens, self._block_size, preempting=bool(self.victims))
        if self._num_seqs < 1 or plain > self._blocks:
            preempting = admission_blocks(sequence, num_tokens, self._block_size, preempting=True)
            num_seqs, num_blocks, left = self._num_seqs, self._blocks - self._cached_blocks, list(self._left)
            victims = []
            while (num_seqs < 1 or preempting > num_blocks) and left and by_level(left[-1])[0] > level:
                victim = left.pop()
                victims.append(victim)
                num_seqs += 1
                num_blocks += victim.exclusive_blocks + self._needed_blocks(victim)
            if num_seqs < 1 or preempting > num_blocks:
                return False
            self.victims += victims
            self._num_seqs, self._blocks, self._left, self._cached_blocks = num_seqs, num_blocks, left, 0
            plain = preempting
        elif not self.victims:
            self._cached_blocks += admission_blocks(sequence, num_tokens, self._block_size, preempting=True) - plain
        self._num_seqs -= 1
        self._blocks -= plain
        return True

    def _needed_blocks(self, sequence: SequenceLike) -> int:
        return outstanding_blocks(sequence, self._block_size)
