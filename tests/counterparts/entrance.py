"""A gateway that listens, as its clients see it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from gateway.app import Gateway
from tests.support.fake_replica import FakeReplica
from tests.support.gateways import assert_nothing_held, gateway_for
from tests.support.serve import serving, until


@dataclass(frozen=True, slots=True)
class Entrance:
    """`model` is one that it serves."""

    gateway: Gateway
    port: int
    model: str = "m1"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@asynccontextmanager
async def entrance_to(*replicas: FakeReplica, **config: Any) -> AsyncIterator[Entrance]:
    """A listening gateway in front of doubles, that must hold nothing in the end."""
    async with gateway_for(*replicas, **config) as gateway, serving(gateway) as port:
        yield Entrance(gateway, port)
        await until(lambda: gateway.core.num_in_flight == 0)
        assert_nothing_held(gateway)
