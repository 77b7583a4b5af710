"""Whatever bytes a client sends: well-formed answers or an end, and a replica sees only what can be read in one way."""

import asyncio
import random

import httptools
import pytest

from tests.support.fake_replica import FakeReplica, answers
from tests.support.gateways import BODY, CHAT, assert_nothing_held, gateway_for
from tests.support.raw import RawSocket
from tests.support.serve import ask, serving, until

from .effort import EFFORT, mutated, seeded
from .strict_http import Parsed, unambiguous

NUM_CLIENTS = 600 * EFFORT
AT_ONCE = 20
ODD = b"\0\r\n\t :,;xX019afAF-+\xff"
LAST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}"


def _head(*lines: bytes) -> bytes:
    return b"\r\n".join((b"POST /v1/chat/completions HTTP/1.1", b"Host: a", *lines, b"", b""))


def _chunks(body: bytes, extension: bytes = b"") -> bytes:
    return b"%x%b\r\n%b\r\n0\r\n\r\n" % (len(body), extension, body)


LENGTH = b"Content-Length: %d" % len(BODY)
CHUNKED = b"Transfer-Encoding: chunked"
INSIDE = _head(b"X-Inside: 1", LENGTH) + BODY
"""A whole request, for where another one's body may end before its sender thinks."""
SHAPES: dict[str, bytes] = {
    "length": _head(LENGTH) + BODY,
    "chunks": _head(CHUNKED) + _chunks(BODY),
    "extensions": _head(CHUNKED) + _chunks(BODY, b";a=b") + _head(LENGTH) + BODY,
    "trailers": _head(CHUNKED) + b"%x\r\n%b\r\n0\r\nX-T: 1\r\n\r\n" % (len(BODY), BODY) + _head(LENGTH) + BODY,
    "pipelined": (_head(LENGTH) + BODY) * 3,
    "both lengths": _head(LENGTH, CHUNKED) + b"0\r\n\r\n" + INSIDE,
    "both lengths, the other way": _head(CHUNKED, b"Content-Length: 5") + b"0\r\n\r\n" + INSIDE,
    "two lengths": _head(b"Content-Length: 0", b"Content-Length: %d" % len(INSIDE)) + INSIDE,
    "a list of lengths": _head(b"Content-Length: 0, %d" % len(INSIDE)) + INSIDE,
    "a signed length": _head(b"Content-Length: +%d" % len(INSIDE)) + INSIDE,
    "a space before the colon": _head(b"Content-Length : %d" % len(INSIDE)) + INSIDE,
    "a coding with a space": _head(b"Transfer-Encoding : chunked", b"Content-Length: 0") + _chunks(INSIDE),
    "a folded coding": _head(b"Transfer-Encoding:", b" chunked", b"Content-Length: 0") + _chunks(INSIDE),
    "a tab": _head(b"Transfer-Encoding:\tchunked") + _chunks(BODY),
    "identity": _head(b"Transfer-Encoding: chunked, identity") + _chunks(BODY) + INSIDE,
    "identity first": _head(b"Transfer-Encoding: identity, chunked") + _chunks(BODY) + INSIDE,
    "two codings": _head(CHUNKED, CHUNKED) + _chunks(BODY) + INSIDE,
    "a coding in quotes": _head(b'Transfer-Encoding: "chunked"') + _chunks(BODY) + INSIDE,
    "a coding in another case": _head(b"transfer-ENCODING: cHuNkEd") + _chunks(BODY),
    "a coding with a vertical tab": _head(b"Transfer-Encoding: \x0bchunked") + _chunks(BODY) + INSIDE,
    "a prefixed chunk size": _head(CHUNKED) + b"0x%x\r\n%b\r\n0\r\n\r\n" % (len(INSIDE), INSIDE),
    "a chunk size that overflows": _head(CHUNKED) + b"1%016x\r\n%b\r\n0\r\n\r\n" % (len(INSIDE), INSIDE),
    "a chunk size with spaces": _head(CHUNKED) + b" %x \r\n%b\r\n0\r\n\r\n" % (len(INSIDE), INSIDE),
    "a chunk that is longer": _head(CHUNKED) + b"2\r\n" + BODY + b"\r\n0\r\n\r\n" + INSIDE,
    "a line feed in an extension": _head(CHUNKED) + b"2;\nxx\r\n" + BODY + b"\r\n0\r\n\r\n",
    "bare line feeds": INSIDE.replace(b"\r\n", b"\n"),
    "bare carriage returns": INSIDE.replace(b"\r\n", b"\r"),
    "a zero byte": _head(b"X: a\0b", LENGTH) + BODY,
    "an absolute target": _head(LENGTH).replace(b" /v1", b" http://elsewhere/v1") + BODY,
    "two hosts": _head(b"Host: b", LENGTH) + BODY,
    "a huge header": _head(b"X: " + b"x" * 40_000, LENGTH) + BODY,
    "many headers": _head(*(b"X-%d: 1" % number for number in range(200)), LENGTH) + BODY,
    "rubbish behind": _head(LENGTH) + BODY + b"\x16\x03\x01\0\xff" * 20,
    "blank lines first": b"\r\n\r\n" + _head(LENGTH) + BODY,
    "a body of a GET": _head(LENGTH).replace(b"POST", b"GET") + BODY,
}


class _Answers:
    """Reads a connection's answers as a strict client does."""

    def __init__(self) -> None:
        self.statuses: list[int] = []
        self.parser = httptools.HttpResponseParser(self)

    def on_headers_complete(self) -> None:
        self.statuses.append(self.parser.get_status_code())


async def _sent(port: int, data: bytes, rng: random.Random) -> list[int]:
    """Sends it in up to four packets, and something behind it that ends the connection; the statuses of the answers."""
    cuts = sorted(rng.randint(0, len(data)) for _ in range(rng.randint(0, 3)))
    async with RawSocket(port) as sock:
        for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
            await sock.send_all(data[start:end])
            await asyncio.sleep(0)
        await sock.send_all(LAST)
        received = await sock.read_to_end()
    answers = _Answers()
    answers.parser.feed_data(received)  # raises for what isn't well formed
    return answers.statuses


def _is_subsequence(seen: list[Parsed], allowed: list[Parsed]) -> bool:
    rest = iter(allowed)
    return all(item in rest for item in seen)


@pytest.mark.parametrize("name", SHAPES)
async def test_shapes_that_servers_read_differently(name: str) -> None:
    """Each goes to the replica as it is meant, or not at all; and the gateway serves on."""
    rng = seeded()
    async with FakeReplica(answers()) as replica, gateway_for(replica) as gateway, serving(gateway) as port:
        data = SHAPES[name]
        statuses = await _sent(port, data, rng)
        seen = [Parsed(item.path.encode(), item.body) for item in replica.received]
        assert _is_subsequence(seen, unambiguous(data)), seen
        assert statuses
        assert (await ask(port, CHAT, BODY)).status == 200
        assert_nothing_held(gateway)


async def test_mutated_requests() -> None:
    """Random changes to all of these: no replica sees a body that the strict parser doesn't find there."""
    rng = seeded()
    shapes = [shape for shape in SHAPES.values() if len(shape) < 4000]
    async with (
        FakeReplica(answers()) as replica,
        gateway_for(replica, timeouts={"head_s": 0.5, "receive_s": 0.5}) as gateway,
        serving(gateway) as port,
    ):
        for _ in range(NUM_CLIENTS // AT_ONCE):
            # In each its own mark, so that it is known whose request a replica sees.
            marked = [
                (b"%06d" % number, mutated(rng.choice(shapes), rng, ODD).replace(b'"hi"', b'"%06d"' % number))
                for number in rng.sample(range(10**6), AT_ONCE)
            ]
            # Lengths stay right: the mark is longer than what it replaces, so they are set anew.
            marked = [(mark, data.replace(LENGTH, b"Content-Length: %d" % (len(BODY) + 4))) for mark, data in marked]
            replica.received.clear()
            await asyncio.gather(*(_sent(port, data, rng) for _, data in marked))
            for mark, data in marked:
                seen = [Parsed(item.path.encode(), item.body) for item in replica.received if mark in item.body]
                allowed = unambiguous(data + LAST)
                assert _is_subsequence(seen, allowed), (data, seen)
        await until(lambda: gateway.front.num_open == 0)
        assert (await ask(port, CHAT, BODY)).status == 200
        assert_nothing_held(gateway)
        outcomes = {record.outcome for record in gateway.ring._records.values()}
        assert outcomes <= {"ok", "bad-request", "client-left"}
