"""The port: how a long prefill is cut into calls that short requests can pass."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from .types import RequestLike


@dataclass(frozen=True, slots=True)
class RunningPrefill:
    """A call that has had no first token yet."""

    call_id: int
    request: RequestLike
    replica_id: str
    slice_end_tokens: int | None


class Slicing(Protocol):
    @property
    def name(self) -> str: ...

    def slice_end_tokens(self, request: RequestLike, computed_tokens: int, others_wait: bool) -> int | None:
        """Up to which token of the prompt the next call goes; None: the whole request as the client sent it.

        `computed_tokens`: what earlier slices left in the replica's cache. A slice ends above it and inside the prompt.
        """
        ...

    def stop(self, running: Iterable[RunningPrefill], others_wait: bool) -> Sequence[int]:
        """Call ids of running prefills to close now, so that they go on in slices."""
        ...


class WholeCalls:
    """Nothing is cut: every request is one call."""

    name = "whole"

    def slice_end_tokens(self, request: RequestLike, computed_tokens: int, others_wait: bool) -> int | None:
        return None

    def stop(self, running: Iterable[RunningPrefill], others_wait: bool) -> Sequence[int]:
        return ()
