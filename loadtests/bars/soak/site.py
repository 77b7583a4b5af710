"""The soak's gateway, started as a user starts it, and its replicas, of which one dies now and then and comes back."""

import asyncio
import random
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ...errors import TargetError
from ...processes import free_port, running, script, wait_until_ready
from .replica import MODELS
from .visits import MAX_BODY_BYTES

REPLICAS = ("a", "b", "c", "d")
STEADY_TENANTS = ("one", "two", "narrow", "slow")
LEAVING, SCATTERED = "leaving", "scattered"
# What their keys allow; all of it is generous enough that most is served, and tight enough that some is refused.
_LIMITS: dict[str, tuple[str, ...]] = {
    "one": (),
    "two": ("--tokens-per-min", "50000000"),
    "narrow": ("--max-in-flight-requests", "12", "--max-in-flight-tokens", "40000"),
    "slow": ("--requests-per-min", "1500", "--tokens-per-min", "600000"),
    LEAVING: ("--max-in-flight-requests", "60", "--max-in-flight-tokens", "400000"),
    SCATTERED: ("--requests-per-min", "100000", "--max-in-flight-tokens", "400000"),
}
_START_LIMIT_S = 60.0
_STOP_LIMIT_S = 8.0
_RELOAD_LIMIT_S = 20.0
_PROBE_S, _PROBE_LIMIT_S = 1.0, 1.0
_SELDOM_S = 3600.0
_FORGOTTEN_S = 6.0
"""Longer than the gateway keeps idle connections."""
_WAS_READ = "the configuration was read again"


@dataclass(slots=True)
class Site:
    """What runs. `config` is the gateway's; whoever holds `deaths` keeps the replicas alive."""

    port: int
    admin_url: str
    gateway: asyncio.subprocess.Process
    replica_ports: tuple[int, ...]
    keys: dict[str, str]
    folder: Path
    config: dict[str, Any] = field(default_factory=dict)
    deaths: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def access_log(self) -> Path:
        return self.folder / "access.jsonl"

    @property
    def gateway_log(self) -> Path:
        return self.folder / "gateway.log"

    def journals(self) -> list[Path]:
        return [self.folder / f"{name}.journal" for name in REPLICAS]

    @asynccontextmanager
    async def quiet(self) -> AsyncIterator[None]:
        """No replica dies, the gateway asks none of them anything, and has closed the connections it did so over."""
        async with self.deaths:
            await self._probe_every(_SELDOM_S)
            await asyncio.sleep(_FORGOTTEN_S)
            yield
            await self._probe_every(_PROBE_S)

    async def _probe_every(self, interval_s: float) -> None:
        """Raises TargetError where the gateway doesn't take it."""
        self.config["probes"]["interval_s"] = interval_s
        _write(self.folder, self.config)
        wanted = self._num_reloads() + 1
        self.gateway.send_signal(signal.SIGHUP)
        try:
            async with asyncio.timeout(_RELOAD_LIMIT_S):
                while self._num_reloads() < wanted:  # noqa: ASYNC110 - another process does it
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise TargetError("the gateway did not read its configuration again") from None

    def _num_reloads(self) -> int:
        return self.gateway_log.read_text(encoding="utf-8", errors="replace").count(_WAS_READ)

    async def stop(self) -> bool:
        """SIGTERM: with nothing being served the gateway ends at once, whatever the grace is."""
        self.gateway.terminate()
        try:
            async with asyncio.timeout(_STOP_LIMIT_S):
                return await self.gateway.wait() == 0
        except TimeoutError:
            return False


@asynccontextmanager
async def site(seed: str, *, num_remembered: int) -> AsyncIterator[Site]:
    """Started and ready. `num_remembered`: finished requests whose timing is kept. Raises TargetError."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        keys = {tenant: await _key(folder / "keys.json", tenant) for tenant in _LIMITS}
        ports = tuple(free_port() for _ in REPLICAS)
        fleet = [_Member(name, port, seed, folder) for name, port in zip(REPLICAS, ports, strict=True)]
        for member in fleet:
            stack.push_async_callback(member.stop)
            await member.start()
        port, admin_port = free_port(), free_port()
        config = _config(ports, port, admin_port, num_remembered)
        path = _write(folder, config)
        log_path, admin_url = folder / "gateway.log", f"http://127.0.0.1:{admin_port}"
        command = [script("tailgate"), "serve", "--config", str(path)]
        process = await stack.enter_async_context(running(command, log_path))
        await wait_until_ready(f"{admin_url}/readyz", process, log_path, _START_LIMIT_S)
        where = Site(port, admin_url, process, ports, keys, folder, config)
        dying = asyncio.create_task(_die_and_come_back(fleet, random.Random(f"{seed}/deaths"), where.deaths))
        stack.push_async_callback(_cancel, dying)
        yield where


def _write(folder: Path, config: dict[str, Any]) -> Path:
    """The file that the gateway reads."""
    path = folder / "gateway.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    return path


def _config(ports: tuple[int, ...], port: int, admin_port: int, num_remembered: int) -> dict[str, Any]:
    also = ["detokenize", "count-tokens"]
    return {
        "listen": {"host": "127.0.0.1", "port": port},
        "admin": {"listen": {"host": "127.0.0.1", "port": admin_port}},
        "keys": "keys.json",
        "replicas": [
            {
                "id": name,
                "url": f"http://127.0.0.1:{replica_port}",
                "models": list(MODELS if name in ("a", "b") else MODELS[:1]),
                # These two count tokens for the gateway as well.
                "also_serves": [*also, "tokenize"] if name == "b" else also,
                "max_in_flight_requests": 24,
            }
            for name, replica_port in zip(REPLICAS, ports, strict=True)
        ],
        "policy": {"options": {"fixed": {"in_flight_tokens": 400_000}, "queue": {"max_requests": 60}}},
        "timeouts": {
            "connect_s": 2.0,
            "first_byte_s": 3.0,
            "idle_s": 3.0,
            "queue_s": 6.0,
            "head_s": 3.0,
            "receive_s": 5.0,
            "send_s": 6.0,
        },
        "limits": {"max_body_bytes": MAX_BODY_BYTES},
        "probes": {"interval_s": _PROBE_S, "timeout_s": _PROBE_LIMIT_S},
        "timing_ring": num_remembered,
        # At this level it says when it has read its configuration again.
        "log": {"level": "info", "access": "access.jsonl"},
    }


async def _key(path: Path, tenant: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *(script("tailgate"), "keys", "create", "--file", str(path), "--tenant", tenant, *_LIMITS[tenant]),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, errors = await process.communicate()
    if process.returncode != 0:
        raise TargetError(f"no key could be made: {errors.decode()}")
    return out.decode().strip()


class _Member:
    """A replica's process, which may be killed and started again on its port."""

    def __init__(self, name: str, port: int, seed: str, folder: Path) -> None:
        self._command = (sys.executable, "-m", "loadtests.bars.soak.replica", str(port), name, seed)
        self._journal = folder / f"{name}.journal"
        self._log_path = folder / f"{name}.log"
        self._url = f"http://127.0.0.1:{port}/health"
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        with self._log_path.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, str(self._journal), stdout=log, stderr=log
            )
        await wait_until_ready(self._url, self._process, self._log_path, _START_LIMIT_S)

    async def stop(self) -> None:
        """At once, in the middle of whatever it does."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.kill()
            await process.wait()


async def _die_and_come_back(fleet: list[_Member], rng: random.Random, deaths: asyncio.Lock) -> None:
    while True:
        await asyncio.sleep(rng.uniform(8.0, 20.0))
        async with deaths:
            member = rng.choice(fleet)
            await member.stop()
            await asyncio.sleep(rng.uniform(0.2, 2.5))
            await member.start()


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])
