"""A whole gateway in front of replicas, started and with its replicas probed."""

import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Protocol

from gateway.app import Gateway, build_app
from gateway.config import parse_config

from .serve import until

CHAT = "/v1/chat/completions"
BODY = b'{"model":"m1","messages":[{"role":"user","content":"hi"}]}'
STREAM_BODY = b'{"model":"m1","stream":true,"messages":[{"role":"user","content":"hi"}]}'


class Server(Protocol):
    """A fake replica, or a process with a real one."""

    @property
    def url(self) -> str: ...


def chat_body(**fields: Any) -> bytes:
    """A chat request with more fields, or other ones."""
    return json.dumps({"model": "m1", "messages": [{"role": "user", "content": "hi"}]} | fields).encode()


def configured(*replicas: Server, replica: dict[str, Any] | None = None, **sections: Any) -> Any:
    """A configuration for these replicas, quiet and quick to probe."""
    return parse_config(
        {
            "replicas": [{"url": each.url, **(replica or {})} for each in replicas],
            "log": {"access": None},
            "probes": {"interval_s": 60.0},
            **sections,
        },
        source="test",
    )


@asynccontextmanager
async def gateway_for(
    *replicas: Server, clock: Callable[[], float] = time.monotonic, **config: Any
) -> AsyncIterator[Gateway]:
    """A running gateway whose replicas are all available."""
    gateway = build_app(configured(*replicas, **config), clock=clock)
    await gateway.start()
    try:
        await until(lambda: all(replica.is_available for replica in gateway.pool.all()))
        yield gateway
    finally:
        await gateway.aclose()


def assert_nothing_held(gateway: Gateway) -> None:
    """No place in the queue, no slot, no busy upstream connection, and the core's books agree."""
    gateway.core.check_integrity()
    assert gateway.core.num_queued == 0
    assert gateway.core.num_in_flight == 0
    assert gateway.upstreams.num_open == gateway.upstreams.num_idle
