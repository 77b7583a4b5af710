"""Bytes over a socket, as they come: for requests that no client library would send."""

import asyncio
import re
from types import TracebackType
from typing import Self

DEADLINE_S = 10.0


class RawSocket:
    """A connection to a port of this machine, as an async context manager. Nothing is parsed."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.received = b""
        self.was_reset = False

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._writer.close()

    def send(self, data: bytes) -> None:
        """Without waiting."""
        self._writer.write(data)

    async def send_all(self, data: bytes) -> None:
        """Waits until the system has taken it; that the peer is gone is no error."""
        self._writer.write(data)
        try:
            await self._writer.drain()
        except ConnectionError:
            self.was_reset = True

    async def read_until(self, marker: bytes) -> bytes:
        """Everything received so far, once the marker is in it; fails at the end of the connection."""
        async with asyncio.timeout(DEADLINE_S):
            while marker not in self.received:
                data = await self._reader.read(1 << 16)
                assert data, f"the connection ended before {marker!r}: {self.received!r}"
                self.received += data
        return self.received

    async def read_to_end(self) -> bytes:
        """Everything received, once the peer has closed; `was_reset` tells how."""
        async with asyncio.timeout(DEADLINE_S):
            try:
                while data := await self._reader.read(1 << 16):
                    self.received += data
            except ConnectionError:
                self.was_reset = True
        return self.received

    def close(self) -> None:
        """Leave."""
        self._writer.close()

    def reset(self) -> None:
        """Leave at once, dropping what wasn't sent."""
        self._writer.transport.abort()


async def answer_to(port: int, *pieces: bytes) -> bytes:
    """What a server says to these bytes until it closes; each piece but the first is sent in a packet of its own."""
    async with RawSocket(port) as sock:
        for piece in pieces:
            await sock.send_all(piece)
            await asyncio.sleep(0)
        return await sock.read_to_end()


def statuses(received: bytes) -> list[int]:
    """The status of each answer, interim ones included."""
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", received)]
