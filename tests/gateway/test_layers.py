"""Where the time went: layers that sum to the total, each second in the layer that spent it."""

import asyncio
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import record_headers
from gateway.attribution import Layer, Record
from gateway.connection import Connection
from gateway.engine_timing import EngineTiming, read_engine_timing
from gateway.errors import Headers
from tests.support.asgi import HandDriven
from tests.support.fake_replica import DONE, Call, FakeReplica, answers, delta, hangs, usage_event
from tests.support.gateways import BODY, CHAT, STREAM_BODY, chat_body, gateway_for
from tests.support.serve import until

PLANTED_S = 0.05


class Clock:
    """A clock that moves only when it is told to."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def _record(gateway: Any) -> Record:
    record: Record = list(gateway.ring._records.values())[-1]
    assert sum(record.layers.values()) == pytest.approx(record.total_s, abs=1e-9)
    return record


def _spent(record: Record) -> dict[str, float]:
    return {layer.value: round(spent_s, 6) for layer, spent_s in record.layers.items() if spent_s > 1e-6}


@given(
    st.lists(st.tuples(st.sampled_from(list(Layer)), st.floats(-1.0, 10.0)), max_size=20),
    st.sampled_from(list(Layer)),
    st.floats(-1.0, 100.0),
)
def test_layers_sum_to_the_total(steps: list[tuple[Layer, float]], target: Layer, moved_s: float) -> None:
    """Whatever is entered in whatever order: a clock that runs back, a failed attempt, measured times."""
    now_s = 5.0
    record = Record("id", now_s)
    for index, (layer, step_s) in enumerate(steps):
        now_s += step_s
        record.enter(layer, now_s)
        if index == 3:
            record.begin_attempt(now_s, "r1", "")
        if index == 6:
            record.fail_attempt(now_s, "x")
            assert record.layer is Layer.QUEUE
    record.finish(now_s)
    record.finish(now_s + 100.0)
    record.reassign(Layer.PREFILL, target, moved_s)
    assert sum(record.layers.values()) == pytest.approx(record.total_s, abs=1e-9)
    assert min(record.layers.values()) >= 0.0


async def test_time_planted_in_tokenize() -> None:
    """50 ms of counting are `tokenize`, and nothing else is anything."""
    clock = Clock()
    async with FakeReplica(answers()) as replica, gateway_for(replica, clock=clock) as gateway:
        count = gateway.tokens.count

        async def slowly(*args: Any, **options: Any) -> Any:
            clock.now_s += PLANTED_S
            return await count(*args, **options)

        gateway.tokens.count = slowly  # type: ignore[method-assign]
        await HandDriven(gateway, CHAT).start(BODY).ended()
        assert _spent(_record(gateway)) == {"tokenize": PLANTED_S}


async def test_time_planted_in_queue() -> None:
    """50 ms behind another request are `queue`, with the reason."""
    clock = Clock()
    options: dict[str, Any] = {"policy": {"options": {"fixed": {"in_flight_tokens": 1}}}}
    async with FakeReplica(hangs()) as replica, gateway_for(replica, clock=clock, **options) as gateway:
        first = HandDriven(gateway, CHAT).start(BODY)
        await until(lambda: replica.num_running == 1)
        second = HandDriven(gateway, CHAT).start(BODY)
        await until(lambda: gateway.core.num_queued == 1)
        clock.now_s += PLANTED_S
        replica.behaviour = answers()
        first.disconnect()
        await second.ended()
        record = _record(gateway)
        assert _spent(record) == {"queue": PLANTED_S}
        assert record.notes[Layer.QUEUE] == "capacity"
        assert (b"x-tailgate-reason", b"capacity") in second.headers
        timing = dict(second.headers)[b"server-timing"].decode()
        assert re.search(r'\bqueue;dur=50\.000;desc="capacity"', timing)


async def test_time_planted_in_connect() -> None:
    """50 ms until the connection is there are `connect`."""
    clock = Clock()
    async with FakeReplica(answers()) as replica, gateway_for(replica, clock=clock) as gateway:
        upstream = gateway.upstreams.of("r1", replica.url)
        connect = upstream.connect

        async def slowly() -> Connection:
            clock.now_s += PLANTED_S
            return await connect()

        upstream.connect = slowly  # type: ignore[method-assign]
        await HandDriven(gateway, CHAT).start(BODY).ended()
        assert _spent(_record(gateway)) == {"connect": PLANTED_S}


async def test_time_planted_in_the_body() -> None:
    """50 ms of upload are `accept`."""
    clock = Clock()
    async with FakeReplica(answers()) as replica, gateway_for(replica, clock=clock) as gateway:
        request = HandDriven(gateway, CHAT).start()
        request.receive(BODY[:5], more=True)
        await until(lambda: request._inbox.empty())
        clock.now_s += PLANTED_S
        request.receive(BODY[5:])
        await request.ended()
        assert _spent(_record(gateway)) == {"accept": PLANTED_S}


def _timed(clock: Clock, *, head: str = "", before_s: float = 0.2, between_s: float = 0.3) -> Callable[[Call], Any]:
    async def behave(call: Call) -> None:
        clock.now_s += before_s
        timing = [("server-timing", head)] if head else []
        await call.head(headers=[("content-type", "text/event-stream"), *timing])
        await call.chunk(delta("a"))
        await asyncio.sleep(0.02)  # the gateway has to see the first piece before the clock moves on
        clock.now_s += between_s
        await call.chunk(delta("b") + delta("c") + usage_event(9, 4, metrics={"queue_time_ms": 150.0}) + DONE)
        await call.end()

    return behave


async def test_the_engines_own_times_split_a_stream() -> None:
    """The measured queue time is `engine-queue`, the rest until the first token `prefill`; both in the header."""
    clock = Clock()
    head = 'backend-queue;dur=120, backend-prefill;dur=75.5, backend-cached;desc="6"'
    async with FakeReplica(_timed(clock, head=head)) as replica, gateway_for(replica, clock=clock) as gateway:
        request = HandDriven(gateway, CHAT).start(STREAM_BODY)
        await request.ended()
        record = _record(gateway)
        assert _spent(record) == {"engine-queue": 0.12, "prefill": 0.08, "decode": 0.3}
        assert (record.cached_tokens, record.output_tokens) == (6, 4)
        assert record.ttft_s == pytest.approx(0.2)
        assert record.upstream_ttft_s == pytest.approx(0.2)
        assert record.tpot_s == pytest.approx(0.1)
        assert Layer.PREFILL not in record.notes
        ours = [value for name, value in request.headers if name == b"server-timing"][1].decode()
        assert "engine-queue;dur=120.000" in ours
        assert "prefill;dur=80.000" in ours


async def test_times_from_the_usage_chunk_split_a_stream() -> None:
    """Without a measuring head, vLLM's metrics in the usage chunk say how long the engine's queue was."""
    clock = Clock()
    async with FakeReplica(_timed(clock)) as replica, gateway_for(replica, clock=clock) as gateway:
        await HandDriven(gateway, CHAT).start(STREAM_BODY).ended()
        record = _record(gateway)
        assert _spent(record) == {"engine-queue": 0.15, "prefill": 0.05, "decode": 0.3}


async def test_unmeasured_time_is_marked_as_estimated() -> None:
    """A replica that says nothing: all of it is `prefill`, and says that it is an estimate."""
    clock = Clock()

    async def behave(call: Call) -> None:
        clock.now_s += 0.2
        await call.head(headers=[("content-type", "text/event-stream")])
        await call.chunk(delta("a") + DONE)
        await call.end()

    async with FakeReplica(behave) as replica, gateway_for(replica, clock=clock) as gateway:
        await HandDriven(gateway, CHAT).start(STREAM_BODY).ended()
        record = _record(gateway)
        assert _spent(record) == {"prefill": 0.2}
        assert record.notes[Layer.PREFILL] == "est"
        assert record.output_tokens == 1
        assert record.tpot_s is None


async def test_what_was_seen_of_an_answer_is_counted_when_the_client_leaves() -> None:
    """A token for each event that was passed on, though the replica never came to say how many there were."""

    async def behave(call: Call) -> None:
        await call.head(headers=[("content-type", "text/event-stream")])
        for text in "abc":
            await call.chunk(delta(text))
        await call.gone.wait()

    async with FakeReplica(behave) as replica, gateway_for(replica) as gateway:
        request = HandDriven(gateway, CHAT).start(STREAM_BODY)
        await request.until(lambda: request.body.count(b"data:") == 3)
        request.disconnect()
        await request.ended()
        record = _record(gateway)
        assert (record.outcome, record.output_tokens) == ("client-left", 3)


async def test_a_whole_answer_is_split_too() -> None:
    """By the engine's header, and without it by the metrics in the body."""
    clock = Clock()
    metrics = b'"metrics":{"queue_time_ms":10,"time_to_first_token_ms":40}'
    body = b'{"usage":{"prompt_tokens":5,"completion_tokens":9},%b}' % metrics
    header = "backend-queue;dur=30, backend-prefill;dur=70, backend-decode;dur=80"

    async def behave(call: Call) -> None:
        clock.now_s += 0.2
        measured = [("server-timing", header)] if len(replica.received) == 1 else []
        await call.whole(body, headers=measured)

    async with FakeReplica(behave) as replica, gateway_for(replica, clock=clock) as gateway:
        await HandDriven(gateway, CHAT).start(BODY).ended()
        record = _record(gateway)
        assert _spent(record) == {"engine-queue": 0.03, "decode": 0.08, "prefill": 0.09}
        assert record.upstream_ttft_s == pytest.approx(0.1)
        await HandDriven(gateway, CHAT).start(BODY).ended()
        record = _record(gateway)
        assert _spent(record) == {"engine-queue": 0.01, "decode": 0.15, "prefill": 0.04}
        assert record.output_tokens == 9


async def test_a_slow_client_is_relay() -> None:
    """The time a send takes is the client's, not the replica's."""
    clock = Clock()
    taken = asyncio.Event()

    async def behave(call: Call) -> None:
        await call.head(headers=[("content-type", "text/event-stream")])
        await call.chunk(delta("a"))
        await taken.wait()
        clock.now_s += 0.2
        await call.chunk(DONE)
        await call.end()

    async with FakeReplica(behave) as replica, gateway_for(replica, clock=clock) as gateway:
        request = HandDriven(gateway, CHAT, num_free_sends=1).start(STREAM_BODY)
        await request.until(lambda: len(request.sent) == 2)
        clock.now_s += PLANTED_S
        request.may_send.set()
        taken.set()
        await request.ended()
        record = _record(gateway)
        assert _spent(record) == {"relay": PLANTED_S, "decode": 0.2}
        assert record.ttft_s == pytest.approx(PLANTED_S)


def _headers(value: str) -> Headers:
    return [(b"server-timing", b"db;dur=3"), (b"server-timing", value.encode())]


@pytest.mark.parametrize(
    ("value", "timing"),
    [
        ("backend-queue;dur=1, backend-prefill;dur=2", EngineTiming(0.001, 0.002, None, None)),
        (
            'backend-prefill; dur=2 ,backend-queue;dur="1", backend-cached;desc="x"',
            EngineTiming(0.001, 0.002, None, None),
        ),
        (
            'backend-queue;dur=1,backend-prefill;dur=2,backend-decode;dur=3,backend-cached;desc="12"',
            EngineTiming(0.001, 0.002, 0.003, 12),
        ),
        ("backend-queue;dur=1", None),
        ("backend-queue;dur=nan, backend-prefill;dur=2", None),
        ("backend-queue;dur=-1, backend-prefill;dur=2", None),
        ("backend-queue;dur=x, backend-prefill", None),
        ("cache", None),
    ],
)
def test_the_engines_header(value: str, timing: EngineTiming | None) -> None:
    """What it measured, or nothing where it makes no sense."""
    assert read_engine_timing(_headers(value)) == timing


def test_a_record_as_data_and_as_headers() -> None:
    """Milliseconds and plain names; configured names that a header can't hold are not put into one."""
    record = Record("tg-1", 0.0, route="chat")
    record.enter(Layer.TOKENIZE, 0.001, "local")
    record.begin_attempt(0.003, "r\n1", "least tokens")
    record.ttft_s = 0.25
    data = record.to_dict()
    assert data["layers_ms"] == {"accept": 1.0, "tokenize": 2.0}
    assert (data["ttft_ms"], data["tpot_ms"], data["total_ms"]) == (250.0, None, 3.0)
    headers = dict(record_headers.headers(record))
    assert headers[b"server-timing"] == b'accept;dur=1.000, tokenize;dur=2.000;desc="local"'
    assert headers[b"x-tailgate-replica"] == b"?"
    assert headers[b"x-tailgate-attempt"] == b"1"


async def test_a_request_that_is_moved_down_is_told() -> None:
    """Declared interactive, but far larger than that lane takes: the lane and the reason are in the headers."""
    async with FakeReplica(answers()) as replica, gateway_for(replica) as gateway:
        body = chat_body(messages=[{"role": "user", "content": "x" * 400_000}])
        request = HandDriven(gateway, CHAT, headers=[(b"x-tailgate-lane", b"interactive")]).start(body)
        await request.ended()
        headers = dict(request.headers)
        assert headers[b"x-tailgate-lane"] != b"interactive"
        assert headers[b"x-tailgate-reason"].startswith(b"declared interactive, but")


@pytest.mark.parametrize(("priority", "lane"), [(-5, "interactive"), (7, "background"), (0, None)])
async def test_the_bodys_priority_declares_a_lane(priority: int, lane: str | None) -> None:
    """vLLM's sign: below zero goes first."""
    async with FakeReplica(answers()) as replica, gateway_for(replica) as gateway:
        await HandDriven(gateway, CHAT).start(chat_body(priority=priority)).ended()
        assert _record(gateway).declared_lane == lane
