"""Calls of which nothing has come back yet: all that can still be sent elsewhere when their replica hangs."""

from collections import Counter
from collections.abc import Callable

from .upstream import Exchange


class UnansweredCall:
    """`may_move` says, and takes what it costs, whether the request may go to another replica. `is_given_up`: it was
    closed here, so that it does."""

    __slots__ = ("_may_move", "exchange", "is_given_up")

    def __init__(self, exchange: Exchange, may_move: Callable[[], bool]) -> None:
        self.exchange = exchange
        self._may_move = may_move
        self.is_given_up = False

    def give_up(self) -> None:
        """Close it, unless something of an answer has come or nobody else may take the request."""
        if not self.is_given_up and not self.exchange.has_answered and self._may_move():
            self.is_given_up = True
            self.exchange.stop()


class UnansweredCalls:
    """All of them, by replica. Belongs to the event loop."""

    def __init__(self) -> None:
        self._by_replica: dict[str, set[UnansweredCall]] = {}
        self._num_answered: Counter[str] = Counter()

    def add(self, replica_id: str, exchange: Exchange, may_move: Callable[[], bool]) -> UnansweredCall:
        """A call begins; whoever adds it removes it, at its answer's head or its end."""
        call = UnansweredCall(exchange, may_move)
        calls = self._by_replica.get(replica_id)
        if calls is None:
            calls = self._by_replica[replica_id] = set()
        calls.add(call)
        return call

    def answered(self, replica_id: str, call: UnansweredCall) -> None:
        """The head of its answer has come."""
        self._num_answered[replica_id] += 1
        self._by_replica[replica_id].discard(call)

    def remove(self, replica_id: str, call: UnansweredCall) -> None:
        """May be repeated."""
        self._by_replica[replica_id].discard(call)

    def listen(self, replica_id: str) -> Callable[[], bool]:
        """Begins to listen: what is returned says whether calls have waited for this replica ever since, and none of
        its calls was answered meanwhile."""
        num_answered = self._num_answered[replica_id]
        waiting = tuple(self._by_replica.get(replica_id, ()))

        def is_silent() -> bool:
            still = self._by_replica.get(replica_id, ())
            return self._num_answered[replica_id] == num_answered and any(
                call in still and not call.exchange.has_answered for call in waiting
            )

        return is_silent

    def give_up(self, replica_id: str) -> None:
        """The replica hangs: whoever waits for it sees UpstreamClosed, if another one may be asked."""
        for call in tuple(self._by_replica.get(replica_id, ())):
            call.give_up()
