"""What a simulated engine is."""

from dataclasses import dataclass, replace

from .step_time import StepTime


@dataclass(frozen=True, slots=True)
class ReplicaModel:
    """What an engine is: its speed, its memory and its limits.

    `chunk_tokens`: the grain of prefix ids, a multiple of `block_size` (Mooncake's traces: 512).
    """

    step_time: StepTime
    num_blocks: int
    block_size: int = 16
    chunk_tokens: int = 512
    max_num_batched_tokens: int = 2048
    max_num_seqs: int = 256
    enable_prefix_caching: bool = True

    @property
    def capacity_tokens(self) -> int:
        """Tokens that the KV cache holds."""
        return self.num_blocks * self.block_size

    def with_capacity(self, tokens: int) -> "ReplicaModel":
        """The same engine with memory for so many tokens."""
        return replace(self, num_blocks=max(1, tokens // self.block_size))
