"""httpx over the gateway's own connections: for questions to replicas, which are cancelled as requests are.

httpcore's pool keeps a connection whose request was cancelled while it was made, busy for ever: after a hundred nobody
is asked anything any more. Here a connection belongs to an exchange, or is idle and closed by itself after a while.
"""

from collections.abc import AsyncIterator

import httpx

from .upstream import Exchange, Upstream
from .upstream_errors import ConnectFailed, UpstreamError, UpstreamTimeout

LIMIT_S = 60.0
"""Of each wait. Whoever asks bounds the whole; httpx's own timeouts aren't looked at."""


class UpstreamTransport(httpx.AsyncBaseTransport):
    """HTTP/1.1 to any number of origins, each with connections of its own. Belongs to one event loop."""

    def __init__(self) -> None:
        self._by_origin: dict[tuple[str, str, int | None], Upstream] = {}

    @property
    def num_open(self) -> int:
        """Connections that exist, idle ones included."""
        return sum(upstream.num_open for upstream in self._by_origin.values())

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Raises httpx's errors."""
        exchange = self._upstream(request.url).exchange(_head(request), await request.aread())
        try:
            await exchange.send()
            status, headers = await exchange.head()
        except UpstreamError as error:
            exchange.close()
            raise _as_httpx(error) from error
        except BaseException:
            exchange.close()
            raise
        return httpx.Response(status, headers=headers, stream=_Body(exchange))

    async def aclose(self) -> None:
        for upstream in self._by_origin.values():
            upstream.close()

    def _upstream(self, url: httpx.URL) -> Upstream:
        origin = (url.scheme, url.host, url.port)
        if (upstream := self._by_origin.get(origin)) is None:
            try:
                upstream = Upstream(
                    f"{url.scheme}://{url.netloc.decode('ascii')}",
                    connect_s=LIMIT_S,
                    first_byte_s=LIMIT_S,
                    gap_s=LIMIT_S,
                )
            except ValueError as error:
                raise httpx.UnsupportedProtocol(str(error)) from error
            self._by_origin[origin] = upstream
        return upstream


class _Body(httpx.AsyncByteStream):
    """The body of an answer as it comes. Closing it before its end closes the connection."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            while piece := await self._exchange.read():
                yield piece
        except UpstreamError as error:
            raise _as_httpx(error) from error

    async def aclose(self) -> None:
        self._exchange.close()


def _head(request: httpx.Request) -> bytes:
    lines = [b"%b %b HTTP/1.1" % (request.method.encode("ascii"), request.url.raw_path)]
    lines += [b"%b: %b" % header for header in request.headers.raw]
    return b"\r\n".join([*lines, b"", b""])


def _as_httpx(error: UpstreamError) -> httpx.TransportError:
    kind: type[httpx.TransportError] = httpx.RemoteProtocolError
    if isinstance(error, ConnectFailed):
        kind = httpx.ConnectTimeout if isinstance(error.__cause__, TimeoutError) else httpx.ConnectError
    elif isinstance(error, UpstreamTimeout):
        kind = httpx.ReadTimeout
    return kind(error.message)
