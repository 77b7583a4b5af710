"""What the client saw of one request: instants, sizes, headers, and how it ended."""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any


@dataclass(slots=True)
class Answer:
    """One request as the client saw it. Instants are seconds of one monotonic clock; None: never happened.

    `scheduled_s` is when the plan wanted it sent, `sent_s` when it was, `head_s` the response head, `chunk_s` the
    arrivals of chunks with non-empty text, `end_s` the end of the body or the failure. `error` is None for a complete
    answer, else a kind: "connect", "timeout", "cut", "reset", "http-STATUS", "stream-error", "protocol", "run-ended",
    "left" (the client hung up as planned).
    """

    index: int
    lane: str
    prompt_tokens: int
    output_tokens: int
    scheduled_s: float
    sent_s: float
    head_s: float | None = None
    end_s: float | None = None
    status: int | None = None
    error: str | None = None
    finish_reason: str | None = None
    usage: dict[str, Any] | None = None
    is_reused_connection: bool = False
    chunk_s: list[float] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def is_ok(self) -> bool:
        """Complete, with at least one chunk of text."""
        return self.error is None and bool(self.chunk_s)

    @property
    def ttft_s(self) -> float | None:
        """From sending to the first non-empty text."""
        return self.chunk_s[0] - self.sent_s if self.chunk_s else None

    @property
    def e2e_s(self) -> float | None:
        """From sending to the end of the body, for complete answers."""
        return self.end_s - self.sent_s if self.error is None and self.end_s is not None else None

    @property
    def received_tokens(self) -> int:
        """Output tokens by `usage` where the server said, else one a chunk."""
        counted = (self.usage or {}).get("completion_tokens")
        return counted if isinstance(counted, int) else len(self.chunk_s)

    @property
    def received_prompt_tokens(self) -> int:
        """Prompt tokens by `usage` where the server said, else as planned."""
        counted = (self.usage or {}).get("prompt_tokens")
        return counted if isinstance(counted, int) else self.prompt_tokens

    @property
    def tpot_s(self) -> float | None:
        """(last - first text) / (output tokens - 1); None under two tokens."""
        if not self.is_ok or self.received_tokens < 2:
            return None
        return (self.chunk_s[-1] - self.chunk_s[0]) / (self.received_tokens - 1)

    @property
    def itl_s(self) -> list[float]:
        """Gaps between chunks with text."""
        return [later - earlier for earlier, later in pairwise(self.chunk_s)]

    @property
    def lag_s(self) -> float:
        """How late the client itself sent the request."""
        return self.sent_s - self.scheduled_s

    def to_dict(self, origin_s: float) -> dict[str, Any]:
        """Plain values with instants from `origin_s`; chunk instants are left to the summary figures."""

        def since(instant_s: float | None) -> float | None:
            return None if instant_s is None else round(instant_s - origin_s, 6)

        return {
            "index": self.index,
            "lane": self.lane,
            "prompt_tokens": self.received_prompt_tokens,
            "output_tokens": self.received_tokens,
            "scheduled_s": since(self.scheduled_s),
            "sent_s": since(self.sent_s),
            "first_s": since(self.chunk_s[0] if self.chunk_s else None),
            "end_s": since(self.end_s),
            "status": self.status,
            "error": self.error,
            "headers": self.headers,
        }
