"""Whatever bytes a replica answers with, its client gets an honest answer or a visibly broken one, and soon."""

import asyncio
import random

from gateway.app import Gateway
from tests.support.fake_replica import DONE, Call, FakeReplica, answers, delta, finish
from tests.support.gateways import BODY, CHAT, STREAM_BODY, assert_nothing_held, gateway_for
from tests.support.serve import RawClient, ask, post, serving, until

from .effort import EFFORT, mutated, seeded

NUM_ANSWERS = 500 * EFFORT
AT_ONCE = 10
ODD = b"\0\r\n :,;xX0159afAF-\xff"
JSON = b'{"id":"c","choices":[],"usage":{"prompt_tokens":5,"completion_tokens":2}}'


def _chunked(*pieces: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


WHOLE = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(JSON), JSON)
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n" + _chunked(
    delta("a"), delta("b") + finish(), DONE
)
VALID = (
    WHOLE,
    STREAM,
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n" + WHOLE,
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + delta("a") + DONE,
    b"HTTP/1.1 204 No Content\r\n\r\n",
    b"HTTP/1.0 200 OK\r\ncontent-type: application/json\r\n\r\n" + JSON,
    b"HTTP/1.1 503 X\r\nretry-after: 1\r\ncontent-length: 2\r\n\r\n{}",
)


def _answer(rng: random.Random) -> bytes:
    if rng.random() < 0.1:
        return rng.randbytes(rng.randint(0, 200))
    return mutated(rng.choice(VALID), rng, ODD)


async def _one(port: int, rng: random.Random) -> None:
    async with RawClient(port, post(CHAT, rng.choice((BODY, STREAM_BODY)))) as client:
        await client.read_all()
        # The head is the gateway's own, so it is well formed; a body may break off, and shows it then.
        assert 200 <= client.status < 600
        assert client.header(b"x-tailgate-request-id")


async def _sees_nothing_odd(gateway: Gateway, port: int, replica: FakeReplica) -> None:
    await until(lambda: gateway.core.num_in_flight == 0 and replica.num_running == 0)
    assert_nothing_held(gateway)
    replica.behaviour = answers()
    assert (await ask(port, CHAT, BODY)).status == 200


async def test_random_answers() -> None:
    """Mutated and random ones, cut into packets anywhere, the connection closed behind them."""
    rng = seeded()

    async def behave(call: Call) -> None:
        data = _answer(rng)
        cut = rng.randint(0, len(data))
        await call.send(data[:cut])
        await asyncio.sleep(0)
        await call.send(data[cut:])
        call.close()

    async with (
        FakeReplica(behave) as replica,
        gateway_for(replica, timeouts={"first_byte_s": 5.0, "idle_s": 5.0}) as gateway,
        serving(gateway) as port,
    ):
        for _ in range(NUM_ANSWERS // AT_ONCE):
            await asyncio.gather(*(_one(port, rng) for _ in range(AT_ONCE)))
        await _sees_nothing_odd(gateway, port, replica)
        failed = [record for record in gateway.ring._records.values() if record.status == 500 and record.attempt == 0]
        assert failed == []


async def test_random_answers_to_probes() -> None:
    """Health, models and metrics: the replica is out until they are sane, and then it serves."""
    rng = seeded()
    async with FakeReplica(answers()) as replica, gateway_for(replica, probes={"interval_s": 0.01}) as gateway:
        whole = replica._probe
        is_random = True

        async def probe(call: Call) -> None:
            if is_random:
                await call.send(_answer(rng))
                call.close()
            else:
                await whole(call)

        replica._probe = probe  # type: ignore[method-assign]
        num_before = replica.num_connections
        await until(lambda: replica.num_connections > num_before + 100 * EFFORT, deadline_s=60.0 * EFFORT)
        is_random = False
        async with serving(gateway) as port:
            await until(lambda: gateway.pool.get("r1").is_available)
            assert (await ask(port, CHAT, BODY)).status == 200
        assert_nothing_held(gateway)
