"""A model of an engine, small enough to be obviously right, for composers and rules to be tried on."""

from dataclasses import dataclass, field

from policies.batching import Composer, check_plan
from policies.batching.blocks import blocks_for


@dataclass
class Seq:
    """Implements `SequenceLike`; blocks are never shared here."""

    sequence_id: int
    num_tokens: int
    arrival_s: float = 0.0
    priority: int = 0
    computed_tokens: int = 0
    held_blocks: int = 0
    cached_tokens: int = 0
    cached_idle_blocks: int = 0
    target_tokens: int = 0
    prompt_tokens: int = 0
    """0: all its tokens at first."""

    def __post_init__(self) -> None:
        self.prompt_tokens = self.prompt_tokens or self.num_tokens

    @property
    def exclusive_blocks(self) -> int:
        return self.held_blocks


@dataclass
class World:
    """Implements `EngineLike`, runs plans, and generates one token whenever a sequence is computed to its end."""

    num_blocks: int
    max_num_batched_tokens: int = 16
    max_num_seqs: int = 4
    block_size: int = 4
    running: list[Seq] = field(default_factory=list)
    waiting: list[Seq] = field(default_factory=list)
    finished: list[int] = field(default_factory=list)
    num_preempted: int = 0
    now_s: float = 0.0
    step_s: float = 0.1

    @property
    def free_blocks(self) -> int:
        return self.num_blocks - sum(sequence.held_blocks for sequence in self.running)

    def add(self, sequence: Seq) -> None:
        self.waiting.append(sequence)
        self.waiting.sort(key=lambda other: (other.arrival_s, other.sequence_id))

    def step(self, composer: Composer) -> None:
        """Plan, check, run."""
        plan = composer.compose(self)
        check_plan(self, plan)
        self.now_s += self.step_s
        self.num_preempted += len(plan.preempt)
        for sequence in [sequence for sequence in self.running if sequence.sequence_id in plan.preempt]:
            self.running.remove(sequence)
            sequence.computed_tokens = sequence.held_blocks = 0
            self.add(sequence)
        for row in plan.rows:
            for sequence in [sequence for sequence in self.waiting if sequence.sequence_id == row.sequence_id]:
                self.waiting.remove(sequence)
                self.running.append(sequence)
                self.running.sort(key=lambda other: (other.arrival_s, other.sequence_id))
            [sequence] = [sequence for sequence in self.running if sequence.sequence_id == row.sequence_id]
            sequence.computed_tokens += row.num_tokens
            sequence.held_blocks = max(sequence.held_blocks, blocks_for(sequence.computed_tokens, self.block_size))
            if sequence.computed_tokens == sequence.num_tokens:
                sequence.num_tokens += 1
            if sequence.num_tokens >= sequence.target_tokens:
                self.running.remove(sequence)
                self.finished.append(sequence.sequence_id)
        assert self.free_blocks >= 0
        assert len(self.running) <= self.max_num_seqs
