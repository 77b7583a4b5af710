"""Servers under test, started as subprocesses: the bundled engine, the gateway, another engine.

Each is a context manager that starts one child, waits until it is ready, and ends exactly that child.
"""

import asyncio
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from .errors import TargetError

_READY = re.compile(r"^tailgate-backend ready url=(?P<url>\S+) model=(?P<model>\S+)", re.MULTILINE)
_STOP_GRACE_S = 15.0
_POLL_S = 0.05


@asynccontextmanager
async def running(
    command: Sequence[str], log_path: Path, environment: Mapping[str, str] | None = None
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Runs a command with its output in `log_path`; on leaving, SIGTERM, and SIGKILL if it stays 15 s."""
    with log_path.open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *command, stdout=log, stderr=log, env={**os.environ, **(environment or {})}
        )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(_STOP_GRACE_S):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()


@asynccontextmanager
async def bundled_engine(
    flags: Sequence[str] = (),
    *,
    tokenizer_dir: Path | None = None,
    start_limit_s: float = 240.0,
    prefix: Sequence[str] = (),
) -> AsyncIterator[tuple[str, str]]:
    """`tailgate-backend serve` on a free port; yields its URL and model name. `prefix` goes before the command."""
    with tempfile.TemporaryDirectory() as folder:
        log_path = Path(folder) / "engine.log"
        command = [*prefix, script("tailgate-backend"), "serve", "--port", "0", *flags]
        if tokenizer_dir is not None:
            command += ["--export-tokenizer", str(tokenizer_dir)]
        async with running(command, log_path) as process:
            deadline_s = time.monotonic() + start_limit_s
            while (ready := _READY.search(_read(log_path))) is None:
                _check_alive(process, log_path, deadline_s)
                await asyncio.sleep(_POLL_S)
            yield ready["url"], ready["model"]


@asynccontextmanager
async def gateway(config: Mapping[str, Any], *, start_limit_s: float = 30.0) -> AsyncIterator[str]:
    """`tailgate serve --config` on a free loopback port; yields its URL once /readyz answers 200."""
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        log_path = Path(folder) / "gateway.log"
        url = f"http://127.0.0.1:{port}"
        async with running(gateway_command(config, Path(folder), port), log_path) as process:
            await wait_until_ready(f"{url}/readyz", process, log_path, start_limit_s)
            yield url


def gateway_command(config: Mapping[str, Any], folder: Path, port: int) -> list[str]:
    """`tailgate serve --config` on that loopback port; its configuration and access log are files in `folder`."""
    path = folder / "gateway.yaml"
    whole = {
        "listen": {"host": "127.0.0.1", "port": port},
        "log": {"level": "warning", "access": str(folder / "access.jsonl")},
        **config,
    }
    path.write_text(yaml.safe_dump(whole), encoding="utf-8")
    return [script("tailgate"), "serve", "--config", str(path)]


def pinned(core: int | None) -> tuple[str, ...]:
    """What goes before a command so that it runs on one core; nothing for None."""
    return () if core is None else ("taskset", "-c", str(core))


async def wait_until_ready(url: str, process: asyncio.subprocess.Process, log_path: Path, limit_s: float) -> None:
    """Polls `url` until it answers 200. Raises `TargetError` with the end of the log if the process ends or it takes
    longer than `limit_s`."""
    deadline_s = time.monotonic() + limit_s
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5.0)) as session:
        while True:
            try:
                async with session.get(url) as response:
                    if response.status == 200:
                        return
            except (aiohttp.ClientError, TimeoutError):
                pass
            _check_alive(process, log_path, deadline_s)
            await asyncio.sleep(_POLL_S)


def script(name: str) -> str:
    """Path of a console script of the environment this Python runs in. Raises `TargetError` where it is missing."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.is_file() else shutil.which(name)
    if found is None:
        raise TargetError(f"{name} is not installed in this environment")
    return found


def free_port() -> int:
    """A loopback TCP port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _check_alive(process: asyncio.subprocess.Process, log_path: Path, deadline_s: float) -> None:
    if process.returncode is not None:
        ended = f"{log_path.stem} ended with status {process.returncode} before it was ready"
        raise TargetError(f"{ended}:\n{tail(log_path)}")
    if time.monotonic() > deadline_s:
        raise TargetError(f"{log_path.stem} was not ready in time:\n{tail(log_path)}")


def tail(log_path: Path) -> str:
    """The last lines of a log."""
    return "\n".join(_read(log_path).splitlines()[-15:])


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")
