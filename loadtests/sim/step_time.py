"""How long one step of an engine takes."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from ..errors import LoadtestError


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of a step: affine in its tokens, sequences and context, bilinear where a prompt attends to itself.

    `base_s`: reading the weights, launching kernels. `token_s`: a computed token. `sequence_s`: a sequence in the
    step (sampling, detokenizing). `context_s`: a token of context that a decode reads. `pair_s`: a pair of a prompt
    token computed and a token before it. `prefill_token_s`: further seconds of a prompt token.
    """

    base_s: float
    token_s: float
    sequence_s: float = 0.0
    context_s: float = 0.0
    pair_s: float = 0.0
    prefill_token_s: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            if not 0.0 <= getattr(self, field.name) < float("inf"):
                raise LoadtestError(f"step time: {field.name}: {getattr(self, field.name)!r} must be 0 or more seconds")
        if self.base_s + self.token_s <= 0.0:
            raise LoadtestError("step time: base_s and token_s: a step must take time")

    def seconds(self, tokens: int, sequences: int, context_tokens: int, pairs: float, prefill_tokens: int) -> float:
        """A step of `tokens` tokens of `sequences` sequences, whose decodes read `context_tokens` in all."""
        return (
            self.base_s
            + self.token_s * tokens
            + self.sequence_s * sequences
            + self.context_s * context_tokens
            + self.pair_s * pairs
            + self.prefill_token_s * prefill_tokens
        )

    def to_dict(self) -> dict[str, float]:
        """Plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Self:
        """Raises `LoadtestError` naming a key that is missing, unknown or no number of seconds."""
        known = [field.name for field in fields(cls)]
        for key, value in raw.items():
            if key not in known:
                raise LoadtestError(f"step time: {key}: unknown; allowed: {', '.join(known)}")
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise LoadtestError(f"step time: {key}: {value!r} must be 0 or more seconds")
        for key in ("base_s", "token_s"):
            if key not in raw:
                raise LoadtestError(f"step time: {key}: missing")
        return cls(**raw)
