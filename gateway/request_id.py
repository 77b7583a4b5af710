"""Names of requests, which nobody can guess: they are in headers, logs, and the address of a request's timing."""

import random

_BITS = 128
_DIGITS = _BITS // 4
_NUM_AT_ONCE = 64


class RequestIds:
    """Makes them from `rng`, many at once: a call to the system's generator costs more than all the rest of a name."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._ready: list[str] = []

    def next(self) -> str:
        """One that was never given before."""
        if not self._ready:
            digits = f"{self._rng.getrandbits(_BITS * _NUM_AT_ONCE):0{_DIGITS * _NUM_AT_ONCE}x}"
            self._ready = [f"tg-{digits[at : at + _DIGITS]}" for at in range(0, len(digits), _DIGITS)]
        return self._ready.pop()
