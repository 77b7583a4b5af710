"""What the engine says about a request: a token, an end, or a failure. Immutable, so that it may cross threads."""

from dataclasses import dataclass
from enum import StrEnum

from .sampler import SampledToken


class FinishReason(StrEnum):
    """In OpenAI's words."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class Timing:
    """When things happened to one choice. Instants are monotonic seconds."""

    arrival_s: float
    scheduled_s: float
    first_token_s: float
    last_token_s: float
    cached_prompt_tokens: int

    @property
    def queue_s(self) -> float:
        return self.scheduled_s - self.arrival_s

    @property
    def prefill_s(self) -> float:
        """From being scheduled to the first token, recomputation after a preemption included."""
        return self.first_token_s - self.scheduled_s

    @property
    def decode_s(self) -> float:
        return self.last_token_s - self.first_token_s


@dataclass(frozen=True, slots=True)
class TokenOutput:
    """One sampled token of one choice, and the text that became certain with it (maybe none)."""

    request_id: str
    choice: int
    token: SampledToken
    text: str
    num_output_tokens: int
    timing: Timing
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    """What stopped it: the stop string or token id that was asked for; None for an end-of-sequence token."""


@dataclass(frozen=True, slots=True)
class ErrorOutput:
    """The request failed as a whole; nothing more comes. `is_stopped`: because the engine ends, not by its fault."""

    request_id: str
    message: str
    is_stopped: bool = False


Output = TokenOutput | ErrorOutput
