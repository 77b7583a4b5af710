"""A small OpenAI-like server on a port of its own whose every byte is scripted; stands in for engine and gateway."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

Script = Callable[["Stream", dict[str, Any]], Awaitable[None]]


class Stream:
    """The answer to one chat request, written piece by piece."""

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self.response = web.StreamResponse(headers={"content-type": "text/event-stream", "x-tailgate-lane": "standard"})

    async def open(self) -> None:
        await self.response.prepare(self._request)

    async def raw(self, data: bytes) -> None:
        await self.response.write(data)

    async def text(self, text: str, finish_reason: str | None = None) -> None:
        choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish_reason}
        await self.raw(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n")

    async def usage(self, prompt_tokens: int, completion_tokens: int) -> None:
        usage = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens}
        await self.raw(b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n")

    async def done(self) -> None:
        await self.raw(b"data: [DONE]\n\n")


async def plain_answer(stream: Stream, body: dict[str, Any]) -> None:
    """As many one-token chunks as asked for; a prompt token is a word, and the template adds 5."""
    await stream.open()
    await stream.text("")
    for _ in range(body["max_tokens"]):
        await asyncio.sleep(0)
        await stream.text("word ")
    await stream.usage(count_words(body), body["max_tokens"])
    await stream.done()


def count_words(body: dict[str, Any]) -> int:
    return 5 + sum(len(message["content"].split()) for message in body["messages"])


class Recorder:
    """What the server was asked: bodies of chats in order of arrival."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []


@asynccontextmanager
async def scripted_server(
    script: Script = plain_answer, *, has_tokenize: bool = True
) -> AsyncIterator[tuple[str, Recorder]]:
    """Yields base URL and recorder."""
    recorder = Recorder()

    async def chat(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        recorder.bodies.append(body)
        if not body.get("stream"):
            usage = {"prompt_tokens": count_words(body), "completion_tokens": 1}
            return web.json_response({"choices": [], "usage": usage})
        stream = Stream(request)
        await script(stream, body)
        return stream.response

    async def tokenize(request: web.Request) -> web.Response:
        if not has_tokenize:
            return web.json_response({"error": {"message": "no such route"}}, status=404)
        return web.json_response({"count": count_words(await request.json())})

    async def models(_request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "scripted"}]})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", chat)
    app.router.add_post("/tokenize", tokenize)
    app.router.add_get("/v1/models", models)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}", recorder
    finally:
        await runner.cleanup()
