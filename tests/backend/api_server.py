"""The engine's HTTP application over the fake model, on a real server and a free port."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import orjson

from backend.engine import Engine
from backend.server import ServedModel, build_app
from tests.support.serve import serving, until

from .fake_model import FakeRunner, FakeTokenizer, make_engine


@dataclass
class Api:
    """A running server and what is inside it."""

    port: int
    http: httpx.AsyncClient
    engine: Engine
    runner: FakeRunner
    tokenizer: FakeTokenizer

    async def post(self, path: str, **body: Any) -> httpx.Response:
        return await self.http.post(path, json=body)

    async def events(self, path: str, **body: Any) -> list[dict[str, Any]]:
        """The events of a stream, which must end with [DONE]."""
        response = await self.post(path, stream=True, **body)
        assert response.status_code == 200, response.text
        return parse_events(response.text)

    async def idle(self) -> None:
        """Wait until the engine has nothing to do and holds no block."""
        await until(lambda: not (self.engine.num_running or self.engine.num_waiting or self.engine.held_blocks))


def parse_events(text: str) -> list[dict[str, Any]]:
    """Data of an event stream, without the end marker, which must be there."""
    events = [event.removeprefix("data: ") for event in text.split("\n\n") if event]
    assert events.pop() == "[DONE]"
    return [orjson.loads(event) for event in events]


@asynccontextmanager
async def api(**engine_options: Any) -> AsyncIterator[Api]:
    """Serve the fake model as "fake" and "alias"; nothing may be left in the engine at the end."""
    engine_options.setdefault("max_model_len", 128)
    engine, runner, _, metrics = make_engine(**engine_options)
    tokenizer = FakeTokenizer()
    model = ServedModel(names=("fake", "alias"), root="fake-root", tokenizer=tokenizer, created_s=1)
    async with (
        serving(build_app(engine, metrics, model, max_body_bytes=100_000)) as port,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=10.0) as http,
    ):
        served = Api(port, http, engine, runner, tokenizer)
        yield served
        await served.idle()
