"""What a replica of the soak does with a request, drawn from the run's seed, the request's number and its own name."""

import random
from dataclasses import dataclass
from enum import StrEnum


class Fault(StrEnum):
    """How a call goes. Those up to `HALF_HEAD` come before anything of an answer could be sent on."""

    NONE = "none"
    RESET = "reset"
    CLOSE = "close"
    HANG = "hang"
    GARBAGE = "garbage"
    HALF_HEAD = "half-head"
    EARLY = "early"
    """400 and the connection's end, before the body was read."""
    REFUSED = "refused"
    BROKEN = "broken"
    BUSY = "busy"
    UNAVAILABLE = "unavailable"
    RESET_INSIDE = "reset-inside"
    CLOSE_INSIDE = "close-inside"
    HANG_INSIDE = "hang-inside"
    BAD_FRAMING = "bad-framing"
    ERROR_EVENT = "error-event"
    """In a stream that is well framed. Whole answers can't have one."""
    NO_DONE = "no-done"
    TRICKLE = "trickle"


STATUSES = {Fault.EARLY: 400, Fault.REFUSED: 422, Fault.BROKEN: 500, Fault.BUSY: 429, Fault.UNAVAILABLE: 503}
WHOLE = frozenset({Fault.NONE, Fault.ERROR_EVENT, Fault.NO_DONE, Fault.TRICKLE})
"""Those that end an answer properly."""
# Of a thousand calls. Hanging ones hold a connection for seconds.
_WEIGHTS = {
    Fault.RESET: 8,
    Fault.CLOSE: 8,
    Fault.HANG: 2,
    Fault.GARBAGE: 5,
    Fault.HALF_HEAD: 5,
    Fault.EARLY: 5,
    Fault.REFUSED: 10,
    Fault.BROKEN: 10,
    Fault.BUSY: 12,
    Fault.UNAVAILABLE: 12,
    Fault.RESET_INSIDE: 8,
    Fault.CLOSE_INSIDE: 8,
    Fault.HANG_INSIDE: 3,
    Fault.BAD_FRAMING: 8,
    Fault.ERROR_EVENT: 8,
    Fault.NO_DONE: 15,
    Fault.TRICKLE: 10,
}
_FAULTS = (Fault.NONE, *_WEIGHTS)
_CUMULATED = [1000 - sum(_WEIGHTS.values())]
for _weight in _WEIGHTS.values():
    _CUMULATED.append(_CUMULATED[-1] + _weight)


@dataclass(frozen=True, slots=True)
class Conduct:
    """How one call is answered.

    `num_pieces` words or events, `pause_s` before each, `delay_s` before the head; `cut` is a share of the answer, for
    faults in its middle. `splits`: TCP packets end anywhere, in chunk sizes too. `goes_stale`: afterwards the
    connection ends, when it is idle or when the next request comes on it.
    """

    fault: Fault
    num_pieces: int
    delay_s: float
    pause_s: float
    cut: float
    splits: bool
    is_chunked: bool
    goes_stale: str


def conduct_of(seed: str, number: int, replica: str) -> Conduct:
    """The same for the same three, whenever it is asked."""
    rng = random.Random(f"{seed}/{number}/{replica}")
    fault = rng.choices(_FAULTS, cum_weights=_CUMULATED)[0]
    return Conduct(
        fault=fault,
        num_pieces=rng.choice((1, 2, 3, 5, 8, 13, 21)),
        delay_s=rng.choice((0.0, 0.0, 0.0, 0.01, 0.05, 0.2)),
        pause_s=rng.choice((0.0, 0.0, 0.002, 0.01)),
        cut=rng.random(),
        splits=rng.random() < 0.1,
        is_chunked=rng.random() < 0.3,
        goes_stale=rng.choices(("", "idle", "taken"), (90, 5, 5))[0],
    )
