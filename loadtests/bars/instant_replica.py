"""A replica that answers at once, for measuring what stands in front of it: `python -m loadtests.bars.instant_replica`.

Takes its port and a model's name as arguments and runs until SIGTERM.
"""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from ..processes import free_port, running, wait_until_ready

_ANSWER: dict[str, Any] = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}],
}


async def _health(_: web.Request) -> web.Response:
    return web.Response()


async def _chat(request: web.Request) -> web.Response:
    await request.read()
    return web.json_response(_ANSWER)


async def serve(port: int, model: str) -> None:
    """Until SIGTERM or SIGINT."""

    async def models(_: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": model, "object": "model", "owned_by": "test"}]})

    app = web.Application(client_max_size=64 << 20)
    app.router.add_get("/health", _health)
    app.router.add_get("/v1/models", models)
    app.router.add_post("/v1/chat/completions", _chat)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    await stopped.wait()
    await runner.cleanup()


@asynccontextmanager
async def instant_replica(folder: Path, model: str) -> AsyncIterator[str]:
    """One in a process of its own; its URL. Its output goes to a file in `folder`. Raises `TargetError`."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    log_path = folder / f"replica-{model}.log"
    async with running([sys.executable, "-m", __name__, str(port), model], log_path) as process:
        await wait_until_ready(f"{url}/health", process, log_path, 30.0)
        yield url


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), sys.argv[2]))
