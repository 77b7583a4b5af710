"""Long prompts in slices, through a whole gateway: stopped for others, computed ahead, answered as if nothing was."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway.app import Gateway
from gateway.attribution import Record
from gateway.calling import Caller
from gateway.upstream import Exchange
from tests.gateway.slicing_engine import BLOCK, WORDS_PER_PROMPT, SlicingEngine, metrics_page
from tests.support.asgi import HandDriven
from tests.support.gateways import BODY, CHAT, assert_nothing_held, chat_body, gateway_for
from tests.support.serve import until

TEXT = " ".join(f"word{index}" for index in range(WORDS_PER_PROMPT))
LONG: dict[str, Any] = {"messages": [{"role": "user", "content": TEXT}]}
# A token takes a millisecond: 3,000 take three seconds, a slice of half a second ends after 496. Others are expected
# for as long as a test takes, and nobody waits for others for ever.
POLICY = {
    "options": {"cost": {"prefill_s_per_token": 0.001}, "slices": {"quiet_s": 3600.0, "patience_s": 0.01}},
}


@asynccontextmanager
async def _gateway(engine: SlicingEngine, **config: Any) -> AsyncIterator[Gateway]:
    async with (
        engine.replica,
        gateway_for(engine.replica, clock=engine.clock, **{"policy": POLICY, **config}) as gateway,
    ):
        engine.asked.clear()
        yield gateway
        await until(lambda: gateway.core.num_in_flight == 0)
        assert_nothing_held(gateway)


def _record(gateway: Gateway, request: HandDriven) -> Record:
    request_id = dict(request.headers)[b"x-tailgate-request-id"].decode()
    record = gateway.ring.get(request_id)
    assert record is not None
    return record


async def _short(gateway: Gateway) -> None:
    """A short request comes, and is answered."""
    request = HandDriven(gateway, CHAT).start(BODY)
    await request.ended()
    assert request.status == 200


async def _started(gateway: Gateway, engine: SlicingEngine, **fields: Any) -> HandDriven:
    """A long request that was sent whole, since nobody else had come."""
    request = HandDriven(gateway, CHAT).start(chat_body(**(LONG | fields)))
    await until(lambda: len(engine.chats) == 1)
    return request


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("sends_head_at_once", [False, True])
async def test_a_running_prefill_is_stopped_for_others_and_finished_in_slices(
    stream: bool, sends_head_at_once: bool
) -> None:
    """The slices grow by blocks and end inside the prompt, and the last call is the client's own bytes."""
    engine = SlicingEngine()
    engine.sends_head_at_once = sends_head_at_once
    async with _gateway(engine) as gateway:
        long = await _started(gateway, engine, stream=stream)
        assert gateway.pool.get("r1").slice_block_tokens == BLOCK
        await _short(gateway)
        await until(lambda: len(engine.chats) == 3)
        engine.may_answer.set()
        await long.ended()
        assert long.status == 200
        assert long.is_complete
        assert engine.replica.num_aborted == 1
        assert engine.chats[0] == engine.chats[2] == chat_body(**LONG, stream=stream)
        ends = [len(body["prompt"]) for body in engine.slices]
        assert ends == sorted(set(ends))
        assert all(end % BLOCK == 0 and end < WORDS_PER_PROMPT for end in ends)
        assert all(body["prompt"] == list(range(1, len(body["prompt"]) + 1)) for body in engine.slices)
        assert len(ends) >= 3
        assert sum("messages" in body and TEXT in str(body) for body in engine.asked) == 2  # to be counted, to be cut
        record = _record(gateway, long)
        assert (record.num_slices, record.attempt, record.outcome) == (len(ends), 1, "ok")
        assert {"slice-wait", "prefill"} <= set(record.layers)
        assert record.replica_prompt_tokens == WORDS_PER_PROMPT
        page = gateway.metrics.render()[0].decode()
        assert f"tailgate_slices_total {len(ends)}.0" in page
        assert "tailgate_stopped_prefills_total 1.0" in page
        assert "tailgate_sliced_requests_total 1.0" in page
        assert 'tailgate_replica_takes_slices{replica="r1"} 1.0' in page


async def test_slices_carry_what_the_cache_depends_on() -> None:
    """Salt and credentials as the caller gave them, one token each, at the lowest priority of the engine."""
    engine = SlicingEngine()
    async with _gateway(engine, replica={"priority_scheduling": True}) as gateway:
        await _short(gateway)
        long = HandDriven(gateway, CHAT, headers=[(b"authorization", b"Bearer theirs")])
        long.start(chat_body(**LONG, cache_salt="s", tools=[{"type": "function", "function": {"name": "f"}}]))
        engine.may_answer.set()
        await long.ended()
        assert engine.slices
        for body, headers in zip(engine.slices, engine.slice_headers, strict=True):
            assert (body["model"], body["cache_salt"], body["max_tokens"]) == ("m1", "s", 1)
            assert ("authorization", "Bearer theirs") in headers
            assert ("x-vllm-priority", "4") in headers
        told = engine.asked[-1]
        assert told["tools"] == [{"type": "function", "function": {"name": "f"}}]


async def test_the_answers_to_slices_are_the_gateways_own() -> None:
    """How the client wants its answer, and the id of its call, go with its own call only."""
    engine = SlicingEngine()
    engine.may_answer.set()
    theirs = [("accept-encoding", "gzip"), ("x-request-id", "abc"), ("range", "bytes=0-1")]
    async with _gateway(engine) as gateway:
        await _short(gateway)
        headers = [(name.encode(), value.encode()) for name, value in (*theirs, ("x-tenant", "t"))]
        long = HandDriven(gateway, CHAT, headers=headers).start(chat_body(**LONG))
        await long.ended()
        assert engine.slices
        ours = [call for call in engine.replica.received if ("x-tenant", "t") in call.headers][:-1]
        assert [call.path for call in ours] == ["/tokenize", *["/v1/completions"] * len(engine.slices)]
        for call in ours:
            assert call.header("accept-encoding") == ["identity"]
            assert not set(theirs) & set(call.headers)
        assert set(theirs) < set(engine.replica.received[-1].headers)


async def test_ids_that_the_caller_gave_are_not_asked_for() -> None:
    """A completion of token ids is cut as it is."""
    engine = SlicingEngine()
    async with _gateway(engine) as gateway:
        await _short(gateway)
        engine.asked.clear()
        body = json.dumps({"model": "m1", "prompt": list(range(7, 3007)), "max_tokens": 1, "temperature": 0})
        long = HandDriven(gateway, "/v1/completions").start(body.encode())
        await long.ended()
        assert long.status == 200
        assert [body["prompt"][0] for body in engine.slices] == [7] * len(engine.slices)
        assert len(engine.slices) >= 3  # the last is the request itself
        assert engine.asked == []


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt_logprobs": 1},
        {"truncate_prompt_tokens": 100},
        {
            "messages": [
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:" + "x" * 9000}}]}
            ]
        },
    ],
    ids=["prompt_logprobs", "truncated", "image"],
)
async def test_what_a_prefix_would_not_help_goes_whole(fields: dict[str, Any]) -> None:
    """Images, log-probabilities of the prompt, prompts that the engine cuts: one call, whoever else has come."""
    engine = SlicingEngine()
    engine.may_answer.set()
    async with _gateway(engine) as gateway:
        await _short(gateway)
        long = HandDriven(gateway, CHAT).start(chat_body(**(LONG | fields)))
        await long.ended()
        assert (len(engine.slices), len(engine.chats)) == (0, 2)


async def test_a_long_prompt_that_is_alone_is_one_call() -> None:
    """Nobody else has come: the replica sees what it would see without a gateway."""
    engine = SlicingEngine()
    engine.may_answer.set()
    async with _gateway(engine) as gateway:
        long = HandDriven(gateway, CHAT).start(chat_body(**LONG))
        await long.ended()
        assert (len(engine.slices), len(engine.chats)) == (0, 1)


@pytest.mark.parametrize(("slice_status", "tokenize_status"), [(400, 200), (500, 200), (200, 404)])
async def test_a_slice_that_fails_costs_the_request_nothing(slice_status: int, tokenize_status: int) -> None:
    """No further slice: the request goes whole and is answered."""
    engine = SlicingEngine()
    engine.may_answer.set()
    async with _gateway(engine) as gateway:
        await _short(gateway)
        engine.slice_status, engine.tokenize_status = slice_status, tokenize_status
        long = HandDriven(gateway, CHAT).start(chat_body(**LONG))
        await long.ended()
        assert long.status == 200
        assert len(engine.slices) == (1 if tokenize_status == 200 else 0)
        assert _record(gateway, long).num_slices == 0


async def test_a_client_that_leaves_stops_the_running_slice() -> None:
    """Its connection is closed, and nothing is held."""
    engine = SlicingEngine()
    async with _gateway(engine) as gateway:
        await _short(gateway)
        engine.may_compute.clear()
        long = HandDriven(gateway, CHAT).start(chat_body(**LONG))
        await until(lambda: len(engine.slices) == 1)
        long.disconnect()
        await long.ended()
        await until(lambda: engine.replica.num_aborted == 1)
        assert long.sent == []
        assert len(engine.chats) == 1


async def test_a_client_that_leaves_while_its_prefill_is_stopped() -> None:
    """Both at once: the request is gone, and its slot with it."""
    engine = SlicingEngine()
    async with _gateway(engine) as gateway:
        long = await _started(gateway, engine)
        short = HandDriven(gateway, CHAT).start(BODY)
        long.disconnect()
        await long.ended()
        await short.ended()
        assert long.sent == []


async def test_a_replica_that_is_gone_between_slices_is_left_for_another() -> None:
    """The slices are lost with it; the request starts over elsewhere and is answered."""
    first, second = SlicingEngine(), SlicingEngine()
    for engine in (first, second):
        engine.may_answer.set()

    def clock() -> float:
        return first.clock() + second.computed_s

    async with (
        first.replica,
        second.replica,
        gateway_for(first.replica, second.replica, policy=POLICY, clock=clock) as gateway,
    ):
        await _short(gateway)
        first.may_compute.clear()
        second.may_compute.clear()
        long = HandDriven(gateway, CHAT).start(chat_body(**LONG))
        await until(lambda: len(first.slices) + len(second.slices) == 1)
        broken, other = (first, second) if first.slices else (second, first)
        other.may_compute.set()
        replica_id = "r1" if broken is first else "r2"
        replica = gateway.pool.get(replica_id)
        replica.is_available = False
        gateway.dispatcher.replica_changed(replica)
        broken.may_compute.set()
        await long.ended()
        assert long.status == 200
        assert len(other.slices) >= 3
        assert_nothing_held(gateway)


@pytest.mark.parametrize(
    ("page", "says_cached", "why"),
    [
        (metrics_page(caching="False"), True, "its prefix caching is off"),
        (b"vllm:num_requests_running 0\n", True, "its metrics don't tell the size of a block of its cache"),
        (metrics_page(block="0"), True, "blocks of 0 tokens are of no use for slices"),
        (metrics_page(block="1000000"), True, "blocks of 1000000 tokens are of no use for slices"),
        (metrics_page(), False, "a prompt sent twice isn't served from its prefix cache"),
    ],
    ids=["off", "no block size", "empty blocks", "huge blocks", "no hits"],
)
async def test_only_where_prefixes_are_seen_to_be_cached(page: bytes, says_cached: bool, why: str) -> None:
    """Else everything goes there whole, and the reason is known."""
    engine = SlicingEngine(page=page, says_cached=says_cached)
    engine.may_answer.set()
    async with _gateway(engine) as gateway:
        replica = gateway.pool.get("r1")
        assert (replica.slice_block_tokens, replica.whole_because) == (None, why)
        await _short(gateway)
        long = HandDriven(gateway, CHAT).start(chat_body(**LONG))
        await long.ended()
        assert (len(engine.slices), len(engine.chats)) == (0, 2)


async def test_a_policy_without_slices_asks_nothing() -> None:
    """No probe of the cache, no slice."""
    engine = SlicingEngine()
    engine.may_answer.set()
    async with _gateway(engine, policy={"slicing": "whole"}) as gateway:
        assert not any(received.path == "/v1/completions" for received in engine.replica.received)
        assert gateway.pool.get("r1").whole_because == "the policy cuts nothing"


async def test_a_body_with_numbers_that_no_double_holds_is_cut_like_others() -> None:
    """What was taken as JSON when it came is read alike when it is cut."""
    engine = SlicingEngine()
    engine.may_answer.set()
    async with _gateway(engine) as gateway:
        await _short(gateway)
        body = chat_body(**LONG)[:-1] + b',"odd":1e999}'
        long = HandDriven(gateway, CHAT).start(body)
        await long.ended()
        assert long.status == 200
        assert engine.slices


async def test_a_parked_request_goes_on_after_its_patience_though_nobody_is_queued() -> None:
    """Whom it lets pass may never get a first token: the instant comes by itself, whoever waits in the queue."""
    engine = SlicingEngine()
    async with _gateway(engine) as gateway:
        long = await _started(gateway, engine)
        hung = HandDriven(gateway, CHAT).start(chat_body(messages=[{"role": "user", "content": "y" * 2000}]))
        await until(lambda: len(engine.chats) == 2)
        await until(lambda: len(engine.slices) >= 1)
        engine.may_answer.set()
        await long.ended()
        await hung.ended()
        assert (long.status, hung.status) == (200, 200)


async def test_a_stop_that_comes_with_the_first_bytes_breaks_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Closed when the task has yet to see that the answer begins: none of that goes out, and it comes anew, once."""
    engine = SlicingEngine()
    engine.may_answer.set()
    engine.may_end.clear()
    peek, shorts = Exchange.peek, list[HandDriven]()

    async def peek_and_stop(exchange: Exchange) -> bytes:
        piece = await peek(exchange)
        if not shorts:
            place = next(place for place in gateway.dispatcher._places.values() if place.on_stop is not None)
            shorts.append(HandDriven(gateway, CHAT).start(BODY))
            await until(lambda: place.is_stopping)
            engine.may_end.set()
        return piece

    monkeypatch.setattr(Exchange, "peek", peek_and_stop)
    async with _gateway(engine) as gateway:
        long = HandDriven(gateway, CHAT).start(chat_body(**LONG, stream=True))
        await long.ended()
        await shorts[0].ended()
        assert long.is_complete
        assert long.body.count(b"hello") == 1
        assert engine.slices


async def test_a_stop_that_comes_before_the_call_began_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its task has yet to run: the call isn't made, and the prompt goes in slices."""
    engine = SlicingEngine()
    engine.may_answer.set()
    answer, shorts = Caller.answer, list[HandDriven]()

    async def answer_late(caller: Caller, sending: Any, place: Any, record: Any) -> None:
        if not shorts:
            shorts.append(HandDriven(gateway, CHAT).start(BODY))
            await until(lambda: place.is_stopping)
        await answer(caller, sending, place, record)

    monkeypatch.setattr(Caller, "answer", answer_late)
    async with _gateway(engine) as gateway:
        long = HandDriven(gateway, CHAT).start(chat_body(**LONG))
        await long.ended()
        await shorts[0].ended()
        assert long.status == 200
        assert len(engine.chats) == 2
        assert engine.slices
