"""A replica of the soak, in a process of its own: `python -m loadtests.bars.soak.replica PORT NAME SEED JOURNAL`.

It misbehaves as `faults` says, and writes a line into its journal when a call is whole here and when it ends, with
what became of it. The journal is appended to without buffering, so that it survives the process's sudden death.
"""

import asyncio
import json
import os
import random
import socket
import struct
import sys
from collections.abc import AsyncIterator

import uvloop

from .faults import STATUSES, WHOLE, Conduct, Fault, conduct_of

MODELS = ("m1", "m2")
MARK = "soak-replica"
"""In every error that is a replica's own, so that it can be told from the gateway's."""
BIG_BYTES = {"big": 600_000, "huge": 12_000_000}
_PIECE_BYTES = 16_384
_HANG_LIMIT_S = 120.0
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class _Ended(Exception):  # noqa: N818 - nothing went wrong here
    """The connection is over."""


class Replica:
    """`name` is also its part of every draw."""

    def __init__(self, name: str, seed: str, journal: int) -> None:
        self._name = name
        self._seed = seed
        self._journal = journal
        self._rng = random.Random(f"{seed}/{name}")

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        try:
            while True:
                await self._serve(reader, writer)
        except (_Ended, ConnectionError, asyncio.IncompleteReadError, RuntimeError):
            pass  # RuntimeError: uvloop's, for writing to a transport that is gone
        finally:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, path, _ = lines[0].split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        length = int(headers.get("content-length", "0"))
        if "x-soak" not in headers:
            await reader.readexactly(length)
            await self._probe(method, path, length, reader, writer)
            return
        number, _, wish = headers["x-soak"].partition(" ")
        conduct = conduct_of(self._seed, int(number), self._name)
        if conduct.fault is not Fault.EARLY:
            body = await reader.readexactly(length)
        else:
            body = b"{}"
        os.write(self._journal, b"%b begun\n" % number.encode())
        call = _Call(number, wish, b'"stream": true' in body, conduct, reader, writer)
        ending = "gone"
        try:
            ending = await call.answer()
        finally:
            os.write(self._journal, b"%b %b\n" % (number.encode(), ending.encode()))
        await self._may_go_stale(conduct.goes_stale, reader, writer)

    async def _may_go_stale(self, how: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if how == "idle":
            await asyncio.sleep(self._rng.random() * 0.02)
            raise _Ended
        if how == "taken":
            # Nothing of the next request is answered: as if the connection had been closed just before it came.
            await reader.read(1)
            _reset(writer)

    async def _probe(
        self, method: str, path: str, length: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        status, answer = 200, b"{}"
        if path == "/v1/models":
            cards = [{"id": model, "object": "model", "owned_by": "soak"} for model in MODELS]
            answer = json.dumps({"object": "list", "data": cards}).encode()
        elif path == "/tokenize":
            await asyncio.sleep(self._rng.choice((0.0, 0.0, 0.02, 0.1)))
            trouble = self._rng.random()
            if trouble < 0.01:
                await _peer_left(reader)
            status = 500 if trouble < 0.02 else 200
            answer = json.dumps({"count": length // 4, "max_model_len": 1_000_000, "tokens": []}).encode()
        elif method != "GET" or path != "/health":
            status = 404
        await _send(writer, _head(status, len(answer)) + answer)


class _Call:
    """One request and its answer."""

    def __init__(
        self,
        number: str,
        wish: str,
        streams: bool,
        conduct: Conduct,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._number = number
        self._wish = wish
        self._streams = streams
        self._conduct = conduct
        self._reader = reader
        self._writer = writer

    async def answer(self) -> str:
        """What became of it: a whole answer, an error, or broken as planned."""
        fault, writer = self._conduct.fault, self._writer
        await asyncio.sleep(self._conduct.delay_s)
        if fault is Fault.RESET:
            _reset(writer)
        if fault is Fault.CLOSE:
            raise _Ended
        if fault is Fault.HANG:
            await _peer_left(self._reader)
        if fault is Fault.GARBAGE:
            await _send(writer, b"\x15\x03\x03\x00\x02\x02\x46" * 3)
            raise _Ended
        if fault is Fault.HALF_HEAD:
            await _send(writer, b"HTTP/1.1 200 OK\r\ncontent-type: appl")
            raise _Ended
        if (status := STATUSES.get(fault)) is not None:
            body = json.dumps({"error": {"message": MARK, "type": "x", "param": None, "code": None}}).encode()
            await _send(writer, _head(status, len(body), closes=fault is Fault.EARLY) + body)
            if fault is Fault.EARLY:
                raise _Ended
            return "error"
        await (self._stream() if self._streams else self._whole())
        return "whole"

    async def _whole(self) -> None:
        conduct = self._conduct
        text = "".join(f"w{index} " for index in range(conduct.num_pieces)) + self._padding()
        body = json.dumps({"id": f"soak-{self._number}", "num": conduct.num_pieces, "text": text}).encode()
        head = _head(200, None if conduct.is_chunked else len(body))
        if conduct.is_chunked:
            body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        await self._write_out(head, [body])

    async def _stream(self) -> None:
        conduct, number = self._conduct, self._number
        padding, num_pieces = "", conduct.num_pieces
        if self._wish:
            padding, num_pieces = "x" * _PIECE_BYTES, BIG_BYTES[self._wish] // _PIECE_BYTES
        events = [
            b'data: {"id":"soak-%b","choices":[{"index":0,"delta":{"content":"w%d %b"},"finish_reason":null}]}\n\n'
            % (number.encode(), index, padding.encode())
            for index in range(num_pieces)
        ]
        if conduct.fault is Fault.ERROR_EVENT:
            events.append(b'data: {"error":{"message":"%b"}}\n\n' % MARK.encode())
        else:
            events.append(b'data: {"id":"soak-%b","choices":[],"num":%d}\n\n' % (number.encode(), num_pieces))
            if conduct.fault is not Fault.NO_DONE:
                events.append(b"data: [DONE]\n\n")
        chunks = [b"%x\r\n%b\r\n" % (len(event), event) for event in events]
        chunks[-1] += b"0\r\n\r\n"
        await self._write_out(_head(200, None, kind="text/event-stream"), chunks)

    def _padding(self) -> str:
        return "x" * BIG_BYTES["big"] if self._wish else ""

    async def _write_out(self, head: bytes, pieces: list[bytes]) -> None:
        """The answer as it goes over the wire, up to where its fault is."""
        conduct, writer = self._conduct, self._writer
        is_whole = conduct.fault in WHOLE
        num_whole = len(pieces) if is_whole else int(conduct.cut * len(pieces))
        await _send(writer, head)
        for piece in pieces[:num_whole]:
            if conduct.pause_s and not self._wish:
                await asyncio.sleep(conduct.pause_s)
            async for part in self._parts(piece):
                if self._reader.at_eof():
                    raise _Ended
                await _send(writer, part)
        if is_whole:
            return
        if conduct.fault is Fault.BAD_FRAMING and b"chunked" in head:
            await _send(writer, b"xyz\r\n")  # where a chunk's size belongs
            await _peer_left(self._reader)
        await _send(writer, pieces[num_whole][: len(pieces[num_whole]) // 2])
        if conduct.fault is Fault.RESET_INSIDE:
            _reset(writer)
        if conduct.fault is Fault.HANG_INSIDE:
            await _peer_left(self._reader)
        raise _Ended

    async def _parts(self, piece: bytes) -> AsyncIterator[bytes]:
        if self._conduct.fault is Fault.TRICKLE and not self._wish:
            for start in range(0, len(piece), 24):
                await asyncio.sleep(0.001)
                yield piece[start : start + 24]
        elif self._conduct.splits:
            middle = int(self._conduct.cut * len(piece))
            yield piece[:middle]
            await asyncio.sleep(0)
            yield piece[middle:]
        else:
            yield piece


def _head(status: int, length: int | None, *, kind: str = "application/json", closes: bool = False) -> bytes:
    framing = "transfer-encoding: chunked" if length is None else f"content-length: {length}"
    end = "connection: close\r\n\r\n" if closes else "\r\n"
    return f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\n{framing}\r\n{end}".encode()


async def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    if writer.transport.is_closing():
        raise _Ended
    if data:
        writer.write(data)
        await writer.drain()


def _reset(writer: asyncio.StreamWriter) -> None:
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    writer.transport.abort()
    raise _Ended


async def _peer_left(reader: asyncio.StreamReader) -> None:
    """Say nothing any more until whoever asked has gone. Raises `_Ended`."""
    try:
        async with asyncio.timeout(_HANG_LIMIT_S):
            while await reader.read(1 << 16):
                pass
    except TimeoutError:
        pass
    raise _Ended


async def serve(port: int, name: str, seed: str, journal: str) -> None:
    """Until the process is ended."""
    replica = Replica(name, seed, os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT))
    server = await asyncio.start_server(replica.connected, "127.0.0.1", port, limit=1 << 22, backlog=1024)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), *sys.argv[2:]))
