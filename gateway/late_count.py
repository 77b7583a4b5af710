"""A count that comes after its request was queued on an estimate."""

import asyncio
from types import TracebackType
from typing import Self

from .attribution import Record
from .dispatcher import Place
from .request import Request
from .tokens import TokenCount


class LateCount:
    """The scope in which a request may still be counted. Leaving it cancels a count that nobody needs any more."""

    __slots__ = ("_exact", "_place", "_record", "_request")

    def __init__(self, exact: asyncio.Task[TokenCount] | None, record: Record) -> None:
        self._exact = exact
        self._record = record

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        exact, self._exact = self._exact, None
        if exact is not None:
            exact.cancel()

    def tell(self, place: Place, request: Request) -> None:
        """Where to tell the count when it comes: what waits there is put into a lane and ordered anew. Once."""
        if self._exact is not None:
            self._place, self._request = place, request
            self._exact.add_done_callback(self._came)

    def _came(self, exact: asyncio.Task[TokenCount]) -> None:
        if self._exact is None:
            return  # the request is over
        counted, record, place = exact.result(), self._record, self._place
        record.prompt_tokens, record.prompt_tokens_source = counted.prompt_tokens, counted.source
        place.recount(self._request._replace(prompt_tokens=counted.prompt_tokens))
        if place.admitted is not None:
            record.lane, record.lane_why = place.admitted.lane, place.admitted.lane_why
            record.own_lane = place.admitted.own_lane


_NOTHING = LateCount(None, Record("", 0.0))


def late_count(counted: TokenCount | None, record: Record) -> LateCount:
    """The scope for a request that was counted, or estimated, so. What has nothing to come shares one."""
    return _NOTHING if counted is None or counted.exact is None else LateCount(counted.exact, record)
