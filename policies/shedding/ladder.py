"""A ladder of rungs: admitted, deferred, downgraded to background work, turned away; the dearest class goes first."""

from ..types import Lane, Reason, RequestLike
from .port import ADMIT, Backlog, Ruling

_STARTS_AT = {Lane.BACKGROUND: 0, Lane.OVERLONG: 0, Lane.LONG: 0, Lane.STANDARD: 1, Lane.INTERACTIVE: 1}
_DECLARED_STARTS_AT = 2
_DOWNGRADED = 2


class Ladder:
    """The level rises with the work that waits. Each class goes a rung further with each level, from its own on:
    `long` and `overlong` from level 0, what is `standard` or `interactive` by its size from 1, and what its caller
    declared interactive from 2. So at level 1 the long is deferred; at 2 it is downgraded and the next deferred; at 3
    it is turned away, the next downgraded, and the declared deferred.

    The level is the work that waits (background apart) in steps of `step_s` seconds of it. For all but the declared it
    is also that of the interactive lane alone, in steps of `interactive_step_s`: nobody there is to wait long because
    of others. Background work is turned away where long work is, and nothing is downgraded once `max_background_s` of
    it wait: it is turned away then.

    Deferred: ordered as if it had come `defer_s` later. Downgraded: it goes where nobody else waits, or after
    background work's own longest wait.
    """

    name = "ladder"

    def __init__(self, *, step_s: float, interactive_step_s: float, defer_s: float, max_background_s: float) -> None:
        """Seconds, all above 0."""
        self._step_s = step_s
        self._interactive_step_s = interactive_step_s
        self._max_background_s = max_background_s
        self._deferred = Ruling(defer_s=defer_s)
        self._downgraded = Ruling(lane=Lane.BACKGROUND)
        self._turned_away = Ruling(Reason.OVERLOAD)

    def rule(self, request: RequestLike, lane: Lane, backlog: Backlog) -> Ruling:
        level = backlog.turns_s / self._step_s
        if lane is Lane.INTERACTIVE and request.declared_lane is Lane.INTERACTIVE:
            rung = int(level) - _DECLARED_STARTS_AT
        else:
            rung = int(max(level, backlog.interactive_s / self._interactive_step_s)) - _STARTS_AT[lane]
        if rung <= 0 or (lane is Lane.BACKGROUND and rung <= _DOWNGRADED):
            return ADMIT
        if rung < _DOWNGRADED:
            return self._deferred
        if rung == _DOWNGRADED and backlog.background_s < self._max_background_s:
            return self._downgraded
        return self._turned_away
