"""Connections refer back to nothing when they are over: cycles are looked for so seldom that they would pile up."""

import gc

import pytest

from gateway.connection import Connection
from gateway.protocol import ClientConnection
from tests.support.fake_replica import Call, FakeReplica
from tests.support.gateways import BODY, CHAT, gateway_for
from tests.support.serve import RawClient, post, serving, until


def _num_alive() -> int:
    return sum(type(item) in (ClientConnection, Connection) for item in gc.get_objects())


async def _answers_and_closes(call: Call) -> None:
    await call.whole(b"{}")
    call.close()


@pytest.mark.parametrize("leaves", [False, True])
async def test_a_connection_that_is_over_is_freed_at_once(leaves: bool) -> None:
    """The client's and the replica's, whether the answer was complete or the client left."""
    async with FakeReplica(_answers_and_closes) as replica, gateway_for(replica) as gateway, serving(gateway) as port:
        gc.collect()
        num_before = _num_alive()
        gc.disable()
        try:
            async with RawClient(port, post(CHAT, BODY)) as client:
                if leaves:
                    await until(lambda: len(replica.received) == 1)
                    client.leave()
                else:
                    await client.read_all()
            await until(lambda: gateway.front.num_open == gateway.upstreams.num_open == 0)
            await until(lambda: _num_alive() <= num_before)
        finally:
            gc.enable()
