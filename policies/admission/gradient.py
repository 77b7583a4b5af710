"""Caps that follow how fast replicas are."""

from collections.abc import Mapping

from ..types import ReplicaLike
from .bounds import highest_cap
from .port import Answered
from .unloaded import Slowness, Unloaded

_KNOWN_AFTER_CALLS = 32
"""Before so many, nobody knows what is slow."""
_WINDOW_CALLS = 16
_GROWTH = 0.5
"""Of the cap, at each window that reached it, where calls are as fast as ever; less the slower they are."""
_SMALLEST_STEP = 0.5


class GradientCaps:
    """The cap of tokens in flight shrinks where calls take longer than the replica needs, and grows where they don't.

    After Netflix's concurrency-limits (Gradient2): the cap is multiplied by tolerance / slowness, at most halved, and
    left alone while less than half of it is used. Other than there, slowness isn't latency, which measures how long
    prompts and answers are: see `Unloaded`. And the cap grows only where it was in the way: in most calls of a window,
    one more like it wouldn't have fit. What began before the cap shrank says nothing against the smaller one.

    It begins at the highest, where that is known: see `highest_cap`. The prefill bound is fixed, as with `fixed`.
    """

    name = "gradient"

    def __init__(self, *, in_flight_tokens: int, min_tokens: int, tolerance: float, prefill_tokens: int) -> None:
        """`in_flight_tokens`: where it begins with a replica of which nothing is known. `min_tokens`: the lowest cap.
        `tolerance`: how many times longer than unloaded calls may take.
        """
        self._in_flight_tokens = in_flight_tokens
        self._min_tokens = min_tokens
        self._tolerance = tolerance
        self._prefill_tokens = prefill_tokens
        self._caps: dict[str, _Cap] = {}
        self._reasons: dict[str, str] = {}

    @property
    def reasons(self) -> Mapping[str, str]:
        return self._reasons

    def max_in_flight_tokens(self, replica: ReplicaLike) -> int:
        cap, highest_tokens = self._caps.get(replica.replica_id), highest_cap(replica)
        if cap is None or cap.tokens is None:
            return self._in_flight_tokens if highest_tokens is None else highest_tokens
        return cap.tokens if highest_tokens is None or cap.tokens < highest_tokens else highest_tokens

    def max_prefill_tokens(self, replica: ReplicaLike) -> int:
        own_tokens = replica.max_prefill_tokens
        return self._prefill_tokens if own_tokens is None else own_tokens

    def answered(self, replica: ReplicaLike, call: Answered) -> None:
        cap = self._caps.get(replica.replica_id)
        if cap is None:
            cap = self._caps[replica.replica_id] = _Cap()
        is_known = cap.unloaded.num_calls >= _KNOWN_AFTER_CALLS
        tokens = self.max_in_flight_tokens(replica)
        is_window = is_known and call.began_s >= cap.shrunk_s
        cap.unloaded.compare(call.timing, cap.slowness if is_window else Slowness())
        if is_window:
            cap.num_calls += 1
            cap.num_reached += call.in_flight_tokens + call.slot_tokens > tokens
            if call.in_flight_tokens > cap.most_tokens:
                cap.most_tokens = call.in_flight_tokens
            if cap.num_calls == _WINDOW_CALLS:
                self._move(cap, replica, tokens, call.ended_s)

    def forget(self, replica_id: str) -> None:
        self._caps.pop(replica_id, None)
        self._reasons.pop(replica_id, None)

    def _move(self, cap: "_Cap", replica: ReplicaLike, tokens: int, now_s: float) -> None:
        slowness, highest_tokens = cap.slowness.ratio, highest_cap(replica)
        if slowness > self._tolerance:
            used_tokens = min(tokens, cap.most_tokens)
            lowered = int(used_tokens * max(_SMALLEST_STEP, self._tolerance / slowness))
            moved = min(tokens, max(self._min_tokens, lowered))
            cap.shrunk_s = now_s
            why = f"lowered: calls took {slowness:.2f} times as long as unloaded"
        elif 2 * cap.num_reached > cap.num_calls:
            ease = min(1.0, (self._tolerance - slowness) / (self._tolerance - 1.0))
            moved = tokens + int(tokens * _GROWTH * ease)
            why = f"raised: reached, and calls took {slowness:.2f} times as long as unloaded"
        else:
            moved, why = tokens, ""
        if highest_tokens is not None and moved > highest_tokens:
            moved = highest_tokens
        if moved != tokens:
            cap.tokens = moved
            self._reasons[replica.replica_id] = why
        cap.begin_window()


class _Cap:
    """Of one replica. `tokens` None: it never moved."""

    __slots__ = ("most_tokens", "num_calls", "num_reached", "shrunk_s", "slowness", "tokens", "unloaded")

    def __init__(self) -> None:
        self.tokens: int | None = None
        self.unloaded = Unloaded()
        self.shrunk_s = float("-inf")
        self.begin_window()

    def begin_window(self) -> None:
        self.slowness = Slowness()
        self.num_calls = self.num_reached = self.most_tokens = 0
