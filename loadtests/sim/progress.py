"""What gateways hear of a replica's answers, and when, while many steps are one event."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Protocol

from policies.types import Call

from .events import Action
from .sequence import SimSequence
from .steps import Run

PROGRESS_EVERY_TOKENS = 16
"""As the gateway: it tells the core of a call's output in such steps."""


class Listener(Protocol):
    """The gateway's side of the connection; instants are when it hears."""

    def progressed(self, sequence: SimSequence, output_tokens: int, now_s: float) -> None:
        """Every 16 tokens, and at the first one."""
        ...

    def ended(self, sequence: SimSequence, now_s: float) -> None:
        """The whole answer has come."""
        ...

    def failed(self, call: Call, now_s: float) -> None:
        """The replica refused the call or broke off."""
        ...


def tell_of_progress(run: Run, listeners: Sequence[Listener], tell: Callable[[float, Action], None]) -> None:
    """Of the steps before the last, which speaks for itself: one event a step at which somebody's count is due.

    `tell`: has an action done when what happened at an instant is heard of.
    """
    _Progress(run, listeners, tell).go_on()


class _Progress:
    def __init__(self, run: Run, listeners: Sequence[Listener], tell: Callable[[float, Action], None]) -> None:
        self._run = run
        self._listeners = listeners
        self._tell = tell
        self._due: dict[int, list[tuple[SimSequence, int]]] = {}  # by step, counted round: who, with tokens before
        for sequence, _ in run.rows:
            output_tokens = sequence.output_tokens
            first = PROGRESS_EVERY_TOKENS - output_tokens % PROGRESS_EVERY_TOKENS
            self._due.setdefault(first, []).append((sequence, output_tokens))
        self._steps = self._steps_due(sorted(self._due))

    def _steps_due(self, offsets: Sequence[int]) -> Iterator[int]:
        for base in range(0, len(self._run.ends_s), PROGRESS_EVERY_TOKENS):
            for offset in offsets:
                yield base + offset

    def go_on(self) -> None:
        step = next(self._steps, None)
        if step is not None and step < len(self._run.ends_s):
            self._tell(self._run.ends_s[step - 1], partial(self._told, step))

    def _told(self, step: int, now_s: float) -> None:
        if step >= len(self._run.ends_s):
            return  # cut short
        for sequence, output_tokens in self._due[(step - 1) % PROGRESS_EVERY_TOKENS + 1]:
            if not sequence.is_aborted:
                self._listeners[sequence.gateway_index].progressed(sequence, output_tokens + step, now_s)
        self.go_on()
