"""What overhead is measured with: the replica, the load, and the figures of processes."""

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from loadtests.client import LoadClient
from loadtests.cost.answers import StreamEvents, whole_answer
from loadtests.cost.instant_replica import instant_replica
from loadtests.cost.load import Job, run_load
from loadtests.cost.open_files import allow_files
from loadtests.cost.process_tree import cpu_s, num_sockets, resident_bytes, tree
from loadtests.cost.wire import Ask, why_bad
from loadtests.errors import TargetError
from loadtests.processes import running

CHAT = "/v1/chat/completions"


async def test_the_replica_answers_what_it_was_asked(tmp_path: Path) -> None:
    """Whole or streamed, to the byte as its bytes are known; bad requests and unknown pages are refused."""
    async with instant_replica(tmp_path, "some") as url, LoadClient(url, "some") as client:
        assert await client.first_model() == "some"
        asked = {"model": "some", "user": "a", "max_tokens": 3}
        async with client.session.post(url + CHAT, json=asked) as answer:
            assert await answer.read() == whole_answer("some", "a", 3)
        async with client.session.post(url + CHAT, json={**asked, "stream": True}) as answer:
            assert await answer.read() == StreamEvents("some", "a", 3).whole()
        assert (await client.post_json(CHAT, [1]))[0] == 400
        assert (await client.post_json("/pace", {"pace_s": "slow"}))[0] == 400
        assert (await client.get("/nowhere"))[0] == 404
        status, page = await client.get("/metrics")
        assert (status, b'running{model_name="some"} 0.0' in page) == (200, True)


async def to_its_end(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(10):
        return await reader.read()


async def test_the_replica_takes_bodies_in_pieces_and_closes_when_asked(tmp_path: Path) -> None:
    """A chunked upload after `Expect`, and HTTP/1.1 with `connection: close`; nonsense gets 400."""
    async with instant_replica(tmp_path, "some") as url:
        port = int(url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(
            f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\nconnection: close\r\n"
            "transfer-encoding: chunked\r\n\r\n".encode()
        )
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
        writer.write(b"8\r\n{\"user\":\r\n4\r\n\"b\"}\r\n0\r\n\r\n")  # fmt: skip
        assert (await to_its_end(reader)).endswith(whole_answer("some", "b", 16))
        writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"nonsense\r\n\r\n")
        assert (await to_its_end(reader)).startswith(b"HTTP/1.1 400 ")
        writer.close()


@pytest.mark.parametrize(
    ("job", "num"),
    [
        ({"kind": "closed", "num": 3, "seconds": 0.2}, None),
        ({"kind": "paced", "per_s": 100.0, "seconds": 0.2}, 20),
        ({"kind": "streams", "num": 5, "num_tokens": 4, "is_exact": True}, 5),
        ({"kind": "streams", "num": 5, "num_tokens": 4, "per_s": 500.0}, 5),
    ],
)
async def test_load_is_sent_and_its_answers_are_judged(job: dict[str, object], num: int | None, tmp_path: Path) -> None:
    """All kinds; a stream each, open at the same time."""
    async with instant_replica(tmp_path, "some") as url, LoadClient(url, "some") as client:
        await client.post_json("/pace", {"pace_s": 0.1})
        result = await run_load(Job(url=url, model="some", **job))  # type: ignore[arg-type]
    assert (result.num_bad, result.why) == (0, None)
    assert result.num_good == num if num is not None else result.num_good > 3
    assert result.latency_p50_s is not None
    assert result.latency_p99_s is not None
    assert result.latency_p50_s <= result.latency_p99_s
    assert (result.late_p99_s is not None) is (job["kind"] == "paced")
    if job["kind"] == "streams":
        assert result.most_open == 5


@asynccontextmanager
async def server(answer: bytes, *, ends: bool = False) -> AsyncIterator[str]:
    """Gives the same bytes to every request; `ends`: and closes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(65536):
            writer.write(answer)
            if ends:
                break
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listening:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize(
    ("answer", "ends", "why"),
    [
        (b"HTTP/1.1 503 Busy\r\ncontent-length: 2\r\n\r\nno", False, "status 503: no"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}", False, "no completion"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{}", True, "ended before the answer"),
        (b"nonsense\r\n\r\n", False, "no HTTP"),
        (b"", False, "not ended within 0.5 s"),
    ],
)
async def test_answers_that_are_none_are_counted(answer: bytes, ends: bool, why: str) -> None:
    """With what was wrong first."""
    async with server(answer, ends=ends) as url:
        result = await run_load(Job("paced", url, "m", per_s=10.0, seconds=0.1, limit_s=0.5))
    assert (result.num_good, result.num_bad) == (0, 1)
    assert result.why is not None
    assert why in result.why


async def test_nobody_there_is_counted_and_a_bad_job_refused() -> None:
    """No connection; a kind that there isn't."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        result = await run_load(Job("closed", f"http://127.0.0.1:{port}", "m", num=1, seconds=0.1))
    assert result.num_good == 0
    assert result.num_bad > 0
    assert result.why is not None
    assert result.why.startswith("no connection")
    with pytest.raises(ValueError, match="closed, streams, paced"):
        Job("other", "http://127.0.0.1:1", "m")


def test_a_stream_must_be_whole() -> None:
    """Its end, an event a token, and the replica's bytes where they must be the same."""
    whole = StreamEvents("m", "a", 3).whole()
    loose, exact = Ask(b"", True, 3), Ask(b"", True, 3, whole)
    assert why_bad(loose, 200, whole) is None
    assert why_bad(exact, 200, whole) is None
    assert why_bad(loose, 200, whole[:-3]) == "the stream has no end"
    assert why_bad(Ask(b"", True, 4), 200, whole) == "3 events for 4 tokens"
    assert why_bad(exact, 200, StreamEvents("m", "b", 3).whole()) is not None


BURNS = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(7, flush=True); sum(range(10**8))'])"


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110 - what another process does
            await asyncio.sleep(0.01)


async def test_a_process_and_its_children_are_measured(tmp_path: Path) -> None:
    """Processor time of the child counts; of a process that has ended nothing is left."""
    async with running([sys.executable, "-c", BURNS], tmp_path / "log") as process:
        await until(lambda: len(tree(process.pid)) == 2)
        pids = tree(process.pid)
        await until(lambda: cpu_s(pids[1:]) > 0.1)
        assert cpu_s(pids) > cpu_s(pids[:1])
        assert resident_bytes(pids) > resident_bytes(pids[1:]) > 0
        os.kill(pids[1], 9)
    assert tree(process.pid) == []
    assert (cpu_s(pids[:1]), resident_bytes(pids[:1]), num_sockets(pids[:1])) == (0.0, 0, 0)


def test_open_sockets_are_counted() -> None:
    """Those of this process, one more and one less."""
    before = num_sockets([os.getpid()])
    with socket.socket():
        assert num_sockets([os.getpid()]) == before + 1
    assert num_sockets([os.getpid()]) == before


@pytest.mark.parametrize(
    ("limits", "given"), [((1024, 9000), [(5000, 9000)]), ((8000, 9000), []), ((1024, 4096), None)]
)
def test_the_soft_limit_of_files_is_raised(
    limits: tuple[int, int], given: list[tuple[int, int]] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it is lower; a hard limit that is too low is an error that names both."""
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr("resource.getrlimit", lambda _: limits)
    monkeypatch.setattr("resource.setrlimit", lambda _, wanted: asked.append(wanted))
    if given is None:
        with pytest.raises(TargetError, match="5000 open files are needed and the hard limit is 4096"):
            allow_files(5000)
    else:
        allow_files(5000)
        assert asked == given
