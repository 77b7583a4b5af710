"""A body given to a sink straight from the replica's connection: in order, whole, and only as fast as it is taken."""

import asyncio

import pytest

from gateway.upstream import Exchange, Upstream
from gateway.upstream_errors import UpstreamClosed, UpstreamGarbled, UpstreamTimeout
from tests.support.fake_replica import Call, FakeReplica, answers
from tests.support.serve import until

REQUEST = b"POST /x HTTP/1.1\r\nhost: r\r\ncontent-length: 0\r\n\r\n"


def _exchange(replica: FakeReplica, *, gap_s: float = 10.0) -> Exchange:
    return Upstream(replica.url, connect_s=5.0, first_byte_s=10.0, gap_s=gap_s).exchange(REQUEST, b"")


class Sink:
    """Keeps what it gets; says no to a piece while `is_full`."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.is_full = False

    def __call__(self, piece: bytes) -> bool:
        self.pieces.append(piece)
        return not self.is_full


async def test_pieces_come_one_by_one_and_the_end_is_returned() -> None:
    """Each in the callback that received it; the task that pours wakes once, for the end."""
    sink = Sink()
    taken = asyncio.Event()

    async def behave(call: Call) -> None:
        await call.head()
        for number in range(5):
            await call.chunk(b"%d;" % number)
            await until(lambda number=number: b"%d;" % number in sink.pieces)  # type: ignore[misc]
        taken.set()
        await call.send(b"4\r\nlast\r\n0\r\n\r\n")

    async with FakeReplica(behave) as replica:
        exchange = _exchange(replica)
        await exchange.send()
        await exchange.head()
        assert await exchange.pour(sink) == b"last"
        assert taken.is_set()
        assert sink.pieces == [b"0;", b"1;", b"2;", b"3;", b"4;"]
        assert exchange.is_at_end
        exchange.close()


async def test_an_answer_that_is_there_already_needs_no_sink() -> None:
    """All of it is the end."""
    async with FakeReplica(answers(b'{"a":1}')) as replica:
        exchange = _exchange(replica)
        await exchange.send()
        await exchange.head()
        sink = Sink()
        last = await exchange.pour(sink)
        assert b"".join([*sink.pieces, last]) == b'{"a":1}'
        exchange.close()


async def test_a_sink_that_refuses_stops_the_replica() -> None:
    """It has taken that piece; nothing more is read until the next pour, and no byte is lost."""
    sent_bytes = 0
    piece = b"x" * 65_536

    async def behave(call: Call) -> None:
        nonlocal sent_bytes
        await call.head()
        for _ in range(400):
            await call.chunk(piece)
            sent_bytes += len(piece)
        await call.end()

    async with FakeReplica(behave) as replica:
        exchange = _exchange(replica)
        await exchange.send()
        await exchange.head()
        sink = Sink()
        sink.is_full = True
        assert await exchange.pour(sink) == b""
        assert len(sink.pieces) == 1
        stuck_at = -1
        while stuck_at != sent_bytes:  # the sockets' buffers fill, then the replica stands still
            stuck_at = sent_bytes
            for _ in range(20):
                await asyncio.sleep(0)
        assert sent_bytes < 400 * len(piece)
        assert len(sink.pieces) == 1
        last = b""
        for round_number in range(100_000):
            sink.is_full = round_number % 2 == 0
            last = await exchange.pour(sink)
            if exchange.is_at_end:
                break
        assert b"".join([*sink.pieces, last]) == piece * 400
        exchange.close()


async def test_a_body_that_breaks_off_is_given_as_far_as_it_came() -> None:
    """Then the failure is raised, as often as asked."""

    async def behave(call: Call) -> None:
        await call.head()
        await call.chunk(b"part")
        call.close()

    async with FakeReplica(behave) as replica:
        exchange = _exchange(replica)
        await exchange.send()
        await exchange.head()
        sink = Sink()
        for _ in range(2):
            with pytest.raises(UpstreamClosed):
                await exchange.pour(sink)
        assert sink.pieces == [b"part"]
        exchange.close()


async def test_rubbish_behind_a_piece_loses_nothing_before_it() -> None:
    """A piece that came with the bytes that aren't HTTP is given all the same."""

    async def behave(call: Call) -> None:
        await call.head()
        await call.chunk(b"one")
        await until(lambda: bool(sink.pieces))
        await call.send(b"3\r\ntwo\r\nZZZ\r\n")
        await call.gone.wait()

    sink = Sink()
    async with FakeReplica(behave) as replica:
        exchange = _exchange(replica)
        await exchange.send()
        await exchange.head()
        with pytest.raises(UpstreamGarbled):
            await exchange.pour(sink)
        assert sink.pieces == [b"one", b"two"]
        exchange.close()


async def test_silence_between_pieces_is_bounded_and_a_slow_sink_is_no_silence() -> None:
    """The gap is measured from piece to piece, and only while more is wanted."""

    async def behave(call: Call) -> None:
        await call.head()
        await call.chunk(b"one")
        await call.gone.wait()

    gap_s = 0.05
    async with FakeReplica(behave) as replica:
        exchange = _exchange(replica, gap_s=gap_s)
        await exchange.send()
        await exchange.head()
        sink = Sink()
        sink.is_full = True
        assert await exchange.pour(sink) == b""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        await until(lambda: loop.time() > began_s + 3 * gap_s)
        sink.is_full = False
        with pytest.raises(UpstreamTimeout):
            await exchange.pour(sink)
        assert loop.time() - began_s >= 4 * gap_s - 0.002
        exchange.close()


async def test_a_cancelled_pour_takes_its_sink_with_it() -> None:
    """What comes afterwards goes to nobody."""
    go_on = asyncio.Event()

    async def behave(call: Call) -> None:
        await call.head()
        await call.chunk(b"one")
        await go_on.wait()
        await call.chunk(b"two")
        await call.gone.wait()

    sink = Sink()
    async with FakeReplica(behave) as replica:
        exchange = _exchange(replica)
        await exchange.send()
        await exchange.head()
        pouring = asyncio.ensure_future(exchange.pour(sink))
        await until(lambda: bool(sink.pieces))
        pouring.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pouring
        go_on.set()
        assert await exchange.read() == b"two"
        assert sink.pieces == [b"one"]
        exchange.close()


async def test_a_shorter_limit_is_kept_though_the_timer_was_set_for_a_longer_one() -> None:
    """The timer outlives exchanges; each exchange still has its own limit."""

    async def behave(call: Call) -> None:
        if len(replica.received) == 1:
            await call.whole(b"{}")
        else:
            await call.gone.wait()

    async with FakeReplica(behave) as replica:
        upstream = Upstream(replica.url, connect_s=5.0, first_byte_s=10.0, gap_s=10.0)
        exchange = upstream.exchange(REQUEST, b"")
        await exchange.send()
        await exchange.head()
        assert await exchange.read() == b"{}"
        exchange.close()
        assert upstream.num_idle == 1
        upstream.first_byte_s = 0.05
        exchange = upstream.exchange(REQUEST, b"")
        await exchange.send()
        async with asyncio.timeout(5):
            with pytest.raises(UpstreamTimeout):
                await exchange.head()
        assert replica.num_connections == 1
        exchange.close()
