"""The real curl against the gateway: old and odd HTTP, uploads, streams, and leaving in the middle."""

import asyncio
import gzip
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.fake_replica import DONE, Call, FakeReplica, answers, delta, finish, hangs, streams
from tests.support.gateways import BODY, CHAT, STREAM_BODY
from tests.support.serve import until

from .entrance import Entrance, entrance_to

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="curl isn't installed")

DEADLINE_S = 20.0
JSON = ("-H", "content-type: application/json")
EVENTS = (delta("one"), delta("two"), finish(), DONE)


@dataclass(frozen=True, slots=True)
class Curled:
    """`head` is what -D would write: the heads of all answers."""

    code: int
    head: str
    body: bytes


async def start(*arguments: str) -> asyncio.subprocess.Process:
    """curl without a configuration of the user's; no proxy is asked."""
    return await asyncio.create_subprocess_exec(
        *("curl", "-q", "-sS", "--noproxy", "*", *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def curl(heads: Path, *arguments: str, upload: bytes = b"") -> Curled:
    """One run of it. `upload` is its standard input."""
    process = await start("-D", str(heads), *arguments)
    async with asyncio.timeout(DEADLINE_S):
        body, _ = await process.communicate(upload)
    assert process.returncode is not None
    return Curled(process.returncode, _text(heads), body)


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


@pytest.fixture
def heads(tmp_path: Path) -> Path:
    return tmp_path / "heads"


def at(entrance: Entrance, path: str = CHAT) -> str:
    return entrance.url + path


@pytest.mark.parametrize("version", ["--http1.0", "--http1.1", "--http2"])
async def test_a_stream_in_every_version_of_http(heads: Path, version: str) -> None:
    """1.0 has no chunks: the end of the connection ends it. An offer of HTTP/2 is passed over."""
    async with FakeReplica(streams(*EVENTS)) as replica, entrance_to(replica) as entrance:
        curled = await curl(heads, version, "-N", *JSON, "-d", STREAM_BODY.decode(), at(entrance))
        assert (curled.code, curled.body) == (0, b"".join(EVENTS))
        assert ("transfer-encoding: chunked" in curled.head.lower()) == (version != "--http1.0")
        assert replica.received[0].header("upgrade") == []


async def test_a_stream_comes_piece_by_piece() -> None:
    """The first event is there while the replica still has the second."""
    may_go_on = asyncio.Event()

    async def behave(call: Call) -> None:
        await call.head(headers=[("content-type", "text/event-stream")])
        await call.chunk(EVENTS[0])
        await may_go_on.wait()
        for piece in EVENTS[1:]:
            await call.chunk(piece)
        await call.end()

    async with FakeReplica(behave) as replica, entrance_to(replica) as entrance:
        process = await start("-N", *JSON, "-d", STREAM_BODY.decode(), at(entrance))
        assert process.stdout is not None
        async with asyncio.timeout(DEADLINE_S):
            assert await process.stdout.readexactly(len(EVENTS[0])) == EVENTS[0]
            may_go_on.set()
            assert await process.stdout.read() == b"".join(EVENTS[1:])
            assert await process.wait() == 0


async def test_heads_without_bodies(heads: Path) -> None:
    """HEAD ends at once with the length that GET would have, and a body where there is one on the next request."""
    async with FakeReplica(answers()) as replica, entrance_to(replica) as entrance:
        for path in ("/v1/models", "/healthz", "/metrics"):
            curled = await curl(heads, "-I", at(entrance, path), "--next", "-sS", "-D", str(heads), at(entrance, path))
            assert curled.code == 0
            assert curled.head.startswith("HTTP/1.1 200")
        assert replica.received == []


@pytest.mark.parametrize("num_bytes", [1 << 10, 3 << 20])
async def test_an_upload_that_asks_first(heads: Path, num_bytes: int) -> None:
    """`Expect: 100-continue` is answered with 100, then with the answer; the replica is sent the body at once."""
    body = json.dumps({"model": "m1", "messages": [{"role": "user", "content": "x" * num_bytes}]}).encode()
    async with FakeReplica(answers()) as replica, entrance_to(replica) as entrance:
        # curl waits for ever here, where it would send anyway after a second.
        expect = ("-H", "Expect: 100-continue", "--expect100-timeout", str(2 * DEADLINE_S))
        curled = await curl(heads, *JSON, *expect, "--data-binary", "@-", at(entrance), upload=body)
        assert [line for line in curled.head.splitlines() if line.startswith("HTTP/")] == [
            "HTTP/1.1 100 Continue",
            "HTTP/1.1 200 OK",
        ]
        assert replica.received[0].body == body
        assert replica.received[0].header("expect") == []


async def test_an_upload_that_is_too_large_is_refused_before_it_is_sent(heads: Path) -> None:
    """413 in place of 100: not a byte of the body travels."""
    async with FakeReplica(answers()) as replica, entrance_to(replica, limits={"max_body_bytes": 1000}) as entrance:
        expect = ("-H", "Expect: 100-continue", "--expect100-timeout", str(2 * DEADLINE_S))
        written = ("-w", "\n%{size_upload}", "--data-binary", "@-")
        curled = await curl(heads, *JSON, *expect, *written, at(entrance), upload=b"x" * 5000)
        assert curled.head.startswith("HTTP/1.1 413")
        assert curled.body.endswith(b"\n0")
        assert replica.received == []


@pytest.mark.parametrize("coding", [None, "gzip"])
async def test_an_upload_in_chunks(heads: Path, coding: str | None) -> None:
    """It goes on with a length, and unpacked."""
    body = json.dumps({"model": "m1", "messages": [{"role": "user", "content": "y" * 300_000}]}).encode()
    packed = ("-H", f"content-encoding: {coding}") if coding else ()
    async with FakeReplica(answers()) as replica, entrance_to(replica) as entrance:
        chunked = ("-H", "transfer-encoding: chunked", "-T", "-", "-X", "POST")
        upload = gzip.compress(body) if coding else body
        curled = await curl(heads, *JSON, *packed, *chunked, at(entrance), upload=upload)
        assert (curled.code, "HTTP/1.1 200 OK" in curled.head) == (0, True)
        assert replica.received[0].body == body
        assert replica.received[0].header("content-length") == [str(len(body))]


async def test_a_form(heads: Path) -> None:
    """With a file over a megabyte, for which curl asks first, and an alias."""
    sound = bytes(range(256)) * 8192
    await asyncio.to_thread(heads.with_name("a.wav").write_bytes, sound)
    models = [{"name": "m1", "aliases": ["whisper-1"]}]
    async with FakeReplica(answers(), owned_by="someone") as replica, entrance_to(replica, models=models) as entrance:
        form = ("-F", "model=whisper-1", "-F", f"file=@{heads.with_name('a.wav')};type=audio/wav")
        curled = await curl(heads, *form, at(entrance, "/v1/audio/transcriptions"))
        assert (curled.code, curled.head.startswith("HTTP/1.1 100 Continue")) == (0, True)
        assert sound in replica.received[0].body
        assert b"whisper-1" not in replica.received[0].body


async def test_a_packed_answer_is_passed_on_packed(heads: Path) -> None:
    """--compressed asks the replica, whose bytes are unpacked by curl alone."""
    answer = b'{"id":"c","choices":[],"note":"' + b"z" * 5000 + b'"}'

    async def behave(call: Call) -> None:
        assert "gzip" in call.received.header("accept-encoding")[0]
        await call.whole(gzip.compress(answer), headers=[("content-encoding", "gzip")])

    async with FakeReplica(behave) as replica, entrance_to(replica) as entrance:
        sizes = ("--compressed", "-w", "\n%{size_download}")
        curled = await curl(heads, *sizes, *JSON, "-d", BODY.decode(), at(entrance))
        body, _, num_bytes = curled.body.rpartition(b"\n")
        assert body == answer
        assert int(num_bytes) == len(gzip.compress(answer))


async def test_one_connection_carries_several_requests(heads: Path) -> None:
    """Good ones, a refused one, one for a route that there isn't: curl connects once."""
    async with FakeReplica(answers()) as replica, entrance_to(replica) as entrance:
        count = ("-o", str(heads.with_name("body")), "-w", "%{http_code} %{num_connects}\n")
        first = [*count, *JSON, "-d", BODY.decode(), at(entrance)]
        rest = [[*count, "-d", "{", at(entrance)], [*count, at(entrance, "/nothing")], first]
        arguments = [*first, *(part for more in rest for part in ("--next", "-sS", *more))]
        curled = await curl(heads, *arguments)
        assert curled.body.decode().split("\n") == ["200 1", "400 0", "404 0", "200 0", ""]


@pytest.mark.parametrize("arguments", [("--max-time", "0.3"), ()], ids=["time", "kill"])
async def test_a_download_that_is_broken_off_closes_the_replicas_call(heads: Path, arguments: tuple[str, ...]) -> None:
    """By a bound on its time, or because curl is killed."""
    async with FakeReplica(hangs(*EVENTS[:2])) as replica, entrance_to(replica) as entrance:
        process = await start(*arguments, "-N", *JSON, "-d", STREAM_BODY.decode(), at(entrance))
        assert process.stdout is not None
        if not arguments:
            await process.stdout.readexactly(1)
            process.kill()
        async with asyncio.timeout(DEADLINE_S):
            await process.wait()
        await until(lambda: replica.num_aborted == 1)
