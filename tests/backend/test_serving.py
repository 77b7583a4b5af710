"""The server process's own part: its connections, and how it ends under load."""

import asyncio
import contextlib
import re
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import orjson
import pytest
import uvicorn

from backend.server import ServedModel, build_app
from backend.serving import bind, new_server
from tests.support.serve import RawClient, post, until

from .fake_model import FakeRunner, FakeTokenizer, make_engine

COMPLETIONS = "/v1/completions"
# Long for an answer of the fake model, short for a test.
GRACE_S = 0.3


@dataclass
class Served:
    port: int
    server: uvicorn.Server
    runner: FakeRunner
    tokenizer: FakeTokenizer
    ended: asyncio.Task[None]

    async def end(self) -> float:
        """As a signal does; the seconds it took."""
        started_s = asyncio.get_running_loop().time()
        self.server.should_exit = True
        async with asyncio.timeout(10.0):
            await self.ended
        return asyncio.get_running_loop().time() - started_s


@asynccontextmanager
async def served(monkeypatch: pytest.MonkeyPatch, **engine_options: Any) -> AsyncIterator[Served]:
    """The application on the engine's own server, in this loop."""
    engine, runner, _, metrics = make_engine(max_model_len=128, **engine_options)
    tokenizer = FakeTokenizer()
    model = ServedModel(names=["fake"], root="fake", tokenizer=tokenizer, created_s=1)
    sock = bind("127.0.0.1", 0)
    server = new_server(build_app(engine, metrics, model), lambda: None, grace_s=GRACE_S)
    # Signals belong to the test process.
    monkeypatch.setattr(server, "capture_signals", contextlib.nullcontext)
    task = asyncio.create_task(server.serve(sockets=[sock]))
    await until(lambda: server.started or task.done())
    try:
        yield Served(sock.getsockname()[1], server, runner, tokenizer, task)
    finally:
        tokenizer.may_encode.set()
        server.should_exit = True
        await task


def generation(**fields: Any) -> bytes:
    return post(COMPLETIONS, orjson.dumps({"prompt": "ab", "max_tokens": 2, **fields}))


@pytest.mark.parametrize("upgrade", ["h2c", "websocket", "anything/2"])
@pytest.mark.parametrize("framing", ["length", "chunked"])
@pytest.mark.parametrize("num_pieces", [1, 2])
async def test_a_wish_to_upgrade_is_ignored(
    monkeypatch: pytest.MonkeyPatch, upgrade: str, framing: str, num_pieces: int
) -> None:
    """The body is read as the body, also one that would be a request, and the connection goes on."""
    good = orjson.dumps({"prompt": "ab", "max_tokens": 1})
    smuggled = b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n"
    async with served(monkeypatch) as backend:
        reader, writer = await asyncio.open_connection("127.0.0.1", backend.port)
        with contextlib.closing(writer):
            for content, status in ((good, 200), (smuggled, 400), (good, 200)):
                lines = ["POST /v1/completions HTTP/1.1", "host: engine", f"upgrade: {upgrade}"]
                lines += ["connection: upgrade, http2-settings", "http2-settings: AAMAAABkAAQ"]
                if framing == "length":
                    lines.append(f"content-length: {len(content)}")
                    framed = content
                else:
                    lines.append("transfer-encoding: chunked")
                    framed = b"%x\r\n%b\r\n0\r\n\r\n" % (len(content), content)
                head = "\r\n".join([*lines, "", ""]).encode()
                for piece in (head, framed) if num_pieces == 2 else (head + framed,):
                    writer.write(piece)
                    await writer.drain()
                assert await read_answer(reader) == status


async def read_answer(reader: asyncio.StreamReader) -> int:
    """The status of a whole answer of known length."""
    async with asyncio.timeout(10.0):
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head)
        assert length is not None
        await reader.readexactly(int(length[1]))
    return int(head.split()[1])


async def test_the_end_under_load_is_told_on_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the grace: a JSON 503 where no answer began (waiting, running, being tokenised or read), else an event."""
    async with served(monkeypatch, max_num_seqs=1) as backend:
        gate = threading.Event()
        backend.runner.before_forward = lambda rows: None if backend.runner.num_steps < 3 else hold(gate)
        long = {"max_tokens": 100, "ignore_eos": True}
        async with contextlib.AsyncExitStack() as stack:

            async def ask(request: bytes) -> RawClient:
                return await stack.enter_async_context(RawClient(backend.port, request))

            streaming = await ask(generation(stream=True, **long))
            await streaming.read_until(lambda: streaming.body.count(b"data: ") >= 2)
            waiting = [await ask(generation(stream=stream, **long)) for stream in (True, False)]
            half = await ask(generation()[:-5])
            await until(lambda: len(backend.server.server_state.tasks) == 4)
            backend.tokenizer.may_encode.clear()
            tokenised = [
                await ask(generation()),
                await ask(post("/tokenize", b'{"prompt": "ab"}')),
            ]
            await until(lambda: len(backend.server.server_state.tasks) == 6)
            ending = asyncio.create_task(backend.end())
            for client in (*waiting, half, *tokenised):
                await client.read_all()
                assert client.status == 503
                assert orjson.loads(client.body)["error"]["message"] == "the engine was stopped"
            await streaming.read_all()
            assert not ending.done()  # the step that runs is what it waits for
            gate.set()
            took_s = await ending
    assert streaming.is_complete
    *_, error, done = streaming.body.decode().strip().split("\n\n")
    assert orjson.loads(error.removeprefix("data: "))["error"]["type"] == "server_error"
    assert done == "data: [DONE]"
    assert GRACE_S <= took_s < GRACE_S + 1.0


def hold(gate: threading.Event) -> None:
    assert gate.wait(10.0)


async def test_an_answer_that_ends_within_the_grace_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is cut that had time enough, and nobody waits for the grace to be over."""
    async with served(monkeypatch) as backend:
        gate = threading.Event()
        backend.runner.before_forward = lambda rows: hold(gate)
        async with RawClient(backend.port, generation()) as client:
            await until(lambda: len(backend.server.server_state.tasks) == 1)
            ending = asyncio.create_task(backend.end())
            await asyncio.sleep(0)
            gate.set()
            await client.read_all()
            assert client.status == 200
            await ending
