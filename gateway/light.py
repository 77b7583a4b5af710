"""The place of a request that costs no generation: it goes at once, holds no slot, and isn't in the core's books."""

from collections.abc import Collection, Iterable
from types import TracebackType
from typing import Protocol, Self

from policies.types import Call, Lane, Outcome, Reason, ReplicaLike, RequestLike, Sample

from .dispatcher import Dispatcher, Place
from .overload_errors import Overloaded


class Replicas(Protocol):
    def all(self) -> Iterable[ReplicaLike]: ...


class LightPlace(Place):
    """Like a `Place`, with nothing in it. Each call goes to the replica with the least in flight."""

    __slots__ = ("_exclude", "_replicas")

    def __init__(self, dispatcher: Dispatcher, request: RequestLike, replicas: Replicas) -> None:
        super().__init__(dispatcher, request)
        self._replicas = replicas
        self._exclude: Collection[str] = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.on_stop = None

    async def next_call(self) -> Call:
        """Raises Overloaded where no replica can take it."""
        request = self.request
        able = [
            replica.replica_id
            for replica in self._replicas.all()
            if replica.is_available
            and request.model in replica.models
            and (request.feature is None or request.feature in replica.features)
            and replica.replica_id not in self._exclude
        ]
        if not able:
            raise Overloaded(Reason.NO_REPLICA)
        replica_id = min(able, key=self._dispatcher.core.in_flight_tokens)
        self.call = Call(0, request, replica_id, None, Lane.INTERACTIVE, "least in flight", None)
        return self.call

    def first_token(self) -> None:
        pass

    def progress(self, output_tokens: int) -> None:
        pass

    def end_call(self, outcome: Outcome, sample: Sample | None = None) -> None:
        self.call = None

    def requeue(self, exclude: Collection[str]) -> None:
        self._exclude = exclude
