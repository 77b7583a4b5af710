"""Acts out visits: a client as the plan has it, on a raw connection, and what it saw of each of its requests."""

import asyncio
import socket
import struct
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

from .answers import Answer, Line, View, view_of
from .visits import CLOSING, GARBAGE, Request, Visit

STUCK_S = 60.0
"""Longer than all of the gateway's own timeouts together: a visit that takes so long is stuck."""
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_SMALL_BUFFER_BYTES = 8192
_NOT_SERVED_AHEAD = 3
"""Of 20 requests at once: one runs, 16 wait, the next one is refused, and nothing after it is looked at."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A request that began, as its client saw it. `request_id` and `attempt` are what the gateway said."""

    number: int
    tenant: str
    view: View
    status: int
    request_id: str | None


class Caller:
    """Visits one gateway. `keys`: by tenant. What happens is added to the attributes."""

    def __init__(self, port: int, keys: dict[str, str]) -> None:
        self._port = port
        self._keys = keys
        self.seen: list[Seen] = []
        self.num_scattered = [0, 0]
        """Requests of connections that were left with some unanswered: at least and at most so many began."""
        self.refused: Counter[str] = Counter()
        """Refusals that were caused, by their reason in the metrics."""
        self.problems: list[str] = []

    async def visit(self, visit: Visit) -> int:
        """Act it out. The number of requests that were meant."""
        line = await self._connect(small=visit.kind in ("slow-reader", "stalls"))
        try:
            async with asyncio.timeout(STUCK_S):
                await self._act(visit, line)
        except TimeoutError:
            number = visit.requests[0].number if visit.requests else 0
            self.seen.append(Seen(number, "", View.STUCK, 0, None))
            self.problems.append(f"stuck: {visit.kind}, request {number}")
        finally:
            line.transport.abort()
        return len(visit.requests)

    async def _connect(self, *, small: bool = False) -> Line:
        sock = socket.socket()
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if small:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SMALL_BUFFER_BYTES)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(sock, ("127.0.0.1", self._port))
        _, line = await loop.create_connection(Line, sock=sock)
        return line

    def _key(self, request: Request) -> str:
        return self._keys.get(request.tenant, "tg-nobody")

    async def _act(self, visit: Visit, line: Line) -> None:
        if visit.kind in ("garbage", "slow-head"):
            await self._be_refused(visit, line)
        elif visit.kind == "plain":
            await self._one_after_another(visit.requests, line)
        elif visit.kind in ("pipelined", "leaves-pipelined", "too-far-ahead"):
            await self._all_at_once(visit, line)
        else:
            await self._once(visit, visit.requests[0], line)

    async def _be_refused(self, visit: Visit, line: Line) -> None:
        sent, reason = GARBAGE[visit.garbage]
        if visit.kind == "slow-head":
            sent, reason = b"POST /v1/chat/completions HTTP/1.1\r\nHo", "head-timeout"
        line.transport.write(sent)
        await line.until(lambda: False)
        self.refused[reason] += 1
        if line.num_complete() != 1 or not 400 <= line.answers[0].status < 600:
            self.problems.append(f"{sent[:60]!r} was not refused")

    async def _one_after_another(self, requests: tuple[Request, ...], line: Line) -> None:
        left = list(requests)
        while left:
            request = left.pop(0)
            answer = await self._ask(request, line)
            self._note(request, answer)
            if left and (not answer.is_complete or answer.closes or request.wrong in CLOSING):
                line.transport.abort()
                line = await self._connect()
        line.transport.abort()

    async def _ask(self, request: Request, line: Line) -> Answer:
        wanted = line.num_complete() + 1
        for piece in request.pieces(self._key(request)):
            if line.is_lost:
                break
            line.transport.write(piece)
            if request.wrong == "large-chunked":
                await asyncio.sleep(0)
        await line.until(lambda: line.num_complete() >= wanted)
        return line.answers[wanted - 1] if len(line.answers) >= wanted else Answer()

    def _note(self, request: Request, answer: Answer, *, left: bool = False) -> None:
        view = View.LEFT if left and not answer.is_complete else view_of(request, answer)
        request_id = answer.headers.get("x-tailgate-request-id")
        self.seen.append(Seen(request.number, request.tenant, view, answer.status, request_id))
        if view in (View.WRONG, View.UNANSWERED):
            shown = bytes(answer.body[-120:])
            self.problems.append(f"{view}: {request}, status {answer.status}, {answer.headers}, …{shown!r}")

    async def _all_at_once(self, visit: Visit, line: Line) -> None:
        requests = visit.requests
        if visit.kind == "too-far-ahead":
            requests = requests[:-_NOT_SERVED_AHEAD]
        line.transport.write(b"".join(b"".join(item.pieces(self._key(item))) for item in visit.requests))
        if visit.kind == "leaves-pipelined":
            await line.until(lambda: line.num_complete() >= 1 or line.num_body_bytes() >= visit.num_bytes)
            self._leave(line, resets=visit.resets)
            self.num_scattered[0] += max(1, line.num_complete())
            self.num_scattered[1] += len(requests)
            return
        if visit.kind == "too-far-ahead":
            await line.until(lambda: False)
            self.refused["too-much-ahead"] += 1
        else:
            await line.until(lambda: line.num_complete() >= len(requests))
        for index, request in enumerate(requests):
            answer = line.answers[index] if index < len(line.answers) else Answer()
            self._note(request, answer)
            if not answer.is_complete or answer.closes:
                return  # those behind it never began

    async def _once(self, visit: Visit, request: Request, line: Line) -> None:
        kind, key = visit.kind, self._key(request)
        version = "1.0" if kind == "old" else "1.1"
        head, *rest = request.pieces(key, version=version)
        body = b"".join(rest)
        if kind == "expecting":
            line.transport.write(request.head(key, len(body), expects=True))
            await asyncio.sleep(visit.delay_s)
            line.transport.write(body)
        elif kind == "slow-sender":
            await _send_slowly(line, head + body, visit.delay_s)
        elif kind == "leaves-sending":
            line.transport.write(head + body[: len(body) // 2])
            await asyncio.sleep(visit.delay_s)
        else:
            line.transport.write(head + body)
        if kind == "slow-reader":
            await _read_slowly(line, visit.delay_s)
        elif kind == "stalls":
            line.pause()
            await asyncio.sleep(9.0)  # longer than the gateway waits for a client that takes nothing
            line.go_on()
        elif kind == "half-closes":
            line.transport.write_eof()
        elif kind == "leaves-waiting":
            await asyncio.sleep(visit.delay_s)
        elif kind == "leaves-streaming":
            await line.until(lambda: line.num_complete() == 1 or line.num_body_bytes() >= visit.num_bytes)
        leaves = kind.startswith("leaves")
        if leaves:
            self._leave(line, resets=visit.resets)
        else:
            await line.until(lambda: line.num_complete() == 1)
        answer = line.answers[0] if line.answers else Answer()
        self._note(request, answer, left=leaves or kind in ("half-closes", "stalls"))

    def _leave(self, line: Line, *, resets: bool) -> None:
        if line.is_lost:
            return
        if resets:
            sock = line.transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            line.transport.abort()
        else:
            line.transport.close()


async def _send_slowly(line: Line, data: bytes, delay_s: float) -> None:
    cuts = (0, 7, len(data) // 3, len(data) // 2, len(data) - 1, len(data))
    for start, end in pairwise(cuts):
        if line.is_lost:
            return
        line.transport.write(data[start:end])
        await asyncio.sleep(delay_s)


async def _read_slowly(line: Line, pause_s: float) -> None:
    while not line.is_lost and line.num_complete() < 1:
        line.pause()
        await asyncio.sleep(pause_s / 5)
        line.go_on()
        await asyncio.sleep(0.005)
